package tasks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/outcome"
)

// attempt is one attempt on its way through this worker. It belongs to its message's delivery, and then to the goroutine
// that runs it to its end.
type attempt struct {
	ledger.Work
	w       *Worker
	callID  int64
	number  int32
	epoch   string // that it was loaded under
	token   int64
	result  json.RawMessage
	settled *int64 // the cost that the handler reported; nil: none

	begun   time.Time // when it was given its slot
	m0      time.Time // monotonic, read before the start was asked for
	started bool      // durably
	refused error     // why it was not, or cannot be; with started false, nil: the start was not asked for
	late    bool      // the gate refused its request: it came after send_within
	client  *httptask.Client
	message *sync.WaitGroup // done when the start is answered or will never be asked for; nil once it is
}

func (w *Worker) newAttempt(ref handoff.Ref) *attempt {
	return &attempt{w: w, callID: ref.CallID, number: ref.Attempt, token: rand.Int64() | 1} // never 0
}

// begin runs the attempt in the slot that it was given. A custom handler gets its goroutine only when the start is
// answered: parked goroutines would cost a quarter of the worker's CPU.
func (a *attempt) begin() {
	a.begun = time.Now()
	switch {
	case a.refused != nil:
		a.end(a.unstarted(a.refused))
	case a.Task == HTTP && a.w.http.Load() != nil:
		go a.run(a.runHTTP)
	case a.w.handlers[a.Task] != nil:
		a.m0 = a.begun
		a.w.starts.Tell(a.w.recording, a.startRequest(), func(answer ledger.StartAnswer, err error) {
			go a.run(func(ctx context.Context) *ledger.Closing { return a.runHandler(ctx, answer, err) })
		})
	default:
		a.end(a.withoutHandler())
	}
}

func (a *attempt) withoutHandler() *ledger.Closing {
	return a.unsent(fmt.Errorf("this worker has no handler for task %q", a.Task), a.Policy.BackoffMin)
}

// handBack gives an unstarted attempt back when the worker drains.
func (a *attempt) handBack() {
	a.release()
	a.w.recorder.record(a.w.recording, *a.unsent(errDraining, 0), func() {
		a.w.slots.returned.Add(1)
		a.w.slots.attempts.Done()
	})
}

// run takes the attempt to its end.
func (a *attempt) run(handle func(context.Context) *ledger.Closing) {
	ctx, end := a.w.running.begin(a.w.handling, a)
	defer end()
	a.finish(ctx, handle(ctx))
}

func (a *attempt) finish(ctx context.Context, closing *ledger.Closing) {
	if closing != nil {
		asCancelled(ctx, closing)
	}
	a.end(closing)
}

// end has the outcome recorded, and then frees the slot. Nil: there is nothing to record.
func (a *attempt) end(closing *ledger.Closing) {
	a.release() // a worker that cannot record holds its slot, not the message
	if closing == nil {
		a.free()
		return
	}
	a.w.recorder.record(a.w.recording, *closing, func() {
		a.w.metrics.ended(a, closing.Outcome)
		a.free()
	})
}

// free gives the slot back.
func (a *attempt) free() {
	a.w.running.forget(a)
	<-a.w.slots.tokens
	a.w.slots.attempts.Done()
}

// runHTTP runs the built-in task, which asks for the start itself once it has a connection.
func (a *attempt) runHTTP(ctx context.Context) *ledger.Closing {
	call := a.httpCall()
	s := a.w.http.Load().Run(ctx, call, a.Timeout, a.start)
	a.result = s.Result
	switch {
	case a.refused != nil:
		return a.unstarted(a.refused)
	case s.Wrote:
		arrival := s.Since(a.m0).Arrival()
		a.shutLimits(s)
		return a.sent(a.ending(s.Err), arrival, new(int16(1)))
	case a.started:
		return a.unsent(s.Err, a.Policy.BackoffMin/10)
	case a.w.handling.Err() != nil:
		return a.unsent(s.Err, 0)
	}
	// No connection, or a call that cannot be made.
	if refusal, ok := errors.AsType[*httptask.RefusedError](s.Err); ok && a.w.anotherMay(ctx, a.Queue, call, refusal) {
		return a.unsent(fmt.Errorf("handed back for another worker: %w", s.Err), a.Policy.Backoff(int(a.number), rand.Int64N)/10)
	}
	return a.ending(s.Err)
}

