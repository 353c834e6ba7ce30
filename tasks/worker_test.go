package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/redistest"
	"github.com/callq/callq/tasks"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A start that is answered past the attempt's timeout, to a worker that was frozen say, comes too late:
// by then the attempt may have been given up, and its handler must not begin.
func TestStartAnsweredPastTheTimeout(t *testing.T) {
	t.Parallel()
	called := make(chan int, 10)
	b := newBench(t, map[string]tasks.Handler{"mine": func(_ context.Context, call *tasks.Call) error {
		called <- call.Attempt
		return nil
	}})
	b.exec(`
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.7); RETURN NEW; END';
		CREATE TRIGGER slow BEFORE UPDATE ON callq.call_open FOR EACH ROW
			WHEN (OLD.attempt = 1 AND OLD.started_at IS NULL AND NEW.started_at IS NOT NULL) EXECUTE FUNCTION slow()`)
	id := b.insertCall(callqueue.Call{Queue: "short", Task: "mine"})
	b.ended(id, callqueue.StatusDone)
	b.await(`SELECT outcome = 'done' FROM call_attempts WHERE call_id = $1 AND attempt = $2`, id, <-called)
	if len(called) > 0 {
		t.Errorf("the handler was called for %d more attempts", len(called))
	}
	b.await(`SELECT outcome = 'not_sent' AND charged = '[]' FROM call_attempts WHERE call_id = $1 AND attempt = 1`, id)
}

func TestEndings(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	b := newBench(t, map[string]tasks.Handler{
		"nil":   func(_ context.Context, call *tasks.Call) error { return call.SetResult(map[string]int{"sum": 3}) },
		"error": func(context.Context, *tasks.Call) error { return errors.New("it\x00failed\xff") },
		"permanent": func(context.Context, *tasks.Call) error {
			return fmt.Errorf("x: %w", tasks.Permanent(errors.New("gone")))
		},
		"later":    func(context.Context, *tasks.Call) error { return tasks.RetryAfter(hour, errors.New("busy")) },
		"unsent":   func(context.Context, *tasks.Call) error { return tasks.NotSent(errors.New("no route")) },
		"panic":    func(context.Context, *tasks.Call) error { panic("boom") },
		"exit":     func(context.Context, *tasks.Call) error { runtime.Goexit(); return nil },
		"slow":     func(ctx context.Context, _ *tasks.Call) error { <-ctx.Done(); return ctx.Err() },
		"bad data": func(_ context.Context, call *tasks.Call) error { var n int; return call.Bind(&n) },
		"result": func(_ context.Context, call *tasks.Call) error {
			return call.SetResult(map[string]any{"n": 7, "nul": "\x00"})
		},
		"nil error": func(context.Context, *tasks.Call) error { var none *url.Error; return none },
		"large":     func(_ context.Context, call *tasks.Call) error { return call.SetResult(strings.Repeat("x", 1<<20)) },
	})
	cases := []struct {
		task    string
		status  callqueue.Status
		outcome string
		message string
		charges int
		runs    int // attempts in all
	}{
		{"nil", callqueue.StatusDone, "done", "", 1, 1},
		{"error", callqueue.StatusFailed, "error", "itfailed�", 1, 2},
		{"permanent", callqueue.StatusFailed, "permanent", "x: gone", 1, 1},
		{"later", callqueue.StatusError, "error", "busy", 1, 1},
		{"panic", callqueue.StatusFailed, "error", "panic: boom", 1, 2},
		{"exit", callqueue.StatusFailed, "lost", "the worker was lost: no outcome by the deadline", 1, 2},
		{"slow", callqueue.StatusFailed, "error", "timed out after 500ms: context deadline exceeded", 1, 2},
		{"bad data", callqueue.StatusFailed, "permanent", "read call_data: json: cannot unmarshal object into Go value of type int", 1, 1},
		{"large", callqueue.StatusFailed, "permanent", "write result: it has 1048578 bytes; 1048576 are allowed", 1, 1},
		{"result", callqueue.StatusDone, "done", "", 1, 1}, // jsonb cannot hold the result: dropped, not retried for ever
		{"nil error", callqueue.StatusFailed, "error", "panic: runtime error: invalid memory address or nil pointer dereference", 1, 2},
	}
	for _, c := range cases {
		t.Run(c.task, func(t *testing.T) {
			call := callqueue.Call{Task: c.task}
			if c.task == "slow" || c.task == "exit" {
				call.Queue = "short"
			}
			id := b.insertCall(call)
			outcome, message, charges := b.ended(id, c.status)
			if outcome != c.outcome || message != c.message || charges != c.charges {
				t.Errorf("got %s %q charged %d, want %s %q charged %d", outcome, message, charges, c.outcome, c.message, c.charges)
			}
			b.await(`SELECT coalesce(error_message, '') = $2 FROM call_queue WHERE id = $1`, id, c.message)
			b.await(`SELECT count(*) = $2 FROM call_attempts WHERE call_id = $1 AND outcome <> 'not_sent'`, id, c.runs) // a start may have come too late
		})
	}
	b.await(`SELECT run_at > now() + interval '55 min' FROM call_queue WHERE task = 'later'`)
	b.await(`SELECT result = '{"sum": 3}' FROM call_attempts WHERE task = 'nil'`)
	// A handler that did well has had its answer, but for the time its start took to be asked for; one
	// that gave up may have left a request on its way.
	b.await(`SELECT bool_and(CASE outcome WHEN 'done' THEN arrived_by < finished_at + interval '50 s' ELSE arrived_by >= started_at + interval '1 min' END)
		FROM call_attempts WHERE charged <> '[]'`)

	unsent := b.insert("unsent")
	b.await(`SELECT attempts > 2 AND failed_count = 0 FROM call_queue WHERE id = $1`, unsent)
	b.await(`SELECT bool_and(outcome = 'not_sent' AND charged = '[]') FROM call_attempts WHERE call_id = $1`, unsent)
}

