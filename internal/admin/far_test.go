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
	exec(t, pool, `INSERT INTO callq.call_limits (name, version, rate, window_size, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
		VALUES ('api', 1, 10, '1 h', '1 s', '1 s', '{default}', now(), '', callq.epoch(), now())`)
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
