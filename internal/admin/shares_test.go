package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

// shared has a limit of 10 a minute, of which chat has 30 %, retries have 20 %, and the rest is for imports.
func shared(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, shares, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
		VALUES ('llm', 1, 10, '1 min', '60 ms', '{"chat": 30, "retries": 20, "rest": 50}', '1 s', '1 s', '{chat,import}', now(), '', callq.epoch(), now())`)
	exec(t, pool, `INSERT INTO callq.call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost)
		SELECT name, '{llm}', '', 3, '1 s', '1 m', '1 m', 'retry' FROM unnest('{chat,import}'::text[]) name`)
	exec(t, pool, `INSERT INTO callq.call_dispatchers VALUES ('d', 'host/1', '', now() + interval '1 h')`)
	exec(t, pool, `INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at) VALUES ('w', 'http', '{http}', '{}', 100, now(), now() + interval '1 h')`)
	return pool
}

// Limits show what each share uses and what waits in it; of a call that waits, its share is named.
func TestSharesOfLimits(t *testing.T) {
	t.Parallel()
	pool := shared(t)
	exec(t, pool, `INSERT INTO call_queue (queue) SELECT 'import' FROM generate_series(1, 20)`)
	exec(t, pool, `INSERT INTO call_queue (queue) SELECT 'chat' FROM generate_series(1, 3)`)
	exec(t, pool, `SET callq.repair = 'on'; UPDATE call_queue SET status = 'dispatched' WHERE id <= 4; TRUNCATE callq.call_inbox; UPDATE call_queue SET status = 'error' WHERE id <= 4;
		UPDATE call_queue SET run_at = created_at - interval '1 s' WHERE id > 4`)
	exec(t, pool, `INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs, shares)
		SELECT i, 1, 0, i, 7, now(), now(), now(), callq.epoch(), 'http', 'chat', 'http', '', '{llm}', '{""}', '{1}', '{"llm": "chat"}' FROM generate_series(101, 102) i`)
	exec(t, pool, `INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, finished_at, outcome, queue, task, key, charged, shares)
		SELECT i, 1, 7, now(), now(), now() - i * interval '10 s', 'done', 'import', 'http', '', '[]', '{"llm": "rest"}' FROM generate_series(1, 12) i`)
	d, err := ReadLimit(t.Context(), pool, "llm")
	if err != nil {
		t.Fatal(err)
	}
	want := []Share{{"chat", 30, 3, 2, 3}, {"rest", 50, 5, 5, 16}, {"retries", 20, 2, 0, 4}}
	if len(d.Parts) != 3 || d.Parts[0] != want[0] || d.Parts[1] != want[1] || d.Parts[2] != want[2] {
		t.Errorf("shares are %+v, want %+v", d.Parts, want)
	}
	exec(t, pool, `INSERT INTO callq.call_usage VALUES ('llm', '', now() + interval '1 s', 0, 10)`)
	client, err := callqueue.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	for id, share := range map[int64]string{1: "of it 20% is for the share retries", 10: "of it 50% is for the share rest", 22: "of it 30% is for the share chat"} {
		call, err := client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		why, err := Explain(t.Context(), pool, call)
		if err != nil || len(why.Reasons) == 0 || !strings.Contains(why.Reasons[0].Text, share) {
			t.Errorf("call %d: %+v, %v, want %q", id, why.Reasons, err, share)
		}
	}
}

// Forecasts give each share its part, and to the others what is left once it has no more calls.
func TestForecastsKnowShares(t *testing.T) {
	t.Parallel()
	pool := shared(t)
	exec(t, pool, `INSERT INTO call_queue (queue) SELECT 'import' FROM generate_series(1, 200)`)
	exec(t, pool, `SET callq.repair = 'on'; UPDATE call_queue SET status = 'dispatched' WHERE id <= 40; TRUNCATE callq.call_inbox; UPDATE call_queue SET status = 'error' WHERE id <= 40;
		UPDATE call_queue SET run_at = created_at - interval '1 s' WHERE id > 40`)
	exec(t, pool, `INSERT INTO call_queue (queue) SELECT 'chat' FROM generate_series(1, 30)`)
	about := func(what string, got *time.Time, minutes float64) {
		t.Helper()
		if got == nil {
			t.Errorf("%s: nobody can say", what)
		} else if in := time.Until(*got).Minutes(); in < 0.8*minutes-1.2 || in > 1.2*minutes+1.2 {
			t.Errorf("%s: in %.1f minutes, want %.1f", what, in, minutes)
		}
	}
	rows, err := ReadQueueForecasts(t.Context(), pool, nil, nil)
	if err != nil || len(rows) != 2 || rows[0].Waiting != 30 || rows[1].Waiting != 200 {
		t.Fatalf("%+v, %v", rows, err)
	}
	about("the last chat, 3 a minute", rows[0].StartsAt, 10)
	about("the last import, 270 in all", rows[1].StartsAt, 23)
	limits, err := ReadForecasts(t.Context(), pool, nil)
	if err != nil || len(limits) != 1 || limits[0].Waiting != 230 {
		t.Fatalf("%+v, %v", limits, err)
	}
	about("all", limits[0].Until, 23)
	client, err := callqueue.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	for id, minutes := range map[int64]float64{40: 17, 200: 23, 41 + 49: 10, 230: 10} {
		call, err := client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		why, err := Explain(t.Context(), pool, call)
		if err != nil {
			t.Fatal(err)
		}
		about("call "+why.Because, why.StartsAt, minutes)
	}
}
