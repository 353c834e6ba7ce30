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

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

// attempt is one attempt on its way through this worker. It belongs to whoever has it in hand: its
// message's delivery, then the lane that answers its start, then the goroutine that runs it, then
// the lane that records its end.
type attempt struct {
	ledger.Work
	w      *Worker
	callID int64
	number int32
	epoch  string // that it was loaded under
	token  int64
	result json.RawMessage
	// settled is what the handler said that the call cost; nil: nothing.
	settled *int64

	begun time.Time // when it was given its slot
	m0    time.Time // monotonic, read before the start was asked for
	state startState
	late  bool // the gate refused its request: it came after send_within
	// client is what a handler of one's own sends through, if it does.
	client *client
	// message is done with when the start has been answered or will never be asked for: from then on
	// the message is of no use. Nil once it is.
	message *sync.WaitGroup
}

func (w *Worker) newAttempt(call int64, number int32) *attempt {
	return &attempt{w: w, callID: call, number: number, token: rand.Int64() | 1} // never 0
}

// startState is what is known of an attempt's start. Three answers, not two.
type startState int

const (
	notAsked startState = iota
	started
	notStarted   // the row is gone or another's: nothing to do
	callGone     // the row is ours to close, for its call was deleted or cancelled
	callExpired  // the same, for its call's time has passed
	startUnknown // no answer in time: close it, started or not
)

var (
	errNotStarted = errors.New("the attempt was not started")
	errDraining   = errors.New("the worker is shutting down")
	errLate       = errors.New("the start took too long")
	errCallGone   = errors.New("its call was deleted or cancelled")
	errExpired    = errors.New("its call has expired")
	errExited     = errors.New("the handler did not return: it called runtime.Goexit")
)

// timedOut is why a handler's context ended.
type timedOut time.Duration

func (d timedOut) Error() string { return fmt.Sprintf("timed out after %s", time.Duration(d)) }

// begin runs the attempt in the slot that it was given. A handler of one's own gets its goroutine
// only when the start is answered.
func (a *attempt) begin() {
	a.begun = time.Now()
	if a.Task == HTTP && a.w.http.Load() != nil {
		go a.run(a.runHTTP)
		return
	}
	if a.w.handlers[a.Task] == nil {
		a.end(a.unsent(fmt.Errorf("this worker has no handler for task %q", a.Task), a.Policy.BackoffMin))
		return
	}
	a.m0 = a.begun
	a.w.starts.Tell(a.w.recording, a.startRequest(), func(answer ledger.StartAnswer, err error) {
		go a.run(func(ctx context.Context) *ledger.Closing { return a.runHandler(ctx, answer, err) })
	})
}

// run takes the attempt to its end.
func (a *attempt) run(handle func(context.Context) *ledger.Closing) {
	ctx, end := a.w.contexts.begin(a.w.handling, a)
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
	a.settle() // a worker that cannot record holds its slot, not the message
	if closing == nil {
		a.free()
		return
	}
	recorded := func() {
		if a.Queue != "" { // else it ended before anything was known of it
			a.w.metrics.ended(a.Queue, closing.Outcome, time.Since(a.begun))
		}
		if a.late && len(a.Limits) > 0 {
			a.w.metrics.tooLate.WithLabelValues(a.Queue).Inc()
		}
		a.free()
	}
	a.w.closings.Tell(a.w.recording, *closing, func(busy, err error) {
		if err == nil && busy == nil {
			recorded()
			return
		}
		again := a.w.closings.Do
		if busy != nil {
			again = a.w.closeApart
		}
		if a.state == started {
			a.w.contexts.outlivedFrom(a, a.m0.Add(a.Timeout))
		}
		go func() {
			a.w.recordBy(again, *closing)
			recorded()
		}()
	})
}

// free gives the slot back.
func (a *attempt) free() {
	a.w.contexts.forget(a)
	<-a.w.slots
	a.w.running.Done()
}