// runHandler runs a custom handler between a durable start, which was answered so, and its end.
func (a *attempt) runHandler(ctx context.Context, answer ledger.StartAnswer, err error) *ledger.Closing {
	g, err := a.answered(ctx, answer, err)
	if err != nil {
		return a.unstarted(err)
	}
	handler := a.w.handlers[a.Task]
	if handler == nil {
		return a.withoutHandler()
	}
	ctx, cancel := context.WithDeadlineCause(ctx, a.m0.Add(a.Timeout), fmt.Errorf("timed out after %s", a.Timeout))
	defer cancel()
	if ctx.Err() != nil { // frozen, or the start took as long: others may count on its end by now
		return a.unsent(context.Cause(ctx), a.Policy.BackoffMin)
	}
	http := a.httpCall()
	a.client = cmp.Or(a.w.client, a.w.http.Load()).NewClient(ctx, http, g, a.Timeout)
	call := &Call{
		ID: a.callID, Attempt: int(a.number), Queue: a.Queue, Task: a.Task, Key: a.Key, Cost: a.Cost, Data: a.Data,
		IdempotencyKey: http.IdempotencyKey, Client: a.client.HTTP, budgets: a.w.budgets,
	}
	return a.handled(ctx, a.guard(ctx, handler, call))
}

// httpCall is what a request is made from. Its idempotency key names the call by its database too, and by when it was
// inserted: ids are given out again after a TRUNCATE or a restore.
func (a *attempt) httpCall() *httptask.Call {
	key := "callq-" + a.w.database + "-" + strconv.FormatInt(a.CreatedAt.UnixMicro(), 36) + "-" + strconv.FormatInt(a.callID, 10)
	return &httptask.Call{ID: a.callID, Attempt: int(a.number), IdempotencyKey: key, Data: a.Data}
}

var errExited = errors.New("the handler did not return: it called runtime.Goexit")

// guard turns a panic into an error. The stack goes to the log, never to the call. Where the handler ends the
// goroutine (runtime.Goexit, as testing.T.FailNow does) the attempt is ended here, for nothing after it runs.
func (a *attempt) guard(ctx context.Context, handler Handler, call *Call) (err error) {
	returned := false
	defer func() {
		a.result, a.settled = call.result, call.settled
		if returned {
			return
		}
		p := recover()
		if err = errExited; p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		a.w.log.ErrorContext(ctx, "handler did not return", "task", a.Task, "call", a.callID,
			"attempt", a.number, "err", err, "stack", string(debug.Stack()))
		if p == nil {
			a.finish(ctx, a.handled(ctx, err))
		}
	}()
	if err = handler(ctx, call); err != nil {
		_ = err.Error() // of a nil pointer it may panic, and does so here
	}
	returned = true
	return err
}

// handled is how an attempt ends whose handler ended so.
func (a *attempt) handled(ctx context.Context, err error) *ledger.Closing {
	if err != nil && ctx.Err() != nil && !outcome.Chosen(err) && !strings.Contains(err.Error(), context.Cause(ctx).Error()) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	var requests *int16 // nil: it did not use the call's client
	s := limit.Sending{Ended: time.Since(a.m0)}
	if seen := a.client.End(); seen.Wrote {
		requests, s = new(int16(1)), seen.Since(a.m0)
	} else if seen.Used {
		requests = new(int16(0))
	}
	if outcome.IsNotSent(err) {
		switch {
		case s.Sent != nil: // the gate knows better
			err = fmt.Errorf("a request was sent through the call's Client, but the handler says: %s", err.Error())
		case httptask.Unsent(err):
			return a.unsent(err, a.Policy.BackoffMin/10)
		default:
			return a.unsent(err, a.Policy.BackoffMin)
		}
	}
	s.Own, s.GaveUp = true, err != nil
	return a.sent(a.ending(err), s.Arrival(), requests)
}
