package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/tasks"
)

// cancel cancels a call whose attempt runs.
func (b *bench) cancel(id int64) {
	b.t.Helper()
	got, err := b.client.Cancel(context.Background(), id)
	if err != nil || len(got) != 1 || !got[0].Changed || !got[0].Open {
		b.t.Fatalf("Cancel = %+v, %v; want it cancelled and running", got, err)
	}
}

// A cancelled call stays so, however its handler ends once it has heard of it; what may have been sent stays charged.
func TestCancelRunning(t *testing.T) {
	t.Parallel()
	cases := []struct {
		task    string
		end     func(ctx context.Context) error
		outcome string
		message string
		charges int
	}{
		{"returns its context's error", func(ctx context.Context) error { return ctx.Err() }, "cancelled", "the call was cancelled: context canceled", 1},
		{"says so", func(ctx context.Context) error { return fmt.Errorf("stopped: %w", context.Cause(ctx)) }, "cancelled", "stopped: the call was cancelled", 1},
		{"is done all the same", func(context.Context) error { return nil }, "done", "", 1},
		{"would be tried again", func(context.Context) error { return tasks.RetryAfter(0, errors.New("busy")) }, "cancelled", "busy", 1},
		{"has failed for good", func(context.Context) error { return tasks.Permanent(errors.New("gone")) }, "cancelled", "gone", 1},
		{"snoozes", func(context.Context) error { return tasks.Snooze(0) }, "cancelled", "", 1},
		{"had sent nothing", func(context.Context) error { return tasks.NotSent(errors.New("no route")) }, "cancelled", "not sent: no route", 0},
	}
	handlers, begun, causes := map[string]tasks.Handler{}, make(chan *tasks.Call, len(cases)), map[string]chan error{}
	for _, c := range cases {
		cause := make(chan error, 2)
		causes[c.task] = cause
		handlers[c.task] = func(ctx context.Context, call *tasks.Call) error {
			begun <- call
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return c.end(ctx)
		}
	}
	b := newBench(t, handlers)
	ids := map[string]int64{}
	for _, c := range cases {
		ids[c.task] = b.insertCall(callqueue.Call{Task: c.task, UniqueKey: c.task})
	}
	for range cases {
		b.cancel((<-begun).ID)
	}
	for _, c := range cases {
		t.Run(c.task, func(t *testing.T) {
			id := ids[c.task]
			if err := <-causes[c.task]; !errors.Is(err, tasks.ErrCancelled) {
				t.Errorf("the context ended with %v, want ErrCancelled", err)
			}
			b.await(`SELECT NOT EXISTS (SELECT FROM callq.call_open WHERE call_id = $1)`, id)
			outcome, message, charges := b.ended(id, callqueue.StatusCancelled)
			if outcome != c.outcome || message != c.message || charges != c.charges {
				t.Errorf("got %s %q charged %d, want %s %q charged %d", outcome, message, charges, c.outcome, c.message, c.charges)
			}
			// Until its end, and not for the slack (60 s) of a request without an answer.
			b.await(`SELECT CASE WHEN $1 > 0 THEN arrived_by BETWEEN started_at AND finished_at + interval '90 s' ELSE arrived_by IS NULL END
				FROM call_attempts WHERE call_id = $2`, c.charges, id)
			b.await(`SELECT status = 'cancelled' AND attempts = 1 AND failed_count = 0 AND unique_key IS NULL
				AND failed_at IS NULL FROM call_queue WHERE id = $1`, id)
		})
	}
	b.verify()
}

// The request of a cancelled http call may have arrived: its connection is reset, and it is charged as
// any that got no answer.
func TestCancelHTTP(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		request := make([]byte, 4096)
		if _, err = conn.Read(request); err == nil {
			close(begun)
			_, err = conn.Read(request)
		}
		ended <- err
	}()
	id := b.insertCall(callqueue.Call{Data: map[string]string{"url": "http://" + listener.Addr().String()}})
	<-begun
	b.cancel(id)
	if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection ended with %v, want a reset", err)
	}
	b.await(`SELECT count(*) = 0 FROM callq.call_open`)
	outcome, message, charges := b.ended(id, callqueue.StatusCancelled)
	if outcome != "cancelled" || !strings.HasSuffix(message, "the call was cancelled") || charges != 1 {
		t.Errorf("got %s %q charged %d", outcome, message, charges)
	}
	b.await(`SELECT requests = 1 AND arrived_by > started_at FROM call_attempts`)
	b.verify()
}

// A worker that drains, and beats no more, still hears of it.
func TestCancelWhileDraining(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{}, 1)
	b := newBench(t, map[string]tasks.Handler{"hold": func(ctx context.Context, _ *tasks.Call) error {
		begun <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}})
	id := b.insertCall(callqueue.Call{Task: "hold"})
	<-begun
	drained := make(chan struct{})
	go func() { b.drain(); close(drained) }()
	b.await(`SELECT heartbeat_at < clock_timestamp() - interval '5 s' FROM callq.call_workers`) // it has left
	b.cancel(id)
	<-drained
	if outcome, message, _ := b.ended(id, callqueue.StatusCancelled); outcome != "cancelled" {
		t.Errorf("got %s %q", outcome, message)
	}
}