// runHTTP runs the built-in task, which asks for the start itself once it has a connection.
func (a *attempt) runHTTP(ctx context.Context) *ledger.Closing {
	call := a.asCall()
	s := a.w.http.Load().run(ctx, call, a.Timeout, a.start)
	var requests int16
	if s.wrote {
		requests = 1
	}
	a.result = s.result
	switch {
	case a.state == notStarted:
		return nil
	case a.state == callExpired:
		return a.expired()
	case a.state == callGone || a.state == startUnknown || a.state == notAsked && a.w.handling.Err() != nil:
		return a.unsent(s.err, 0)
	case a.state == notAsked: // no connection, or a call that cannot be made
		if other := a.otherMay(ctx, call, s.err); other != nil {
			return a.unsent(other, a.Policy.Backoff(int(a.number), rand.Int64N)/10)
		}
		return a.ending(s.err, nil, nil)
	case !s.wrote:
		a.late = errors.Is(s.err, errTooLate)
		if isDecided(s.err) {
			return a.ending(s.err, nil, &requests)
		}
		return a.unsent(s.err, a.Policy.BackoffMin/10)
	}
	arrival := a.sending(s).Arrival()
	a.shutLimits(s)
	return a.ending(s.err, &arrival, &requests)
}

// sending turns the gate's readings into offsets from m0.
func (a *attempt) sending(s sending) limit.Sending {
	since := func(t time.Time) *time.Duration {
		if t.IsZero() {
			return nil
		}
		d := t.Sub(a.m0)
		return &d
	}
	sent := since(s.sent)
	if sent == nil { // the write never returned: it ended with the connection
		ended := time.Since(a.m0)
		sent = &ended
	}
	return limit.Sending{Sent: sent, Acked: since(s.acked), Answered: since(s.answered), Ended: time.Since(a.m0)}
}

// runHandler runs a handler of one's own between a durable start, which was answered so, and its end.
func (a *attempt) runHandler(ctx context.Context, answer ledger.StartAnswer, err error) *ledger.Closing {
	g, err := a.started(ctx, answer, err)
	switch {
	case a.state == notStarted:
		return nil
	case a.state == callExpired:
		return a.expired()
	case err != nil:
		return a.unsent(err, 0)
	}
	handler := a.w.handlers[a.Task]
	if handler == nil {
		return a.unsent(fmt.Errorf("this worker has no handler for task %q", a.Task), a.Policy.BackoffMin)
	}
	ctx, cancel := context.WithDeadlineCause(ctx, a.m0.Add(a.Timeout), timedOut(a.Timeout))
	defer cancel()
	if ctx.Err() != nil { // frozen, or the start took as long: others may count on its end by now
		return a.unsent(context.Cause(ctx), a.Policy.BackoffMin)
	}
	a.w.contexts.outlivedFrom(a, a.m0.Add(a.Timeout))
	call := a.asCall()
	a.client = newClient(ctx, cmp.Or(a.w.client, a.w.http.Load()), call, g, a.Timeout)
	return a.handled(ctx, a.guard(ctx, handler, call))
}

// handled is how an attempt ends whose handler ended so.
func (a *attempt) handled(ctx context.Context, err error) *ledger.Closing {
	if err != nil && ctx.Err() != nil && !isDecided(err) && !strings.Contains(err.Error(), context.Cause(ctx).Error()) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	requests, s := a.seen()
	if _, notSent := errors.AsType[*notSentError](err); notSent {
		switch {
		case s.Sent != nil: // the gate knows better
			err = fmt.Errorf("a request was sent through the call's Client, but the handler says: %s", err.Error())
		case errors.Is(err, errTooLate) || errors.Is(err, errSpent):
			return a.unsent(err, a.Policy.BackoffMin/10)
		default:
			return a.unsent(err, a.Policy.BackoffMin)
		}
	}
	s.Own, s.GaveUp = true, err != nil
	arrival := s.Arrival()
	if snooze, ok := errors.AsType[*snoozeError](err); ok {
		return a.snoozed(snooze, &arrival, requests)
	}
	return a.ending(err, &arrival, requests)
}