// Whatever Redis repeats, a handler runs once per attempt.
//
//callq:guarantee 2
func TestRepeatedDeliveries(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	ran := map[string]int{}
	b := newBench(t, map[string]tasks.Handler{"count": func(_ context.Context, call *tasks.Call) error {
		mu.Lock()
		defer mu.Unlock()
		ran[fmt.Sprint(call.ID, "/", call.Attempt)]++
		return nil
	}})
	const n = 40
	for range n {
		refs := []handoff.Ref{{CallID: b.insert("count"), Attempt: 1}}
		for range 3 {
			b.send("count", refs)
		}
	}
	b.await(`SELECT count(*) = $1 FROM call_queue WHERE status = 'done'`, n)
	b.drain()
	if len(ran) != n {
		t.Errorf("%d attempts ran, want %d", len(ran), n)
	}
	for attempt, times := range ran {
		if times != 1 {
			t.Errorf("attempt %s ran %d times", attempt, times)
		}
	}
}

func TestUnreadableMessage(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]tasks.Handler{"ok": func(context.Context, *tasks.Call) error { return nil }})
	client, asynqQueue := asynq.NewClientFromRedisClient(b.redis), asynq.Queue(b.broker().Queue(b.workerPool()))
	for _, payload := range []string{"", "[", `{}`, `7`, `["1", 1]`, `[1]`, `[999999, 1]`, `[]`} {
		if _, err := client.Enqueue(asynq.NewTask("callq:ok", []byte(payload)), asynqQueue); err != nil {
			t.Fatal(err)
		}
	}
	b.ended(b.insert("ok"), callqueue.StatusDone)
}

// Draining finishes and records what runs, hands back what waits for a slot, and leaves nothing behind.
func TestDrain(t *testing.T) {
	t.Parallel()
	begun, finish := make(chan struct{}, 100), make(chan struct{})
	b := newBench(t, map[string]tasks.Handler{"hold": func(context.Context, *tasks.Call) error {
		begun <- struct{}{}
		<-finish
		return nil
	}})
	b.exec(`INSERT INTO call_queue (task) SELECT 'hold' FROM generate_series(1, 4)`)
	for range 4 {
		<-begun
	}
	for range 8 { // no dispatcher hands over what no slot is free for; but slots may be taken meanwhile
		b.send("hold", []handoff.Ref{{CallID: b.claimByHand(), Attempt: 1}})
	}
	drained := make(chan struct{})
	go func() { b.drain(); close(drained) }()
	b.await(`SELECT count(*) = 4 FROM callq.call_open WHERE started_at IS NOT NULL`)
	close(finish)
	select {
	case <-drained:
	case <-time.After(2 * time.Minute):
		t.Fatal("the worker had not drained in 2 minutes")
	}
	b.await(`SELECT count(*) = 4 FROM call_queue WHERE status = 'done'`)
	b.await(`SELECT count(*) = 0 FROM callq.call_open WHERE started_at IS NOT NULL`)
	if n := len(begun); n > 0 {
		t.Errorf("%d handlers ran after draining began", n)
	}
}