// Cancels beside claims, starts and ends: each call is done or cancelled, none twice, and the ledger holds.
func TestCancelAnyTime(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	ran := map[int64]int{}
	b := newBench(t, map[string]tasks.Handler{"count": func(_ context.Context, call *tasks.Call) error {
		mu.Lock()
		defer mu.Unlock()
		ran[call.ID]++
		return nil
	}})
	const n = 300
	var all sync.WaitGroup
	ids := make(chan int64, n)
	for range 3 {
		all.Go(func() {
			for id := range ids {
				if rand.N(2) == 0 {
					if _, err := b.client.Cancel(context.Background(), id); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for range n {
		ids <- b.insert("count")
	}
	close(ids)
	all.Wait()
	b.await(`SELECT count(*) = $1 FROM call_queue WHERE status IN ('done', 'cancelled')`, n)
	b.await(`SELECT count(*) = 0 FROM callq.call_open`)
	b.drain()
	b.verify()
	mu.Lock()
	defer mu.Unlock()
	for id, times := range ran {
		if times != 1 {
			t.Errorf("call %d was made %d times", id, times)
		}
	}
	b.await(`SELECT count(*) = 0 FROM call_attempts WHERE outcome NOT IN ('done', 'cancelled')`)
	var done int
	if err := b.pool.QueryRow(context.Background(), `SELECT count(*) FROM call_attempts WHERE outcome = 'done'`).Scan(&done); err != nil {
		t.Fatal(err)
	}
	if done != len(ran) {
		t.Errorf("%d attempts are done, and %d calls were made", done, len(ran))
	}
}

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
	b.exec(`UPDATE callq.call_open SET deadline = started_at + interval '5 s'`) // of 1.5 s a busy machine may need all to put it off
	second := b.insertCall(callqueue.Call{Queue: "short", Task: "deaf"})
	b.await(`SELECT clock_timestamp() > started_at + interval '6 s' FROM callq.call_open WHERE call_id = $1`, first)
	b.await(`SELECT count(*) = 1 AND bool_and(call_id = $1 AND attempt = 1 AND deadline > clock_timestamp() + interval '20 s') FROM callq.call_open`, first)
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
	var b *bench
	b = newBenchWith(t, dispatcher.Config{}, limit.Rate{Units: 1}, map[string]tasks.Handler{
		"slow": func(ctx context.Context, _ *tasks.Call) error {
			_, err := b.pool.Exec(context.Background(), `UPDATE callq.call_open SET token = token + 1 WHERE attempt = 1`) // as if it were another's
			<-ctx.Done()
			return err
		},
	})
	id := b.insertCall(callqueue.Call{Queue: "short", Task: "slow"})
	b.await(`SELECT outcome = 'lost' FROM call_attempts WHERE call_id = $1 AND attempt = 1`, id)
	b.drain()
}

// hold has an open transaction hold calls' rows until it is released.
func (b *bench) hold(calls []int64) (release func()) {
	b.t.Helper()
	holder, err := b.pool.Begin(b.t.Context())
	if err == nil {
		_, err = holder.Exec(b.t.Context(), `SET idle_in_transaction_session_timeout = 0`)
	}
	if err == nil {
		_, err = holder.Exec(b.t.Context(), `UPDATE call_queue SET error_message = 'mine' WHERE id = ANY($1)`, calls)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return func() {
		if err := holder.Commit(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
	}
}

// Somebody's open transaction on the rows of some running calls keeps only their outcomes waiting, and these are not lost
// meanwhile: their attempts stay open, however long that takes.
//
//callq:guarantee 12
func TestOutcomesWaitForNoOther(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	b := newBench(t, map[string]tasks.Handler{
		"held":  func(context.Context, *tasks.Call) error { begun <- struct{}{}; <-end; return nil },
		"quick": func(context.Context, *tasks.Call) error { return nil },
	})
	var held []int64
	for range 3 { // of 4 slots
		held = append(held, b.insertCall(callqueue.Call{Queue: "short", Task: "held"}))
		<-begun
	}
	release := b.hold(held)
	for range held { // one after the other, so that each is in a statement of its own
		end <- struct{}{}
		b.await(`SELECT clock_timestamp() > $1::timestamptz`, time.Now().Add(200*time.Millisecond))
	}
	for range 40 {
		b.insert("quick")
	}
	b.await(`SELECT count(*) = 40 FROM call_attempts WHERE task = 'quick' AND outcome = 'done'`)
	b.await(`SELECT count(*) = 3 AND bool_and(clock_timestamp() > started_at + interval '5 s' AND deadline > clock_timestamp()) FROM callq.call_open`)
	release()
	for _, id := range held {
		if outcome, _, charges := b.ended(id, callqueue.StatusDone); outcome != "done" || charges != 1 {
			t.Errorf("call %d ended %s, charged %d", id, outcome, charges)
		}
	}
	b.verify()
}
