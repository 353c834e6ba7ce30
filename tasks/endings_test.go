package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/tasks"
)

// A snooze counts as no failure, but each attempt uses the limit.
func TestSnooze(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]tasks.Handler{
		"twice": func(_ context.Context, call *tasks.Call) error {
			switch call.Attempt {
			case 1:
				return tasks.Snooze(0)
			case 2:
				return fmt.Errorf("the report is not ready: %w", tasks.Snooze(-time.Hour))
			case 3:
				return errors.New("one of the two failures that the queue allows")
			case 4:
				return tasks.Snooze(time.Millisecond)
			}
			return nil
		},
		"later": func(context.Context, *tasks.Call) error { return tasks.Snooze(time.Hour) },
		"never": func(context.Context, *tasks.Call) error { return tasks.Snooze(math.MaxInt64) },
		"late": func(ctx context.Context, _ *tasks.Call) error {
			<-ctx.Done()
			return tasks.Snooze(time.Hour)
		},
	})
	twice := b.insert("twice")
	b.await(`SELECT status = 'done' AND attempts = 5 AND failed_count = 1 AND error_message IS NULL FROM call_queue WHERE id = $1`, twice)
	b.await(`SELECT array_agg(outcome ORDER BY attempt) = '{snoozed,snoozed,error,snoozed,done}'
			AND bool_and(jsonb_array_length(charged) = 1 AND arrived_by BETWEEN started_at AND finished_at + interval '90 s')
		FROM call_attempts WHERE call_id = $1`, twice)
	b.await(`SELECT sum(used) = 5 FROM callq.call_usage`)

	later := b.insertCall(callqueue.Call{Task: "later", UniqueKey: "u"})
	for _, id := range []int64{later, b.insertCall(callqueue.Call{Queue: "short", Task: "late"})} {
		b.await(`SELECT count(*) = 1 FROM call_attempts WHERE call_id = $1 AND outcome = 'snoozed' AND error IS NULL`, id)
		b.await(`SELECT status = 'new' AND run_at BETWEEN now() + interval '55 min' AND now() + interval '1 h' AND failed_count = 0
			AND finished_at IS NULL FROM call_queue WHERE id = $1`, id)
	}
	b.await(`SELECT unique_key = 'u' FROM call_queue WHERE id = $1`, later) // it has not ended
	b.await(`SELECT status = 'new' AND attempts = 1 AND run_at > now() + interval '99 years' FROM call_queue WHERE id = $1`, b.insert("never"))
	b.verify()
}

func TestSettleRefuses(t *testing.T) {
	t.Parallel()
	var call tasks.Call
	for _, n := range []int64{-1, math.MinInt64, 1e12 + 1, math.MaxInt64} {
		if err := call.Settle(n); err == nil {
			t.Errorf("Settle(%d) is no error", n)
		}
	}
	for _, n := range []int64{0, 1, 1e12} {
		if err := call.Settle(n); err != nil {
			t.Errorf("Settle(%d): %v", n, err)
		}
	}
}

// What the handler settled last is recorded, however it ends.
func TestSettle(t *testing.T) {
	t.Parallel()
	settles := func(err error, units ...int64) tasks.Handler {
		return func(_ context.Context, call *tasks.Call) error {
			for _, n := range units {
				_ = call.Settle(n)
			}
			if err == nil && len(units) > 3 {
				panic("boom")
			}
			return err
		}
	}
	b := newBench(t, map[string]tasks.Handler{
		"last counts":   settles(nil, 900, 20),
		"0":             settles(nil, 0),
		"more":          settles(nil, 700),
		"refused":       settles(nil, 30, -1),
		"nothing":       settles(nil),
		"an error":      settles(errors.New("late"), 20),
		"permanent":     settles(tasks.Permanent(errors.New("no")), 20),
		"snoozed":       settles(tasks.Snooze(time.Hour), 20),
		"a panic":       settles(nil, 1, 2, 3, 20),
		"was not sent":  settles(tasks.NotSent(errors.New("no route")), 20),
		"not permitted": settles(tasks.RetryAfter(time.Hour, errors.New("busy")), 20),
	})
	for name, want := range map[string]int64{
		"last counts": 20, "0": 0, "more": 700, "refused": 30, "nothing": -1, "an error": 20, "permanent": 20, "snoozed": 20, "a panic": 20,
		"was not sent": -1, "not permitted": 20,
	} {
		t.Run(name, func(t *testing.T) {
			id := b.insertCall(callqueue.Call{Task: name, Cost: 500})
			b.await(`SELECT coalesce(settled, -1) = $2 AND cost = 500 FROM call_attempts WHERE call_id = $1 AND attempt = 1`, id, want)
		})
	}
	b.drain()
	b.verify()
}

