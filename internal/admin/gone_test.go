package admin

import (
	"slices"
	"strings"
	"testing"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/pgtest"
)

// A queue that names a limit whose row somebody deleted is not claimed from. Whoever asks is told that, and no time.
func TestLimitThatIsGone(t *testing.T) {
	t.Parallel()
	const gone = "queue pay names limit gone, which is gone"
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO callq.call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost)
		VALUES ('pay', '{api,gone}', '', 3, '1 s', '1 m', '1 m', 'retry')`)
	exec(t, pool, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, slack, send_within, queues, applied_at, applied_by, complete_since, epoch)
		VALUES ('api', 1, 10, '1 s', '1 ms', '0', '1 s', '{pay}', now(), 'test', now(), callq.epoch())`)
	exec(t, pool, `INSERT INTO callq.call_dispatchers VALUES ('d', 'host/1', '', now() + interval '1 h')`)
	exec(t, pool, `INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
		VALUES ('w', 'http', '{http}', '{}', 4, now(), now() + interval '1 h')`)
	exec(t, pool, `INSERT INTO call_queue (queue) VALUES ('pay')`)
	client, err := callqueue.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	call, err := client.Get(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}

	why, err := Explain(t.Context(), pool, call)
	if err != nil || len(why.Reasons) != 1 || why.Reasons[0].Code != "no_limit" || why.StartsAt != nil || !strings.Contains(why.Because, gone) {
		t.Errorf("why: %+v %+v %v", why.Reasons, why.Foresight, err)
	}
	limits, err := ReadForecasts(t.Context(), pool, nil)
	if err != nil || len(limits) != 1 || limits[0].Lasts != nil || limits[0].State != gone {
		t.Errorf("the forecast of limits: %+v %v", limits, err)
	}
	queues, err := ReadQueueForecasts(t.Context(), pool, nil, nil)
	if err != nil || len(queues) != 1 || queues[0].StartsAt != nil || !strings.Contains(queues[0].Because, gone) {
		t.Errorf("the forecast of queues: %+v %v", queues, err)
	}
	key, err := ReadQueueForecasts(t.Context(), pool, new("pay"), new("k"))
	if err != nil || len(key) != 1 || key[0].StartsAt != nil || !strings.Contains(key[0].Because, gone) {
		t.Errorf("the forecast of a key: %+v %v", key, err)
	}
	status, err := ReadStatus(t.Context(), pool)
	if err != nil || !slices.Equal(status.Queues[0].HeldBy, []string{"gone"}) ||
		!slices.ContainsFunc(status.Problems(), func(f Finding) bool { return strings.Contains(f.What, gone) && f.Fix == "callq config apply" }) {
		t.Errorf("status: %+v %v", status.Queues, err)
	}
}