// seen is what became of what the handler sent through the call's client, which is taken back. nil: it did not
// use it.
func (a *attempt) seen() (requests *int16, s limit.Sending) {
	seen := a.client.end()
	if seen.used {
		requests, a.late = new(int16), seen.late && !seen.wrote
	}
	if seen.wrote {
		*requests = 1
		return requests, a.sending(seen.sending)
	}
	return requests, limit.Sending{Ended: time.Since(a.m0)}
}

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

func (a *attempt) asCall() *Call {
	return &Call{
		ID: a.callID, Attempt: int(a.number), Queue: a.Queue, Task: a.Task, Key: a.Key, Cost: a.Cost, Data: a.Data,
		IdempotencyKey: a.idempotencyKey(),
		budgets:        a.w.budgets,
	}
}

// idempotencyKey names the call by its database too, and by when it was inserted: ids are given out again
// after a TRUNCATE or a restore.
func (a *attempt) idempotencyKey() string {
	return fmt.Sprintf("callq-%s-%s-%d", a.w.database, strconv.FormatInt(a.CreatedAt.UnixMicro(), 36), a.callID)
}

// start asks for the durable start.
func (a *attempt) start(ctx context.Context) (grant, error) {
	if a.w.draining.Load() {
		a.state = startUnknown
		a.w.returned.Add(1)
		return grant{}, errDraining
	}
	a.m0 = time.Now()
	answer, err := a.w.starts.Do(ctx, a.startRequest())
	return a.started(ctx, answer, err)
}

func (a *attempt) startRequest() ledger.StartRequest {
	return ledger.StartRequest{CallID: a.callID, Attempt: a.number, Token: a.token, Epoch: a.epoch, Timeout: a.Timeout}
}

// started is what became of the start, which was answered so. Until the answer is known it asks again
// with the same token and the same m0, for the first statement may still run; past sendWithinMost
// the gate would refuse the request anyway.
func (a *attempt) started(ctx context.Context, answer ledger.StartAnswer, err error) (grant, error) {
	defer a.settle()
	ask := a.w.starts.Do
	for wait := 20 * time.Millisecond; err != nil || answer.Busy; wait = min(2*wait, 200*time.Millisecond) {
		if time.Since(a.m0) > sendWithinMost || !pause(ctx, wait) {
			a.state = startUnknown
			return grant{}, errLate
		}
		if answer.Busy { // nobody else is to wait with it
			ask = a.w.startApart
		}
		answer, err = ask(ctx, a.startRequest())
	}
	switch {
	case answer.StartedAt != nil:
		a.state = started
		if answer.Work != nil {
			a.Work = *answer.Work
		}
		g := grant{m0: a.m0}
		if answer.SendWithin != nil {
			g.sendBy, g.arrived = a.m0.Add(*answer.SendWithin), a.arrived
		}
		return g, nil
	case answer.Gone:
		a.state = callGone
		return grant{}, errCallGone
	case answer.Expired:
		a.state = callExpired
	default:
		a.state = notStarted
	}
	return grant{}, errNotStarted
}

// arrived lets the units of an attempt whose answer takes long come free a window after its request has. Where the
// ledger does not hear of it they stay occupied for the longer.
func (a *attempt) arrived(acked time.Time) {
	a.w.acks.Offer(ledger.Ack{CallID: a.callID, Attempt: a.number, Token: a.token, After: acked.Sub(a.m0)})
}

// sendWithinMost is the longest send_within that is derived from a window.
const sendWithinMost = 5 * time.Second

// handBack gives an unstarted attempt back when the worker drains.
func (a *attempt) handBack() {
	defer a.w.running.Done()
	a.settle()
	a.w.record(*a.unsent(errDraining, 0))
	a.w.returned.Add(1)
}

func (a *attempt) settle() {
	if a.message != nil {
		a.message.Done()
		a.message = nil
	}
}
