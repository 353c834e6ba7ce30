package migrations_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/pgtest"
)

// plain is a pool of somebody who does not say that they repair rows.
func plain(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return pgtest.Another(t, pgtest.New(t), map[string]string{"callq.repair": "off"})
}

func run(t *testing.T, pool *pgxpool.Pool, sql string) {
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

// What ORMs insert for what nobody has set means the default, by every way in.
func TestWhatIsInserted(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"empty texts":          `INSERT INTO call_queue (status, queue, task, unique_key, key) SELECT '', '', '', '', '' FROM generate_series(1, 3)`,
		"empty texts, ignored": `INSERT INTO call_queue (status, queue, task, unique_key) SELECT '', '', '', '' FROM generate_series(1, 3) ON CONFLICT DO NOTHING`,
		"one by one": `INSERT INTO call_queue (unique_key) VALUES (''); INSERT INTO call_queue (unique_key) VALUES ('');
			INSERT INTO call_queue (unique_key) VALUES ('')`,
		"NULLs": `INSERT INTO call_queue (queue, task, unique_key) SELECT NULL, NULL, NULL FROM generate_series(1, 3)`,
		"without defaults": `ALTER TABLE call_queue ALTER status DROP DEFAULT, ALTER status DROP NOT NULL;
			INSERT INTO call_queue (key) SELECT 'k' FROM generate_series(1, 3)`,
		"a copy of a call that had failed": `INSERT INTO call_queue (status, attempts, failed_count, dispatched_at, finished_at, error_message, retried_after)
			SELECT 'error', 3, 3, now(), now(), 'busy', 2 FROM generate_series(1, 3)`,
		"one after the other": `INSERT INTO call_queue (status, queue) VALUES ('', ''); INSERT INTO call_queue (task) VALUES (''); INSERT INTO call_queue (status, attempts) VALUES ('new', 2)`,
		"as they are":         `INSERT INTO call_queue (status, attempts, failed_count, queue, task) SELECT 'new', 0, 0, 'default', 'http' FROM generate_series(1, 3)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := plain(t)
			run(t, pool, sql)
			want(t, pool, `SELECT count(*) = 3 AND bool_and(status = 'new' AND attempts = 0 AND failed_count = 0 AND coalesce(queue, 'default') = 'default'
				AND coalesce(task, 'http') = 'http' AND unique_key IS NULL AND finished_at IS NULL AND error_message IS NULL AND retried_after IS NULL) FROM call_queue`)
			want(t, pool, `SELECT sum(calls) = 3 AND bool_and(queue = 'default' AND task = 'http') FROM callq.call_inbox`)
		})
	}
	pool := plain(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO call_queue (status) VALUES ('new'), ('pending')`)
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "22023" || e.Message != `"pending" is no status of a call` {
		t.Errorf("a status that is none: %v", err)
	}
	run(t, pool, `INSERT INTO call_queue (status, finished_at) VALUES ('done', now())`) // an import
	want(t, pool, `SELECT status = 'done' AND NOT EXISTS (SELECT FROM callq.call_inbox) FROM call_queue`)
}

// callq's own columns keep to what callq does. Whoever writes others, or all as they are, may.
func TestWhatIsUpdated(t *testing.T) {
	t.Parallel()
	// Of each status one call: new, dispatched, error, done, failed, cancelled; and one that was tried again.
	const calls = `INSERT INTO call_queue (status, attempts, failed_count, dispatched_at, finished_at, failed_at, retried_after, unique_key) VALUES
		('new', 0, 0, NULL, NULL, NULL, NULL, 'n'), ('dispatched', 1, 0, now(), NULL, NULL, NULL, 'd'), ('error', 1, 1, now(), now(), NULL, NULL, 'e'),
		('done', 1, 0, now(), now(), NULL, NULL, NULL), ('failed', 2, 2, now(), now(), now(), NULL, NULL),
		('cancelled', 0, 0, NULL, now(), NULL, NULL, NULL), ('new', 1, 0, now(), NULL, NULL, 1, NULL);
		TRUNCATE callq.call_inbox`
	for _, c := range []struct {
		sql    string
		column string // that is refused; "": none
	}{
		{`UPDATE call_queue SET status = 'new', attempts = 0, failed_count = 0, dispatched_at = NULL, finished_at = NULL WHERE status = 'done'`, "status"},
		{`UPDATE call_queue SET status = 'new', attempts = 0 WHERE status = 'dispatched'`, "attempts"},
		{`UPDATE call_queue SET status = 'new' WHERE status = 'done'`, "status"},
		{`UPDATE call_queue SET status = 'new', finished_at = NULL WHERE status = 'cancelled'`, "status"},
		{`UPDATE call_queue SET status = 'done' WHERE status = 'new'`, "status"},
		{`UPDATE call_queue SET status = 'done', finished_at = now() WHERE status = 'new'`, "status"},
		{`UPDATE call_queue SET status = 'done' WHERE status = 'dispatched'`, "status"},
		{`UPDATE call_queue SET status = 'cancelled' WHERE status = 'new'`, "status"},
		{`UPDATE call_queue SET status = 'failed', finished_at = now() WHERE status = 'cancelled'`, "status"},
		{`UPDATE call_queue SET status = 'dispatched' WHERE status = 'new' AND attempts = 0`, "status"},
		{`UPDATE call_queue SET status = 'pending' WHERE status = 'new'`, "status"},
		{`UPDATE call_queue SET status = '' WHERE status = 'new'`, "status"},
		{`UPDATE call_queue SET attempts = attempts + 1 WHERE status = 'new'`, "attempts"},
		{`UPDATE call_queue SET attempts = 0`, "attempts"},
		{`UPDATE call_queue SET failed_count = 0 WHERE status = 'error'`, "failed_count"},
		{`UPDATE call_queue SET finished_at = NULL WHERE status = 'done'`, "finished_at"},
		{`UPDATE call_queue SET status = status, attempts = attempts, failed_count = failed_count, finished_at = finished_at, unique_key = unique_key`, ""},
		{`UPDATE call_queue SET queue = 'other', task = 'own', key = 'k', priority = 1, run_at = now(), cost = 2, call_data = '{"a": 1}', max_attempts = 4, expires_at = now()`, ""},
		{`UPDATE call_queue SET status = 'cancelled', finished_at = now(), unique_key = NULL WHERE status = 'new'`, ""},
		{`UPDATE call_queue SET status = 'new' WHERE status = 'dispatched'`, ""},
		{`UPDATE call_queue SET status = 'new', failed_count = 0, retried_after = attempts, finished_at = NULL, failed_at = NULL WHERE status = 'failed'`, ""},
		{`SET LOCAL callq.repair = on; UPDATE call_queue SET status = 'new' WHERE status = 'done'`, ""},
	} {
		t.Run(c.sql, func(t *testing.T) {
			t.Parallel()
			pool := plain(t)
			run(t, pool, `SET LOCAL callq.repair = on; `+calls)
			_, err := pool.Exec(t.Context(), c.sql)
			e, _ := errors.AsType[*pgconn.PgError](err)
			switch {
			case c.column == "" && err != nil:
				t.Error(err)
			case c.column != "" && (e == nil || e.Code != "CQ002" || e.ColumnName != c.column || e.Hint == "" || e.Detail == ""):
				t.Errorf("%+v, want CQ002 of %s", err, c.column)
			}
		})
	}
}

