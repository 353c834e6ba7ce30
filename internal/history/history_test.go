package history_test

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/history"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}

func want(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	var ok *bool
	if err := pool.QueryRow(t.Context(), sql).Scan(&ok); err != nil || ok == nil || !*ok {
		t.Errorf("not so (%v): %s", err, sql)
	}
}

// What the last minute had is in a row of each limit and queue, once, however often it is noted; what came before or after is not, and
// nothing is of those in which nothing happened.
func TestNote(t *testing.T) {
	t.Parallel()
	owner := pgtest.New(t)
	pool := pgtest.AsDaemon(t, owner)
	exec(t, owner, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, shape, slack, send_within, queues, applied_at, applied_by, epoch)
		SELECT name, 1, rate, span, '1 ms', shape, '1 s', '1 s', queues, now(), 'test', callq.epoch()
		FROM (VALUES ('api', 100, interval '10 s', '{}'::jsonb, '{q}'::text[]), ('bucket', 5, '20 s', '{"algorithm": "token_bucket", "period": "1s", "burst": 5}', '{q}'),
			('atonce', 9, '0', '{}', '{q}'), ('idle', 1, '1 s', '{}', '{none}'), ('still', 1, '1 s', '{}', '{none}'), ('gone', 1, '1 s', '{}', '{}')) AS l (name, rate, span, shape, queues)`)
	exec(t, owner, `INSERT INTO call_queue (queue, status, run_at, created_at, attempts, finished_at)
		SELECT 'q', 'done', m, m, 1, now() FROM generate_series(1, 100) i, (SELECT date_trunc('minute', now()) - interval '1 min' AS m) c`)
	exec(t, owner, `INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, finished_at, outcome, queue, task, key, charged)
		SELECT i, 1, 1, s, s, s + interval '2 s', CASE WHEN i <= 6 THEN 'error' WHEN i <= 9 THEN 'refused' ELSE 'done' END, 'q', 'http', '', '[{"limit": "api", "cost": 2}, {"limit": "bucket", "cost": 1}]'
		FROM generate_series(1, 100) i, (SELECT date_trunc('minute', now()) - interval '1 min' AS m) c,
			LATERAL (SELECT m + CASE WHEN i <= 80 THEN interval '5 s' WHEN i <= 90 THEN interval '-40 s' ELSE interval '61 s' END AS s) at`)
	exec(t, owner, `INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs, started_at)
		SELECT i, 1, 0, 1, 1, now(), now(), now(), callq.epoch(), 'http', 'q', 'http', '', '{api,atonce}', '{"",""}', '{1,1}',
			date_trunc('minute', now()) - CASE i % 2 WHEN 0 THEN interval '30 s' ELSE interval '90 s' END FROM generate_series(201, 206) i`)
	exec(t, owner, `INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 7)`)
	exec(t, owner, `INSERT INTO callq.call_pauses (what, name, until, reason, at, by) VALUES ('limit', 'idle', 'infinity', '', date_trunc('minute', now()) - interval '20 s', '')`)
	for i := range 3 { // three dispatchers, of which one notes, and the others know more of two limits
		waits := []map[string]time.Duration{{"api": 40 * time.Second, "bucket": time.Second, "unknown": time.Hour}, {"api": 30 * time.Second, "bucket": 1500300 * time.Microsecond, "idle": 1000 * time.Hour}, nil}[i]
		if err := history.Note(t.Context(), pool, waits, 1); err != nil {
			t.Fatal(err)
		}
	}
	want(t, owner, `SELECT count(*) = 4 AND bool_and(minute = date_trunc('minute', minute)) FROM callq.call_limit_history`)
	want(t, owner, `SELECT used = 163 AND capacity = 600 AND waiting = 7 AND refused = 3 AND next_unit = 40000 AND closed IS NULL FROM callq.call_limit_history WHERE limit_name = 'api'`)
	want(t, owner, `SELECT used = 80 AND capacity = 300 AND next_unit = 1501 FROM callq.call_limit_history WHERE limit_name = 'bucket'`)
	want(t, owner, `SELECT used = 6 AND capacity = 9 AND next_unit IS NULL FROM callq.call_limit_history WHERE limit_name = 'atonce'`)
	want(t, owner, `SELECT used = 0 AND waiting IS NULL AND next_unit = 2147483647 AND closed = '{"paused": 20}' FROM callq.call_limit_history WHERE limit_name = 'idle'`)
	want(t, owner, `SELECT count(*) = 1 AND bool_and(due = 7 AND started = 83 AND done = 71 AND errors = 6 AND wait_p50 = 5000 AND run_p95 = 2000) FROM callq.call_queue_history`)

	exec(t, owner, `UPDATE callq.call_meta SET at = at + interval '1 hour' WHERE name = 'history'`) // it was noted before the clock was set back
	if err := history.Note(t.Context(), pool, nil, 1); err != nil {
		t.Fatal(err)
	}
	want(t, owner, `SELECT count(*) = 5 FROM (SELECT limit_name FROM callq.call_limit_history UNION ALL SELECT queue FROM callq.call_queue_history) h`)

	exec(t, owner, `UPDATE callq.call_limit_history SET minute = minute - interval '8 days' WHERE limit_name <> 'api'`)
	for _, step := range []struct {
		keep time.Duration
		left string
	}{{7 * 24 * time.Hour, "count(*) = 1 AND min(limit_name) = 'api'"}, {-1, "count(*) = 0"}} {
		if _, err := maintenance.Purge(t.Context(), pool, maintenance.Retention{History: step.keep}); err != nil {
			t.Fatal(err)
		}
		want(t, owner, `SELECT `+step.left+` FROM callq.call_limit_history`)
	}
}

// A week of ten limits and ten queues that are busy in every minute takes 20 MB at most. Here is a day of it.
func TestSize(t *testing.T) {
	t.Parallel()
	owner := pgtest.New(t)
	for what, columns := range map[string]string{
		"limit": "(minute, limit_name, used, capacity, waiting, refused, next_unit)", "queue": "(minute, queue, due, started, done, errors, wait_p50, wait_p95, run_p50, run_p95)",
	} {
		values := map[string]string{"limit": "7, 7, 7, 7, 7", "queue": "7, 7, 7, 7, 7, 7, 7, 7"}[what]
		exec(t, owner, `INSERT INTO callq.call_`+what+`_history `+columns+`
			SELECT now() + m * interval '1 min', 'name-' || i, `+values+` FROM generate_series(1, 1440) m, generate_series(10, 19) i ORDER BY m`)
	}
	want(t, owner, `SELECT 7 * (pg_total_relation_size('callq.call_limit_history') + pg_total_relation_size('callq.call_queue_history')) <= 20e6`)
}

// A limit was closed for as long as it was, whether that is over by the end of the minute or not, and whatever the audit says behind.
func TestClosed(t *testing.T) {
	t.Parallel()
	owner := pgtest.New(t)
	pool := pgtest.AsDaemon(t, owner)
	exec(t, owner, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, slack, send_within, queues, applied_at, applied_by, epoch)
		SELECT 'l' || i, 1, 100, '10 s', '1 ms', '1 s', '1 s', '{q}', now(), 'test', callq.epoch() FROM generate_series(0, 9) i`)
	// Seconds are those since the minute began; the texts' times until are as well.
	exec(t, owner, `INSERT INTO callq.call_audit (at, by, what, name, change)
		SELECT m + at * interval '1 s', '', what, name, replace(change, 'UNTIL', to_char((m + until * interval '1 s') AT TIME ZONE 'UTC', '"until" YYYY-MM-DD"T"HH24:MI:SS"Z"'))
		FROM (SELECT date_trunc('minute', now()) - interval '1 min' AS m) c, (VALUES
			(10.0, 'limit', 'l0', 'closed UNTIL', 12), (15.0, 'limit', 'l0', 'resumed', 0),
			(10.0, 'limit', 'l1', 'closed UNTIL: the API answered call 7: 429', 20),
			(10.0, 'limit', 'l2', 'closed UNTIL', 20), (40.0, 'limit', 'l2', 'paused', 0), (45.5, 'limit', 'l2', 'resumed', 0),
			(-30.0, 'limit', 'l3', 'paused UNTIL: I am here', 600), (5.0, 'limit', 'l3', 'resumed', 0), (7.0, 'limit', 'l3', 'closed UNTIL', 9),
			(10.0, 'queue', 'l4', 'paused: ', 0), (10.0, 'limit', 'l4', 'closed for key k until 2999-01-01T00:00:00Z', 0), (10.0, 'limit', 'l4', 'opened: closed', 0),
			(10.0, 'limit', 'l5', 'closed UNTIL', 12),
			(-50.0, 'limit', 'l6', 'closed UNTIL', -40), (70.0, 'limit', 'l6', 'paused', 0),
			(10.0, 'limit', 'l7', 'closed UNTIL', 300)) a (at, what, name, change, until)`)
	exec(t, owner, `INSERT INTO callq.call_pauses (what, name, until, reason, at, by, spell)
		SELECT 'limit', name, m + until * interval '1 s', '', m + at * interval '1 s', '', '1 s'
		FROM (SELECT date_trunc('minute', now()) - interval '1 min' AS m) c, (VALUES ('l7', 30, 300), ('l8', 50, 55)) p (name, at, until)`)
	exec(t, owner, `INSERT INTO callq.call_pauses (what, name, key, until, reason, at, by) VALUES ('limit', 'l4', 'k', 'infinity', '', now() - interval '1 hour', '')`)
	// l5's second and third closings are not in the audit, nor is l6's: from 12.1 s the probe is refused, and from 22.2 s; the next goes through.
	// What a refusal shows of a limit that has no closing in the audit is nothing.
	exec(t, owner, `INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, finished_at, outcome, queue, task, key, charged)
		SELECT row_number() OVER (), 1, 1, m, m + started * interval '1 s', m + finished * interval '1 s', outcome, 'q', 'http', '', jsonb_build_array(jsonb_build_object('limit', name, 'cost', 1))
		FROM (SELECT date_trunc('minute', now()) - interval '1 min' AS m) c, (VALUES
			('l0', 12.0, 12.1, 'refused'), ('l0', 30, 31, 'done'),
			('l5', 9.9, 10.0, 'refused'), ('l5', 12.0, 12.1, 'refused'), ('l5', 22.1, 22.2, 'refused'), ('l5', 32.3, 32.4, 'done'), ('l5', 32.5, 40, 'done'),
			('l6', -40, -20, 'refused'), ('l6', 4.5, 4.6, 'done'), ('l9', 1, 2, 'refused'), ('l9', 30, 31, 'done')) a (name, started, finished, outcome)`)
	if err := history.Note(t.Context(), pool, nil, 1); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := owner.QueryRow(t.Context(), `SELECT string_agg(limit_name || ' ' || closed, ', ' ORDER BY limit_name) FROM callq.call_limit_history`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	const closed = `l0 {"refused": 5}, l1 {"refused": 10}, l2 {"paused": 6, "refused": 10}, l3 {"paused": 5, "refused": 2}, l5 {"refused": 23}, l6 {"refused": 5}, l7 {"refused": 50}, l8 {"refused": 5}`
	if got != closed {
		t.Errorf("closed: %s\nwant    %s", got, closed)
	}
}