// A unique key is free again once its call has ended, in whatever way, and not before.
func TestUniqueKeyUntilTheEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]tasks.Handler{
		"nil":       func(context.Context, *tasks.Call) error { return nil },
		"error":     func(context.Context, *tasks.Call) error { return errors.New("busy") },
		"permanent": func(context.Context, *tasks.Call) error { return tasks.Permanent(errors.New("gone")) },
		"later":     func(context.Context, *tasks.Call) error { return tasks.RetryAfter(1<<40, errors.New("busy")) },
		"snooze":    func(context.Context, *tasks.Call) error { return tasks.Snooze(1 << 40) },
	})
	cases := []struct {
		task   string
		cancel bool // once it waits again
		status callqueue.Status
	}{
		{"nil", false, callqueue.StatusDone},
		{"error", false, callqueue.StatusFailed},
		{"permanent", false, callqueue.StatusFailed},
		{"later", false, callqueue.StatusError},
		{"snooze", false, callqueue.StatusNew},
		{"later", true, callqueue.StatusCancelled},
		{"snooze", true, callqueue.StatusCancelled},
	}
	for _, c := range cases {
		t.Run(c.task, func(t *testing.T) {
			call := callqueue.Call{Task: c.task, UniqueKey: c.task}
			id, err := b.client.Insert(t.Context(), call)
			if c.cancel && errors.Is(err, callqueue.ErrDuplicate) { // the one of before still waits
				_, err = b.client.Cancel(t.Context(), id)
			}
			if err != nil {
				t.Fatal(err)
			}
			b.await(`SELECT status = $2 AND attempts > 0 FROM call_queue WHERE id = $1`, id, string(c.status))
			again, err := b.client.Insert(t.Context(), call)
			if c.status.Final() && (err != nil || again == id) {
				t.Errorf("after the end: got %d, %v; want a new call", again, err)
			}
			if !c.status.Final() && (!errors.Is(err, callqueue.ErrDuplicate) || again != id) {
				t.Errorf("before the end: got %d, %v; want ErrDuplicate of %d", again, err, id)
			}
		})
	}

	expired := b.claimByHand() // after it was handed over
	b.exec(`UPDATE call_queue SET expires_at = now(), unique_key = 'u' WHERE id = $1`, expired)
	b.send("count", []handoff.Ref{{CallID: expired, Attempt: 1}})
	b.await(`SELECT status = 'failed' AND unique_key IS NULL FROM call_queue WHERE id = $1`, expired)
}

// A call keeps its key over its retries, and no other has it: not the one that has its id after a TRUNCATE, nor that of
// another database.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	keys := map[string]string{} // to what it was of
	of := func(b *bench, seen <-chan string, what string) {
		t.Helper()
		id := b.insert("key")
		if id != 1 {
			t.Fatalf("%s: its id is %d", what, id)
		}
		b.ended(id, callqueue.StatusDone)
		first, second := <-seen, <-seen
		if first == "" || first != second {
			t.Errorf("%s: its attempts have the keys %q and %q", what, first, second)
		}
		if other := keys[first]; other != "" {
			t.Errorf("%s has the key of %s: %q", what, other, first)
		}
		keys[first] = what
	}
	for _, name := range []string{"one database", "another"} {
		seen := make(chan string, 10)
		b := newBench(t, map[string]tasks.Handler{"key": func(_ context.Context, call *tasks.Call) error {
			seen <- call.IdempotencyKey
			if call.Attempt == 1 {
				return errors.New("try again")
			}
			return nil
		}})
		of(b, seen, name)
		b.exec(`TRUNCATE call_queue RESTART IDENTITY; DELETE FROM call_attempts`)
		of(b, seen, name+", emptied")
	}
}

// A call whose created_at is no time of the calendar runs like others, and holds none of them up.
func TestCreatedAtNoTime(t *testing.T) {
	t.Parallel()
	api := serve(t, func(http.ResponseWriter, *http.Request) {})
	b := newBench(t, map[string]tasks.Handler{"mine": func(context.Context, *tasks.Call) error { return nil }})
	b.exec(`INSERT INTO call_queue (task, created_at, run_at, call_data)
		SELECT task, at, now(), jsonb_build_object('url', $1::text) FROM unnest(ARRAY['mine', 'http']) AS task,
			unnest(ARRAY['-infinity', 'infinity', '4713-01-01 BC', '294276-12-31', now()]::timestamptz[]) AS at`, api.URL)
	b.await(`SELECT count(*) = 10 FROM call_queue WHERE status = 'done' AND failed_count = 0`)
	b.await(`SELECT count(*) = 10 FROM call_attempts`)
}

// The 501st snooze fails the call. Only snoozes count: neither the number of attempts, nor those of
// another call.
func TestSnoozedTooOften(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]tasks.Handler{
		"put off": func(context.Context, *tasks.Call) error { return tasks.Snooze(0) },
	})
	var id int64
	if err := b.pool.QueryRow(t.Context(), snoozedSQL).Scan(&id); err != nil {
		t.Fatal(err)
	}
	outcome, message, charges := b.ended(id, callqueue.StatusFailed)
	if outcome != "permanent" || message != "snoozed 500 times, the most that a call may be" || charges != 1 {
		t.Errorf("got %s %q charged %d", outcome, message, charges)
	}
	b.await(`SELECT attempts = 513 AND failed_count = 1 AND error_message = $2 FROM call_queue WHERE id = $1`, id, message)
	b.await(`SELECT count(*) FILTER (WHERE outcome = 'snoozed') = 500 FROM call_attempts WHERE call_id = $1`, id)
}

// A call that was put off 490 times in 502 attempts.
const snoozedSQL = `
WITH call AS (
    INSERT INTO call_queue (task, attempts) VALUES ('put off', 502) RETURNING id
), ledger AS (
    INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
    SELECT id, n, 1, now(), now(), CASE WHEN n <= 490 THEN 'snoozed' ELSE 'not_sent' END, 'default', 'put off', '', '[]'
    FROM call, generate_series(1, 502) AS n
)
SELECT id FROM call`
