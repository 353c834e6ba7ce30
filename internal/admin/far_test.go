package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/forecast"
	"github.com/callq/callq/internal/pgtest"
)

// A call that is due in thousands of years, or never, is told so at once, and harms no forecast of others.
func TestCallsOfFarYears(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
		VALUES ('api', 1, 10, '1 h', '3.6 s', '1 s', '1 s', '{default}', now(), '', callq.epoch(), now())`)
	exec(t, pool, `INSERT INTO callq.call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost, hours)
		VALUES ('default', '{api}', '', 3, '1 s', '1 m', '1 m', 'retry', 'Mon 09:00-09:01 UTC')`)
	exec(t, pool, `INSERT INTO callq.call_dispatchers VALUES ('d', 'host/1', '', now() + interval '1 h')`)
	exec(t, pool, `INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at) VALUES ('w', 'http', '{http}', '{}', 1, now(), now() + interval '1 h')`)
	exec(t, pool, `INSERT INTO call_queue (run_at, expires_at) VALUES (now(), NULL), ('infinity', NULL), ('9999-12-31', 'infinity'), ('2200-01-01', NULL), ('-infinity', NULL)`)
	exec(t, pool, `INSERT INTO call_queue (run_at, key) SELECT 'infinity', 'k' || i FROM generate_series(1, 50) i`)
	exec(t, pool, `INSERT INTO call_queue (run_at, key) SELECT '9999-12-31', 'k' || i FROM generate_series(1, 50) i`)
	for id, because := range map[int64]string{
		1: "in about ", 2: "unknown: it is not due until 9999-12-31 23:59:59Z", 3: "unknown: it is not due until 9999-12-31 00:00:00Z",
		4: "unknown: it is not due until 2200-01-01", 5: "in about ",
	} {
		client, err := callqueue.New(pool)
		if err != nil {
			t.Fatal(err)
		}
		call, err := client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		why, err := Explain(t.Context(), pool, call)
		if err != nil || !strings.HasPrefix(why.Because, because) {
			t.Errorf("call %d: %q, %v, want %q", id, why.Because, err, because)
		}
	}
	if _, err := ReadForecasts(t.Context(), pool, nil); err != nil {
		t.Error(err)
	}
	if f, err := ReadQueueForecasts(t.Context(), pool, nil, nil); err != nil || f[0].StartsAt == nil || f[0].StartsAt.After(time.Now().Add(forecast.Horizon)) {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := ReadStatus(t.Context(), pool); err != nil {
		t.Error(err)
	}
}

// A call that nothing leads to is promised no time, however it came there; one that is found by any way is.
func TestCallsInNoFlow(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO callq.call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost)
		VALUES ('default', '{}', '', 3, '1 s', '1 m', '1 m', 'retry')`)
	exec(t, pool, `INSERT INTO callq.call_dispatchers VALUES ('d', 'host/1', '', now() + interval '1 h')`)
	exec(t, pool, `INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at) VALUES ('w', 'http', '{http}', '{}', 1, now(), now() + interval '1 h')`)
	exec(t, pool, `INSERT INTO call_queue (key, priority) VALUES ('inbox', 3)`)
	exec(t, pool, `INSERT INTO call_queue (key) VALUES ('consumed'), ('first'), ('later')`)
	exec(t, pool, `DELETE FROM callq.call_inbox WHERE 2 = ANY (ids)`)
	exec(t, pool, `INSERT INTO callq.call_flows (queue, key, priority, task, calls, consumed, tail) VALUES
		('default', 'consumed', 5, 'http', 1, 1, 1), ('default', 'first', 5, 'http', 1, 0, 1), ('default', 'later', 5, 'http', 2, 1, 2)`)
	exec(t, pool, `INSERT INTO callq.call_segments (queue, key, priority, task, seq, at, ids) VALUES
		('default', 'consumed', 5, 'http', 1, now(), '{2,99}'), ('default', 'first', 5, 'http', 1, now(), '{3}'),
		('default', 'later', 5, 'http', 1, now(), '{98,97}'), ('default', 'later', 5, 'http', 2, now(), '{4}')`)
	exec(t, pool, `ALTER TABLE call_queue DISABLE TRIGGER USER`)
	exec(t, pool, `INSERT INTO call_queue (key) VALUES ('none')`)
	exec(t, pool, `INSERT INTO call_queue (key, run_at) VALUES ('none', now() + interval '1 h')`)
	client, err := callqueue.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	for id, lost := range map[int64]bool{1: false, 2: true, 3: false, 4: false, 5: true, 6: true} {
		call, err := client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		why, err := Explain(t.Context(), pool, call)
		if is := strings.Contains(why.Because, "no flow names it"); err != nil || is != lost || lost && why.StartsAt != nil {
			t.Errorf("call %d: %+v, %v", id, why, err)
		}
	}
}