// A call that was deleted, cancelled or expired after its attempt was handed over is not made.
func TestHandedOverAndNotMade(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, change, status, message string }{
		{"deleted", `DELETE FROM call_queue WHERE id = $1`, "", "not sent: its call was deleted or cancelled"},
		{"cancelled", `UPDATE call_queue SET status = 'cancelled' WHERE id = $1`, "cancelled", "not sent: its call was deleted or cancelled"},
		{"expired", `UPDATE call_queue SET expires_at = now() WHERE id = $1`, "failed", "not sent: its call has expired"},
	}
	var ran atomic.Int32
	b := newBench(t, map[string]tasks.Handler{"count": func(context.Context, *tasks.Call) error { ran.Add(1); return nil }})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			id := b.claimByHand()
			b.exec(c.change, id)
			b.send("count", []handoff.Ref{{CallID: id, Attempt: 1}})
			b.await(`SELECT outcome = 'not_sent' AND charged = '[]' AND error = $2 FROM call_attempts WHERE call_id = $1`, id, c.message)
			b.await(`SELECT coalesce((SELECT status FROM call_queue WHERE id = $1), '') = $2`, id, c.status)
		})
	}
	if ran.Load() != 0 {
		t.Errorf("%d calls were made", ran.Load())
	}
}

// What is too much as text does not reach the worker, and what cannot be read spoils no other: its attempt ends with the reason.
//
//callq:guarantee 12
func TestCallDataIsTooMuch(t *testing.T) {
	t.Parallel()
	const large = "call_data has more bytes than calls.max_data allows"
	numbers := func(n int) string {
		return fmt.Sprintf(`SELECT jsonb_agg(jsonb '1e131071') FROM generate_series(1, %d)`, n)
	}
	api := serve(t, func(http.ResponseWriter, *http.Request) {})
	b := newBench(t, map[string]tasks.Handler{"count": func(_ context.Context, call *tasks.Call) error {
		return call.SetResult(len(call.Data))
	}})
	b.exec(`CREATE FUNCTION octet_length(data text) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN
		IF data LIKE '%unreadable%' THEN RAISE EXCEPTION 'broken' USING ERRCODE = 'data_corrupted'; END IF;
		RETURN pg_catalog.octet_length(data); END $$`) // in the place of Postgres's own function
	b.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$`)
	b.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	for name, c := range map[string]struct{ data, reason string }{
		"a few bytes of numbers":         {numbers(20), large},
		"numbers packed":                 {numbers(2100), large},
		"text that takes long to make":   {numbers(7500), large},
		"text that Postgres cannot make": {numbers(9000), large},
		"numbers with many zeros":        {`SELECT jsonb_agg(jsonb '0e-16383') FROM generate_series(1, 66000)`, large},
		"stored in more than 7 MB":       {`SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 250000) AS i`, large},
		"a byte too much":                {`SELECT to_jsonb(repeat('x', 262143))`, large},
		"data that cannot be read":       {`SELECT jsonb '{"unreadable": "data of some length"}'`, "its row cannot be read: broken"},
	} {
		for _, task := range []string{"count", "http"} {
			t.Run(name+", "+task, func(t *testing.T) {
				var refs []handoff.Ref
				for range 3 {
					refs = append(refs, handoff.Ref{CallID: b.claimByHand(), Attempt: 1})
				}
				first, bad, last := refs[0].CallID, refs[1].CallID, refs[2].CallID
				b.exec(`UPDATE call_queue SET task = $2, call_data = jsonb_build_object('url', $3::text) WHERE id BETWEEN $1 AND $1 + 2`, first, task, api.URL)
				b.exec(`UPDATE callq.call_open SET task = $2 WHERE call_id BETWEEN $1 AND $1 + 2`, first, task)
				b.exec(`UPDATE call_queue SET call_data = (`+c.data+`) WHERE id = $1`, bad)
				b.send(task, refs)
				outcome, message, charges := b.ended(bad, callqueue.StatusFailed)
				if outcome != "permanent" || message != c.reason || charges != 0 {
					t.Errorf("got %s %q charged %d, want permanent %q", outcome, message, charges, c.reason)
				}
				for _, id := range []int64{first, last} {
					b.ended(id, callqueue.StatusDone)
				}
			})
		}
	}
	fits := b.claimByHand()
	b.exec(`UPDATE call_queue SET call_data = to_jsonb(repeat('x', 262142)) WHERE id = $1`, fits)
	b.send("count", []handoff.Ref{{CallID: fits, Attempt: 1}})
	b.await(`SELECT result = '262144' FROM call_attempts WHERE call_id = $1`, fits)
}

// A worker and a dispatcher that are given a pool as pgxpool makes it use connections of their own, set as their
// statements need it: with the pool's own, calls take ten times as long, and starts are as durable as the server is set to.
func TestOwnConnections(t *testing.T) {
	t.Parallel()
	b := &bench{t: t, pool: pgtest.New(t), redis: redistest.New(t)}
	given, err := pgxpool.New(t.Context(), b.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(given.Close)
	d, err := dispatcher.New(dispatcher.Config{Pool: given, Redis: b.redis, Policy: policy.Policy{
		Limits: []policy.Limit{{Name: "api", Rate: limit.Rate{Units: 10, Window: time.Second}}},
		Queues: []policy.Queue{queue("default", time.Minute)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if b.worker, err = tasks.New(tasks.Config{Pool: given, Redis: b.redis, Concurrency: 4}); err != nil {
		t.Fatal(err)
	}
	b.worker.Handle("ok", func(context.Context, *tasks.Call) error { return nil })
	b.run(d.Run)
	b.run(b.worker.Run)
	if b.client, err = callqueue.New(b.pool); err != nil {
		t.Fatal(err)
	}
	b.ended(b.insert("ok"), callqueue.StatusDone)
	if n := given.Stat().AcquireCount(); n > 0 {
		t.Errorf("%d statements went through the pool that was given", n)
	}
}

// Each claim reads the labels of all workers, so they are bounded, in the table too.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	pool, redis := pgtest.New(t), redistest.New(t)
	many := slices.Repeat([]string{strings.Repeat("x", 255)}, 65)
	for _, c := range []struct {
		labels []string
		fits   bool
	}{{nil, true}, {many[:64], true}, {many, false}, {[]string{strings.Repeat("x", 256)}, false}} {
		_, err := tasks.New(tasks.Config{Pool: pool, Redis: redis, Labels: c.labels})
		if (err == nil) != c.fits {
			t.Errorf("%d labels: %v", len(c.labels), err)
		}
	}
	register := func(labels []string) error {
		_, err := pool.Exec(t.Context(), `INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
			VALUES (gen_random_uuid(), 'http', '{http}', $1, 1, now(), now())`, labels)
		return err
	}
	if err := register(many[:64]); err != nil {
		t.Error(err)
	}
	for _, labels := range [][]string{many, {strings.Repeat("x", 64*255+1)}} {
		if err := register(labels); err == nil || !strings.Contains(err.Error(), "call_workers_labels_check") {
			t.Errorf("%d labels in the table: %v", len(labels), err)
		}
	}
}

// What was claimed before its units came free is made once they have, whether the message says so or only the ledger.
//
//callq:guarantee 1
func TestWaitsForUnits(t *testing.T) {
	t.Parallel()
	made := make(chan time.Time, 1)
	b := newBench(t, map[string]tasks.Handler{"count": func(context.Context, *tasks.Call) error {
		made <- time.Now()
		return nil
	}})
	api := serve(t, func(http.ResponseWriter, *http.Request) { made <- time.Now() })
	for _, task := range []string{"count", "http"} {
		for _, said := range []time.Duration{limit.AheadMost, 0} {
			id := b.claimByHand()
			b.exec(`UPDATE call_queue SET task = $2, call_data = jsonb_build_object('url', $3::text) WHERE id = $1`, id, task, api.URL)
			begun := time.Now()
			b.exec(`UPDATE callq.call_open SET task = $2, claimed_at = clock_timestamp() + $3 WHERE call_id = $1`, id, task, limit.AheadMost-said)
			b.send(task, []handoff.Ref{{CallID: id, Attempt: 1, Wait: said}})
			if took := (<-made).Sub(begun); took < limit.AheadMost {
				t.Errorf("%s, of which the message says %s: made after %s, want %s", task, said, took, limit.AheadMost)
			}
		}
	}
}
