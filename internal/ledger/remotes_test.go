package ledger_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
)

// What an API says lowers what may be used of a limit where that is less than its rate, and never where the API counts as we do.
func TestTellRemotes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const use = `INSERT INTO callq.call_usage VALUES ('api', '', now() - interval '1 s', 1, 3), ('api', 'k', now() - interval '1 s', 1, 9), ('api', '', now() - interval '11 s', 1, 4),
		('api', '', timestamptz '2200-01-01Z', 0, 1);`
	for name, c := range map[string]struct {
		sql       string
		key       string
		remaining *int64
		reset     time.Duration // -1: unknown
		unknown   bool          // what was used then
		lowered   *int64        // of 10 in 10 s
	}{
		"as we count":       {sql: use, remaining: new(int64(6)), reset: time.Minute},
		"less remains":      {sql: use, remaining: new(int64(5)), reset: time.Minute, lowered: new(int64(9))},
		"nothing remains":   {remaining: new(int64(0)), reset: time.Minute, lowered: new(int64(0))},
		"a huge number":     {sql: use, remaining: new(int64(1<<63 - 1)), reset: time.Minute},
		"it has no number":  {sql: use, reset: time.Minute},
		"it has no reset":   {sql: use, remaining: new(int64(0)), reset: -1},
		"it has reset":      {sql: use, remaining: new(int64(0)), reset: 0},
		"usage was removed": {sql: use, remaining: new(int64(0)), reset: time.Minute, unknown: true},
		"ignored":           {sql: `UPDATE callq.call_limits SET trust = 'ignore'`, remaining: new(int64(0)), reset: time.Minute},
		"at once":           {sql: `UPDATE callq.call_limits SET window_size = '0'`, remaining: new(int64(0)), reset: time.Minute},
		"a key":             {sql: use + `UPDATE callq.call_limits SET per_key = true`, key: "k", remaining: new(int64(0)), reset: time.Minute, lowered: new(int64(9))},
		"a key of its own":  {sql: use + `UPDATE callq.call_limits SET per_key = true, overrides = '{"k": 9}'`, key: "k", remaining: new(int64(0)), reset: time.Minute},
		"a bucket":          {sql: `UPDATE callq.call_limits SET shape = '{"algorithm": "token_bucket", "burst": 4, "period": "10s"}'`, remaining: new(int64(4)), reset: time.Minute},
		"what runs":         {sql: use + `UPDATE callq.call_open SET started_at = now(), costs = '{2}'`, remaining: new(int64(4)), reset: time.Minute},
	} {
		ledgertest.Trial(t, pool, name, func(t *testing.T, tx pgx.Tx) {
			ledgertest.Open(t, tx) // it has not started
			exec(t, tx, c.sql)
			now := clock(t, tx)
			told := ledger.Remote{Limit: "api", Key: c.key, Most: new(int64(20)), Remaining: c.remaining, Answered: now.Add(-10 * time.Millisecond)}
			if c.reset >= 0 {
				told.Reset = new(now.Add(c.reset))
			}
			if rule := ruleOf(t, tx); !c.unknown {
				told.Since = rule.Since(now)
			}
			gone := ledger.Remote{Limit: "gone", Answered: now}
			if err := ledger.TellRemotes(t.Context(), tx, []ledger.Remote{told, gone}); err != nil {
				t.Fatal(err)
			}
			var key string
			var most int64
			var remaining, lowered *int64
			if err := tx.QueryRow(t.Context(), `SELECT key, most, remaining, lowered FROM callq.call_remotes`).Scan(&key, &most, &remaining, &lowered); err != nil {
				t.Fatal(err)
			}
			if key != c.key || most != 20 || !same(remaining, c.remaining) || !same(lowered, c.lowered) {
				t.Errorf("key %q, most %d, remaining %v, lowered %v", key, most, text(remaining), text(lowered))
			}
		})
	}
}

// The newest answer counts, whoever tells it last, and for no longer than the limit's retry_after.
func TestNewestRemote(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ledgertest.Open(t, pool)
	exec(t, pool, `UPDATE callq.call_limits SET retry_after = '1 m'`)
	now := clock(t, pool)
	for _, c := range []struct {
		answered        time.Duration // ago
		remaining, want int64
	}{{3 * time.Second, 5, 5}, {4 * time.Second, 7, 5}, {time.Second, 4, 4}} {
		told := ledger.Remote{Limit: "api", Remaining: &c.remaining, Answered: now.Add(-c.answered), Reset: new(now.Add(24 * time.Hour)), Since: ruleOf(t, pool).Since(now)}
		if err := ledger.TellRemotes(t.Context(), pool, []ledger.Remote{told}); err != nil {
			t.Fatal(err)
		}
		var remaining int64
		var most *int64
		var bounded bool
		if err := pool.QueryRow(t.Context(), `SELECT remaining, most, reset_at < clock_timestamp() + interval '1 m' FROM callq.call_remotes`).Scan(&remaining, &most, &bounded); err != nil {
			t.Fatal(err)
		}
		if remaining != c.want || most != nil || !bounded {
			t.Errorf("answered %s ago: remaining %d, want %d; most %v, reset within retry_after %t", c.answered, remaining, c.want, text(most), bounded)
		}
	}
	exec(t, pool, `UPDATE callq.call_remotes SET answered_at = now() + interval '1 hour'`) // before the clock was set back
	if err := ledger.TellRemotes(t.Context(), pool, []ledger.Remote{{Limit: "api", Answered: now}}); err != nil {
		t.Fatal(err)
	}
	var known bool
	if err := pool.QueryRow(t.Context(), `SELECT remaining IS NOT NULL FROM callq.call_remotes`).Scan(&known); err != nil || known {
		t.Errorf("an answer from before the clock was set back stays: %t, %v", known, err)
	}
}

// The rules are as the limit has them. What was in use is not known any more once usage may have been removed.
func TestRemoteRules(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ledgertest.Open(t, pool)
	exec(t, pool, `UPDATE callq.call_limits SET hosts = '{a}', headers = '{"off": ["X-A"]}'; INSERT INTO callq.call_clock_gains (at, by) VALUES (now(), '2 s'), (now(), '-9 s'), (now() - interval '1 h', '5 s')`)
	r := ruleOf(t, pool)
	if r.Rate.Units != 10 || r.Rate.Window != 10*time.Second || r.Hosts[0] != "a" || len(r.Wait) != 0 || r.Off[0] != "X-A" || r.Gained != 2*time.Second {
		t.Errorf("%+v", r)
	}
	if since := r.Since(r.Now); since == nil || r.Now.Sub(*since) < 12*time.Second {
		t.Errorf("since %v, now %v", since, r.Now)
	}
	if since := r.Since(r.Now.Add(-time.Minute)); since != nil {
		t.Errorf("what was used a minute ago is known since %v", since)
	}
}

func ruleOf(t *testing.T, db ledger.DB) ledger.RemoteRule {
	t.Helper()
	rules, err := ledger.RemoteRules(t.Context(), db, []string{"api", "gone"})
	if err != nil || len(rules) != 1 {
		t.Fatal(rules, err)
	}
	return rules[0]
}

func same(a, b *int64) bool { return text(a) == text(b) }

func text(n *int64) string {
	if n == nil {
		return "none"
	}
	return strconv.FormatInt(*n, 10)
}

func exec(t *testing.T, db ledger.DB, sql string) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func clock(t *testing.T, db ledgertest.DB) (now time.Time) {
	t.Helper()
	if err := db.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
		t.Fatal(err)
	}
	return now
}
