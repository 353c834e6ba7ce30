package tasks_test

import (
	"context"
	"testing"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/tasks"
)

// A handler that does not return at its timeout keeps its attempt and its units, though recovery looks for what is
// overdue; how it ends is recorded as if it had been in time.
//
//callq:guarantee 1 12
func TestHandlerOutlivesItsTimeout(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}, 10), make(chan struct{})
	b := newBenchWith(t, dispatcher.Config{}, limit.Rate{Units: 1}, map[string]tasks.Handler{
		"deaf": func(context.Context, *tasks.Call) error { begun <- struct{}{}; <-end; return nil },
	})
	first := b.insertCall(callqueue.Call{Queue: "short", Task: "deaf"})
	<-begun
	second := b.insertCall(callqueue.Call{Queue: "short", Task: "deaf"})
	// Past the 1.5 s after which it would be taken for lost, twice over.
	b.await(`SELECT clock_timestamp() > started_at + interval '4 s' FROM call_open WHERE call_id = $1`, first)
	b.await(`SELECT count(*) = 1 AND bool_and(call_id = $1 AND attempt = 1 AND deadline > clock_timestamp() + interval '20 s') FROM call_open`, first)
	close(end)
	for _, id := range []int64{first, second} {
		if outcome, message, charges := b.ended(id, callqueue.StatusDone); outcome != "done" || charges != 1 {
			t.Errorf("call %d: %s %q, charged to %d limits", id, outcome, message, charges)
		}
	}
	b.await(`SELECT count(*) = 2 AND max(started_at) > min(finished_at) FROM call_attempts`)
}

// Of a worker that is gone nothing is put off.
//
//callq:guarantee 1
func TestDeadlinesOfAWorkerThatIsGone(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{}, 10)
	b := newBenchWith(t, dispatcher.Config{}, limit.Rate{Units: 1}, map[string]tasks.Handler{
		"slow": func(ctx context.Context, _ *tasks.Call) error { begun <- struct{}{}; <-ctx.Done(); return ctx.Err() },
	})
	id := b.insertCall(callqueue.Call{Queue: "short", Task: "slow"})
	<-begun
	if _, err := b.pool.Exec(t.Context(), `UPDATE call_open SET token = token + 1`); err != nil { // as if it were another's
		t.Fatal(err)
	}
	b.await(`SELECT outcome = 'lost' FROM call_attempts WHERE call_id = $1 AND attempt = 1`, id)
	b.drain()
}
