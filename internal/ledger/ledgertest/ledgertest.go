// Package ledgertest makes open attempts for the tests of internal/ledger, its verify and callqueue.
package ledgertest

import (
	"context"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is a pool, or a transaction.
type DB interface {
	ledger.Beginner
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Trial runs a case in a transaction that it rolls back, so that many cases share one database.
func Trial(t *testing.T, pool *pgxpool.Pool, name string, run func(*testing.T, pgx.Tx)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		run(t, tx)
	})
}

// Open makes a call with an open attempt that has not started, charged to the limit "api".
func Open(t *testing.T, db DB) (id int64) {
	t.Helper()
	if err := db.QueryRow(t.Context(), openSQL).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

const openSQL = `
WITH rule AS (
    INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, slack, send_within, queues, applied_at, applied_by,
        complete_since, epoch)
    VALUES ('api', 1, 10, '10 s', '50 ms', '500 ms', '300 ms', '{default}', now(), 'test', now(), callq.epoch())
    ON CONFLICT DO NOTHING
), version AS (
    INSERT INTO callq.call_limit_versions (limit_name, version, effective_from, rate, window_size, slack, send_within, queues, applied_by)
    VALUES ('api', 1, now() - interval '1 hour', 10, '10 s', '500 ms', '300 ms', '{default}', 'test')
    ON CONFLICT DO NOTHING
), call AS (
    INSERT INTO public.call_queue (status, attempts, dispatched_at, unique_key) VALUES ('dispatched', 1, now(), gen_random_uuid()) RETURNING id
)
INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, send_within, epoch, pool,
    queue, task, key, limits, keys, costs)
SELECT id, 1, 0, 1, 1, now(), clock_timestamp(), clock_timestamp() + interval '1 h', '300 ms', callq.epoch(),
    'http', 'default', 'http', '', '{api}', '{""}', '{1}'
FROM call
RETURNING call_id`

// Request asks for the start of a call's first attempt.
func Request(id, token int64) ledger.StartRequest {
	return ledger.StartRequest{CallID: id, Attempt: 1, Token: token, Timeout: time.Second}
}

// Start starts attempts and returns the answers by their tokens.
func Start(t *testing.T, db DB, requests ...ledger.StartRequest) map[int64]ledger.StartAnswer {
	t.Helper()
	answers, err := ledger.Start(t.Context(), db, "w", requests)
	if err != nil {
		t.Fatal(err)
	}
	byToken := map[int64]ledger.StartAnswer{}
	for _, a := range answers {
		byToken[a.Token] = a
	}
	if len(byToken) != len(requests) {
		t.Fatalf("%d answers to %d requests", len(byToken), len(requests))
	}
	return byToken
}

// Close closes one attempt.
func Close(t *testing.T, db DB, c ledger.Closing) {
	t.Helper()
	if closed, err := new(ledger.Closer).Close(t.Context(), db, []ledger.Closing{c}); err != nil || len(closed) != 1 || closed[0] != c.CallID {
		t.Fatalf("Close = %v, %v", closed, err)
	}
}

// Exec runs a statement.
func Exec(t *testing.T, db DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// Want fails the test unless the query answers true.
func Want(t *testing.T, db DB, sql string, args ...any) {
	t.Helper()
	var ok bool
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&ok); err != nil || !ok {
		t.Errorf("not so (%v): %s", err, sql)
	}
}

// AwaitLocks waits until so many sessions of the database wait for a lock.
func AwaitLocks(t *testing.T, pool *pgxpool.Pool, want int) {
	t.Helper()
	waiting := 0
	for end := time.Now().Add(time.Minute); waiting < want; {
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity, pg_sleep(0.005)
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		if err != nil || time.Now().After(end) {
			t.Fatalf("%d sessions wait for a lock, want %d (%v)", waiting, want, err)
		}
	}
}