// What the ledger writes into the audit is what the history looks for there.
func TestClosedByAudit(t *testing.T) {
	t.Parallel()
	owner := pgtest.New(t)
	pool := pgtest.AsDaemon(t, owner)
	exec(t, owner, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, slack, send_within, queues, applied_at, applied_by, epoch)
		SELECT 'l' || i, 1, 100, '10 s', '1 ms', '1 s', '1 s', '{q}', now(), 'test', callq.epoch() FROM generate_series(1, 3) i`)
	if err := ledger.ShutLimit(t.Context(), pool, ledger.Shut{Limit: "l1", After: time.Hour, First: time.Second, Most: time.Hour, Reason: "429 until: closed"}); err != nil {
		t.Fatal(err)
	}
	for name, until := range map[string]*time.Duration{"l2": nil, "l3": new(time.Hour)} {
		if _, err := ledger.Pause(t.Context(), owner, ledger.Paused{What: "limit", Name: name, For: until, Author: ledger.Author{Reason: "until: closed"}}); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, owner, `UPDATE callq.call_audit SET at = date_trunc('minute', now()) - interval '50 s'`)
	for _, name := range []string{"l1", "l2", "l3"} {
		if _, err := ledger.Resume(t.Context(), owner, "limit", name, "", ledger.By("")); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, owner, `UPDATE callq.call_audit SET at = date_trunc('minute', now()) - interval '30 s' WHERE change = 'resumed'`)
	if err := history.Note(t.Context(), pool, nil, 1); err != nil {
		t.Fatal(err)
	}
	want(t, owner, `SELECT string_agg(closed::text, '' ORDER BY limit_name) = '{"refused": 20}{"paused": 20}{"paused": 20}' FROM callq.call_limit_history`)
}
