package admin

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/pgtest"
)

// The oldest call is the one that a look at all calls finds, whatever has ended in its segment or before it.
func TestReadOldest(t *testing.T) {
	t.Parallel()
	const thousand = `INSERT INTO call_queue (queue, key, run_at) SELECT 'q', 'k', now() - interval '1 h' FROM generate_series(1, 1000)`
	for name, c := range map[string]struct{ insert, then string }{
		"nothing":              {`SELECT`, `SELECT`},
		"nothing is due":       {`INSERT INTO call_queue (run_at) VALUES (now() + interval '1 h')`, `SELECT`},
		"the first":            {thousand, `SELECT`},
		"the first have ended": {thousand, `UPDATE call_queue SET status = 'cancelled' WHERE id <= 700`},
		"the first are gone":   {thousand, `DELETE FROM call_queue WHERE id <= 700`},
		"all have ended":       {thousand, `UPDATE call_queue SET status = 'done'`},
		"of another queue":     {thousand, `INSERT INTO call_queue (queue, run_at) VALUES ('r', now() - interval '2 h')`},
		"behind some that have ended": {
			thousand, `INSERT INTO call_queue (queue) VALUES ('r'); UPDATE call_queue SET status = 'done' WHERE queue = 'q'`,
		},
		"behind some that are put off": {
			thousand, `INSERT INTO call_queue (queue) VALUES ('r'); UPDATE call_queue SET run_at = now() + interval '1 h' WHERE queue = 'q'`,
		},
		"the first were put off and are due": {thousand, `UPDATE call_queue SET run_at = now() - interval '1 m' WHERE id < 10`},
		"behind one whose segment is older": {
			`INSERT INTO call_queue (queue, run_at) SELECT 'q', now() - (21 - i) * interval '1 m' FROM generate_series(1, 20) i`,
			`INSERT INTO call_queue (queue, run_at) VALUES ('r', now() - interval '10 m'); UPDATE call_queue SET status = 'done' WHERE id < 20`,
		},
		"since ever": {thousand, `INSERT INTO call_queue (run_at) VALUES ('-infinity')`},
	} {
		for _, taken := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, taken in %v", name, taken), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.New(t)
				exec(t, pool, c.insert)
				if taken {
					takeIn(t, pool, "q")
				}
				exec(t, pool, c.then)
				oldest, err := Collect[Oldest](t.Context(), pool, "read the oldest call", oldestSQL)
				if err != nil {
					t.Fatal(err)
				}
				var want, got int64
				if err := pool.QueryRow(t.Context(), `SELECT coalesce((
					SELECT id FROM call_queue WHERE status IN ('new', 'error') AND run_at <= now() ORDER BY run_at, id LIMIT 1), 0)`).Scan(&want); err != nil {
					t.Fatal(err)
				}
				if len(oldest) > 0 {
					got = oldest[0].ID
				}
				if got != want {
					t.Errorf("the oldest is %d, want %d", got, want)
				}
			})
		}
	}
}

// Behind very many that have ended it is not looked for.
func TestOldestBehindMany(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO call_queue (queue, key, run_at) SELECT 'q', 'k' || i, now() - interval '1 h' + i * interval '1 ms' FROM generate_series(1, 4000) i`)
	takeIn(t, pool, "q")
	exec(t, pool, `UPDATE call_queue SET status = 'cancelled' WHERE id <= 3600`)
	if oldest, err := Collect[Oldest](t.Context(), pool, "read the oldest call", oldestSQL); err != nil || len(oldest) > 0 {
		t.Errorf("the oldest is %+v, %v", oldest, err)
	}
	exec(t, pool, `VACUUM ANALYZE`)
	settings := map[string]string{"jit": "off", "max_parallel_workers_per_gather": "0"}
	if n := pgtest.Work(t, pool, settings, oldestSQL); n > 5*4000 { // a sample is read, then all
		t.Errorf("to look at the first of 4,000 segments, plans handled %d", n)
	}
}

// A status has what the last scheduled verify found, if there was one.
func TestStatusKnowsTheLastVerify(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, c := range []struct {
		sql  string
		want *Verified
	}{
		{`SELECT`, nil},
		{`INSERT INTO callq.call_meta (name, at, position) VALUES ('verified', to_timestamp(1800000000), 2)`, &Verified{At: time.Unix(1_800_000_000, 0), Problems: 2}},
		{`UPDATE callq.call_meta SET position = 0 WHERE name = 'verified'`, &Verified{At: time.Unix(1_800_000_000, 0)}},
	} {
		exec(t, pool, c.sql)
		s, err := ReadStatus(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		if (s.Verified == nil) != (c.want == nil) || c.want != nil && (!s.Verified.At.Equal(c.want.At) || s.Verified.Problems != c.want.Problems) {
			t.Errorf("after %s: %+v, want %+v", c.sql, s.Verified, c.want)
		}
		told := slices.ContainsFunc(s.Verdict.Points, func(f Finding) bool { return f.Fix == "callq verify" })
		if want := c.want != nil && c.want.Problems > 0; told != want {
			t.Errorf("after %s: the verdict names it: %v, want %v", c.sql, told, want)
		}
	}
}

// Among however many calls that have ended, status finds those that wait, and those that failed, by an index.
func TestStatusReadsNoEndedCalls(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, sql := range []string{
		`INSERT INTO call_queue (status, finished_at) SELECT 'done', now() FROM generate_series(1, 50000)`,
		`INSERT INTO call_queue (status, finished_at, failed_at) SELECT 'failed', now(), now() FROM generate_series(1, 1000)`,
		`INSERT INTO call_queue (key) SELECT 'k' || i FROM generate_series(1, 5000) i`,
		`VACUUM ANALYZE`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for name, sql := range map[string]string{"queues": queuesSQL, "waiting": waitingSQL, "forecast": mostOfSQL, "oldest": oldestSQL} {
		for _, scan := range pgtest.Plan(t, pool, map[string]string{"timezone": "UTC", "jit": "off"}, sql) {
			if scan.Table == "call_queue" && scan.Index == "" {
				t.Errorf("%s reads all calls: %+v", name, scan)
			}
			if name == "queues" && scan.Table == "call_queue" && (scan.Node != "Index Only Scan" || scan.Index != "call_queue_failed_idx") {
				t.Errorf("the failed are not counted by their index alone: %+v", scan)
			}
		}
	}
}