// An ended call holds no unique key, whatever is written: else nobody could insert its next call.
func TestEndedCallsHoldNoKey(t *testing.T) {
	t.Parallel()
	pool := plain(t)
	run(t, pool, `INSERT INTO call_queue (status, attempts, finished_at) SELECT s, 1, now() FROM unnest('{done,failed,cancelled}'::text[]) s`)
	run(t, pool, `UPDATE call_queue SET unique_key = 'k' || id, key = 'other'`)
	want(t, pool, `SELECT bool_and(unique_key IS NULL AND key = 'other') FROM call_queue`)
	run(t, pool, `SET LOCAL callq.repair = on; INSERT INTO call_queue (status, attempts, dispatched_at, unique_key) VALUES ('dispatched', 1, now(), 'mine')`)
	run(t, pool, `UPDATE call_queue SET status = 'done', finished_at = now() WHERE status = 'dispatched'`) // as callq would, but for the key
	want(t, pool, `SELECT count(*) = 0 FROM call_queue WHERE unique_key IS NOT NULL`)
	run(t, pool, `INSERT INTO call_queue (unique_key) VALUES ('mine')`)
}

// What is empty means the default after an UPDATE too: else a call would wait in a queue of no name, for a worker of no task, and a
// second one of its queue could not have its key cleared.
func TestWhatIsUpdatedToNothing(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"at once":           `UPDATE call_queue SET queue = '', task = '', unique_key = '' WHERE id = 1; UPDATE call_queue SET queue = '', task = '', unique_key = '' WHERE id = 2`,
		"one after another": `UPDATE call_queue SET unique_key = ''  WHERE id = 1; UPDATE call_queue SET unique_key = '' WHERE id = 2; UPDATE call_queue SET task = ''; UPDATE call_queue SET queue = ''`,
		"put off too":       `UPDATE call_queue SET queue = '', task = '', unique_key = NULL, run_at = now() + interval '1 h'; UPDATE call_queue SET run_at = now()`,
		"while repairing":   `SET callq.repair = on; UPDATE call_queue SET queue = '', task = '', unique_key = id; UPDATE call_queue SET unique_key = NULL`,
		"on conflict": `INSERT INTO call_queue (queue, unique_key) VALUES ('q', 'u1'), ('q', 'u2')
			ON CONFLICT (coalesce(queue, 'default'), unique_key) WHERE unique_key IS NOT NULL DO UPDATE SET queue = '', task = '', unique_key = NULL`,
		"as it ends and waits again": `UPDATE call_queue SET queue = '', status = 'cancelled', finished_at = now();
			UPDATE call_queue SET task = '', status = 'new', failed_count = 0, retried_after = attempts, finished_at = NULL; UPDATE call_queue SET unique_key = NULL`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := plain(t)
			run(t, pool, `INSERT INTO call_queue (queue, task, unique_key) VALUES ('q', 't', 'u1'), ('q', 't', 'u2'); DELETE FROM callq.call_inbox`)
			run(t, pool, sql)
			want(t, pool, `SELECT count(*) = 2 AND bool_and(status = 'new' AND coalesce(queue, 'default') = 'default' AND coalesce(task, 'http') = 'http'
				AND unique_key IS NULL) FROM call_queue`)
			want(t, pool, `SELECT NOT EXISTS (SELECT FROM callq.call_inbox WHERE queue = '' OR task = '')`)
			want(t, pool, `SELECT count(DISTINCT i.id) = 2 FROM callq.call_inbox n CROSS JOIN unnest(n.ids) i (id) JOIN call_queue c ON c.id = i.id
				WHERE n.queue = coalesce(c.queue, 'default') AND n.task = coalesce(c.task, 'http') AND n.at = c.run_at`)
		})
	}
}
