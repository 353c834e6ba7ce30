package verify_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
)

// startedAt is a ledger of calls that started at these times of 2026-01-01 under a limit of 1 per 10 s. Each was answered at
// once.
func startedAt(t *testing.T, db ledgertest.DB, shape string, times ...string) {
	t.Helper()
	ledgertest.Exec(t, db, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, shape, slack, send_within, queues, applied_at, applied_by, epoch)
		VALUES ('api', 1, 1, '10 s', '10 ms', $1, '500 ms', '500 ms', '{default}', now(), 'test', callq.epoch())`, shape)
	ledgertest.Exec(t, db, publishedSQL)
	ledgertest.Exec(t, db, `UPDATE callq.call_limit_versions SET effective_from = '2025-12-31', shape = $1`, shape)
	ledgertest.Exec(t, db, `INSERT INTO call_attempts (call_id, attempt, requests, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
		SELECT i, 1, 1, 1, at, at, at, at, 'done', 'default', 'http', '', jsonb_build_array(jsonb_build_object('limit', 'api', 'key', '', 'cost', 1, 'until', at))
		FROM unnest($1::text[]) WITH ORDINALITY AS a (time, i) CROSS JOIN LATERAL (SELECT ('2026-01-01 ' || time)::timestamptz) t (at)`, times)
}

// A window is longer by what Postgres's clock gained within it.
//
//callq:guarantee 6
func TestVerifyKnowsGains(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const sliding, bucket, fixed = `{}`, `{"algorithm": "token_bucket", "period": "10s", "burst": 1}`, `{"algorithm": "fixed_window", "period": "10s"}`
	for _, c := range []struct {
		name, shape, first, second, gained string
		over                               bool
	}{
		{"none", sliding, "12:00:01", "12:00:16", "", false},
		{"between", sliding, "12:00:01", "12:00:16", "12:00:05", true},
		{"before both", sliding, "12:00:01", "12:00:16", "12:00:00", false},
		{"between, and once more", sliding, "12:00:01", "12:00:24", "12:00:05 12:00:14", true},
		{"after the first had left", sliding, "12:00:01", "12:00:16", "12:00:12", false},
		{"of a token bucket, none", bucket, "12:00:01", "12:00:16", "", false},
		{"of a token bucket", bucket, "12:00:01", "12:00:16", "12:00:05", true},
		{"of a fixed window, none", fixed, "12:00:01", "12:00:11", "", false},
		{"of a fixed window", fixed, "12:00:01", "12:00:11", "12:00:05", true},
	} {
		ledgertest.Trial(t, pool, c.name, func(t *testing.T, tx pgx.Tx) {
			startedAt(t, tx, c.shape, c.first, c.second)
			if c.shape == bucket { // for 20 times what fills it
				ledgertest.Exec(t, tx, `UPDATE callq.call_limits SET window_size = '200 s'`)
				ledgertest.Exec(t, tx, publishedSQL)
			}
			ledgertest.Exec(t, tx, `INSERT INTO callq.call_clock_gains (at, by) SELECT ('2026-01-01 ' || at)::timestamptz, '8 s' FROM string_to_table(nullif($1, ''), ' ') at`, c.gained)
			report := run(t, tx)
			if over := len(report.Findings) > 0; over != c.over || over && !strings.Contains(report.Findings[0].Rule, "window") {
				t.Errorf("most %d, found %+v", report.Limits[0].Most, report.Findings)
			}
			says := "Postgres's clock was not set"
			if c.gained != "" {
				says = "gained what dispatchers saw"
			}
			if all := fmt.Sprint(report.RestsOn); !strings.Contains(all, says) {
				t.Errorf("it rests on %s", all)
			}
		})
	}
}

// Starts at times that the clock showed twice, because it was set back, are held to no window.
//
//callq:guarantee 6
func TestVerifyKnowsSetBacks(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	startedAt(t, pool, `{}`, "12:00:05", "12:00:05.5", "12:00:08")
	ledgertest.Exec(t, pool, `UPDATE callq.call_limits SET window_size = '0', anchor = 'finish'`) // one at once
	ledgertest.Exec(t, pool, publishedSQL)
	ledgertest.Exec(t, pool, `UPDATE callq.call_limit_versions SET effective_from = '2025-12-31'`)
	ledgertest.Exec(t, pool, `UPDATE call_attempts SET finished_at = started_at + interval '1 s', arrived_by = started_at + interval '1 s',
		charged = jsonb_set(charged, '{0,until}', to_jsonb(started_at + interval '1 s'))`)
	over := func() int { return len(run(t, pool).Findings) }
	if n := over(); n != 1 {
		t.Errorf("%d findings without a step, want that two ran at once: %+v", n, run(t, pool).Findings)
	}
	ledgertest.Exec(t, pool, `INSERT INTO callq.call_clock_gains (at, by) VALUES ('2026-01-01 12:00:04.8', '-1.3 s')`)
	if n := over(); n != 0 {
		t.Errorf("%d findings of what began at times that came twice: %+v", n, run(t, pool).Findings)
	}
	if all := fmt.Sprint(run(t, pool).RestsOn); !strings.Contains(all, "showed twice") || strings.Contains(all, "was not set") {
		t.Errorf("it rests on %s", all)
	}
	ledgertest.Exec(t, pool, `UPDATE callq.call_clock_gains SET at = '2026-01-01 12:00:06'`)
	if n := over(); n != 1 {
		t.Errorf("%d findings of what began at others, want 1", n)
	}
}

// The clock may be set back while a request is under way: what has only limits of concurrency then ends before it started.
//
//callq:guarantee 6
func TestVerifyKnowsSetBacksDuringRequests(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	startedAt(t, pool, `{}`, "12:00:05")
	ledgertest.Exec(t, pool, `UPDATE call_attempts SET charged = '[]', arrived_by = started_at - interval '900 ms', finished_at = started_at - interval '900 ms'`)
	ledgertest.Exec(t, pool, `UPDATE callq.call_limits SET queues = '{}'`)
	ledgertest.Exec(t, pool, `UPDATE callq.call_limit_versions SET queues = '{}'`)
	for by, want := range map[string]int{"-1 s": 0, "-800 ms": 1, "1 s": 1} {
		ledgertest.Exec(t, pool, `INSERT INTO callq.call_clock_gains (at, by) VALUES ('2026-01-01 12:00:04.2', $1::interval)`, by)
		if found := run(t, pool).Findings; len(found) != want {
			t.Errorf("with a step of %s it finds %+v, want %d", by, found, want)
		}
		ledgertest.Exec(t, pool, `DELETE FROM callq.call_clock_gains`)
	}
}

// Claims at such times are not compared with the limits that their queue had.
//
//callq:guarantee 6
func TestVerifyKnowsChangesInASetBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	startedAt(t, pool, `{}`, "12:00:01")
	ledgertest.Exec(t, pool, `INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, send_within, epoch, pool, queue, task, key, limits, keys, costs)
		SELECT 2, 1, 0, 1, 1, at, at, at, '500 ms', callq.epoch(), 'http', 'default', 'http', '', '{api}', '{""}', '{1}' FROM (VALUES ('2026-01-01 12:00:01'::timestamptz)) v (at)`)
	ledgertest.Exec(t, pool, `UPDATE callq.call_limits SET version = 2, queues = '{other}'`)
	ledgertest.Exec(t, pool, `INSERT INTO callq.call_limit_versions (limit_name, version, effective_from, rate, window_size, slack, send_within, queues, applied_by)
		SELECT name, 2, '2026-01-01 11:59:10', rate, window_size, slack, send_within, queues, 'test' FROM callq.call_limits`)
	if found := run(t, pool).Findings; len(found) != 2 {
		t.Errorf("found %+v without a step, want that both have another limit than their queue had", found)
	}
	ledgertest.Exec(t, pool, `INSERT INTO callq.call_clock_gains (at, by) VALUES ('2026-01-01 11:59:05', '-1 min')`)
	if found := run(t, pool).Findings; len(found) != 0 {
		t.Errorf("found %+v of what was claimed before the step, or after", found)
	}
}

// Options.Since verifies what came since then, with what counts in its windows.
//
//callq:guarantee 6
func TestVerifySince(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	startedAt(t, pool, `{}`, "12:00:00", "12:00:05", "13:00:00", "13:00:04", "13:00:30")
	ledgertest.Exec(t, pool, `UPDATE call_attempts SET charged = '[]' WHERE call_id = 1`)
	for since, want := range map[string]string{
		"":                     "5 attempts, 4 starts, found 1 4",
		"2026-01-01T12:00:01Z": "4 attempts, 4 starts, found 4",
		"2026-01-01T13:00:02Z": "2 attempts, 2 starts, found 4",
		"2026-01-01T13:00:10Z": "1 attempts, 1 starts, found",
	} {
		var at time.Time
		if since != "" {
			at, _ = time.Parse(time.RFC3339, since)
		}
		report, err := verify.Run(t.Context(), pool, verify.Options{Since: at})
		if err != nil {
			t.Fatal(err)
		}
		starts := int64(0)
		for _, l := range report.Limits {
			starts += l.Starts
		}
		got := fmt.Sprintf("%d attempts, %d starts, found", report.Attempts, starts)
		for _, f := range report.Findings {
			got += fmt.Sprint(" ", f.CallID)
		}
		if got != want {
			t.Errorf("since %q: %s; want %s", since, got, want)
		}
	}
}
