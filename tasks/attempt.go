package tasks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

// attempt is one attempt on its way through this worker. It belongs to the goroutine of run.
type attempt struct {
	w           *Worker
	call        *Call
	policy      ledger.Policy
	timeout     time.Duration
	failedCount int
	limits      []string // that it is charged to
	keys        []string // of the limits, in their order; "" where one is not per key
	frees       bool     // its end frees a unit of a concurrency limit
	token       int64

	m0    time.Time // monotonic, read before the start was asked for
	state startState
	late  bool // the gate refused its request: it came after send_within
	// settled is closed when the start has been answered or will never be asked for: from then on
	// the parcel is of no use.
	settled chan struct{}
	settle  sync.Once
}

// startState is what is known of an attempt's start. Three answers, not two.
type startState int

const (
	notAsked startState = iota
	started
	notStarted   // the row is gone or another's: nothing to do
	callGone     // the row is ours to close, for its call was deleted or cancelled
	startUnknown // no answer in time: close it, started or not
)

var (
	errNotStarted = errors.New("the attempt was not started")
	errDraining   = errors.New("the worker is shutting down")
	errLate       = errors.New("the start took too long")
	errCallGone   = errors.New("its call was deleted or cancelled")
	errExpired    = errors.New("its call has expired")
)

// run takes the attempt from a slot to its recorded end.
func (a *attempt) run() {
	defer a.settleNow()
	select {
	case a.w.slots <- struct{}{}:
	case <-a.w.drain:
		a.handBack()
		return
	}
	defer func() { <-a.w.slots }()
	if a.w.draining.Load() {
		a.handBack()
		return
	}
	begun := time.Now()
	ctx, end := a.w.contexts.of(a.w.handling, a)
	defer end()
	var closing *ledger.Closing
	if a.call.Task == HTTP {
		closing = a.runHTTP(ctx)
	} else {
		closing = a.runHandler(ctx)
	}
	if closing == nil {
		return
	}
	asCancelled(ctx, closing)
	a.settleNow() // a worker that cannot record holds its slot, not the parcel
	a.w.record(*closing)
	a.w.metrics.ended(a.call.Queue, closing.Outcome, time.Since(begun))
	a.noteLate()
}

// runHTTP runs the built-in task, which asks for the start itself once it has a connection.
func (a *attempt) runHTTP(ctx context.Context) *ledger.Closing {
	s := a.w.http.run(ctx, a.call, a.timeout, a.start)
	var requests int16
	if s.wrote {
		requests = 1
	}
	a.call.result = s.result
	switch {
	case a.state == notStarted:
		return nil
	case a.state == callGone || a.state == startUnknown || a.state == notAsked && a.w.handling.Err() != nil:
		return a.unsent(s.err, 0)
	case a.state == notAsked: // no connection, or a call that cannot be made
		return a.ending(s.err, nil, nil)
	case !s.wrote:
		a.late = errors.Is(s.err, errTooLate)
		if isDecided(s.err) {
			return a.ending(s.err, nil, &requests)
		}
		return a.unsent(s.err, a.policy.BackoffMin/10)
	}
	arrival := a.sending(s).Arrival()
	a.shutLimits(s.err)
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
	return limit.Sending{Sent: sent, Answered: since(s.answered), Ended: time.Since(a.m0)}
}

// runHandler runs a handler of one's own between a durable start and its end.
func (a *attempt) runHandler(ctx context.Context) *ledger.Closing {
	handler := a.w.handlers[a.call.Task]
	if handler == nil {
		return a.unsent(fmt.Errorf("this worker has no handler for task %q", a.call.Task), a.policy.BackoffMin)
	}
	if _, err := a.start(ctx); err != nil {
		if a.state == notStarted {
			return nil
		}
		return a.unsent(err, 0)
	}
	ctx, cancel := context.WithDeadlineCause(ctx, a.m0.Add(a.timeout),
		fmt.Errorf("timed out after %s", a.timeout))
	defer cancel()
	if ctx.Err() != nil { // frozen, or the start took as long: others may count on its end by now
		return a.unsent(context.Cause(ctx), a.policy.BackoffMin)
	}
	err := a.guard(ctx, handler)
	if err != nil && ctx.Err() != nil && !isDecided(err) && !strings.Contains(err.Error(), context.Cause(ctx).Error()) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	var notSent *notSentError
	if errors.As(err, &notSent) {
		return a.unsent(err, a.policy.BackoffMin)
	}
	arrival := limit.Sending{Ended: time.Since(a.m0)}.Arrival()
	if err != nil { // it may have given up on a request that is still on its way
		arrival.By = nil
	}
	var snooze *snoozeError
	if errors.As(err, &snooze) {
		return a.snoozed(snooze, &arrival)
	}
	return a.ending(err, &arrival, nil)
}

// guard turns a panic into an error; the stack goes to the log, never to the call.
func (a *attempt) guard(ctx context.Context, handler Handler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			a.w.log.ErrorContext(ctx, "handler panicked", "task", a.call.Task, "call", a.call.ID,
				"attempt", a.call.Attempt, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return handler(ctx, a.call)
}

// start asks for the durable start. Until the answer is known it asks again with the same token
// and the same m0, for the first statement may still run; past sendWithinMost the gate would
// refuse the request anyway.
func (a *attempt) start(ctx context.Context) (grant, error) {
	defer a.settleNow()
	if a.w.draining.Load() {
		a.state = startUnknown
		return grant{}, errDraining
	}
	a.m0 = time.Now()
	request := ledger.StartRequest{CallID: a.call.ID, Attempt: int32(a.call.Attempt), Token: a.token, Timeout: a.timeout}
	for {
		answer, err := a.w.starts.Do(ctx, request)
		switch {
		case err == nil && answer.StartedAt != nil:
			a.state = started
			g := grant{m0: a.m0}
			if answer.SendWithin != nil {
				g.sendBy = a.m0.Add(*answer.SendWithin)
			}
			return g, nil
		case err == nil && answer.Gone:
			a.state = callGone
			return grant{}, errNotStarted
		case err == nil:
			a.state = notStarted
			return grant{}, errNotStarted
		}
		if time.Since(a.m0) > sendWithinMost || !pause(ctx, 20*time.Millisecond) {
			a.state = startUnknown
			return grant{}, errLate
		}
	}
}

// sendWithinMost is the longest send_within that is derived from a window.
const sendWithinMost = 5 * time.Second

// handBack gives an unstarted attempt back when the worker drains.
func (a *attempt) handBack() {
	a.settleNow()
	a.w.record(*a.unsent(errDraining, 0))
}

func (a *attempt) settleNow() { a.settle.Do(func() { close(a.settled) }) }

// unsent closes an attempt whose request provably never left: nothing is charged, and the call
// waits again, after about d.
func (a *attempt) unsent(err error, d time.Duration) *ledger.Closing {
	var notSent *notSentError
	if !errors.As(err, &notSent) {
		err = NotSent(err)
	}
	c := a.closing(callqueue.OutcomeNotSent, err)
	c.Status = callqueue.StatusNew
	if d > 0 {
		d = d/2 + rand.N(d)
		c.Delay = &d
	}
	return c
}

// ending is how an attempt ends by its handler's word. arrival nil: provably never sent.
func (a *attempt) ending(err error, arrival *limit.Arrival, requests *int16) *ledger.Closing {
	c := a.closing(callqueue.OutcomeDone, err)
	c.Arrival, c.Requests, c.Result = arrival, requests, a.call.result
	if err == nil {
		c.Status = callqueue.StatusDone
		return c
	}
	c.Failed = true
	var permanent *permanentError
	if errors.As(err, &permanent) {
		c.Outcome, c.Status = callqueue.OutcomePermanent, callqueue.StatusFailed
		return c
	}
	c.Outcome = callqueue.OutcomeError
	status, delay := a.policy.Next(a.failedCount+1, rand.Int64N)
	var later *retryAfterError
	if errors.As(err, &later) {
		delay = later.after
	}
	c.Status, c.Delay = status, &delay
	return c
}

func (a *attempt) closing(outcome callqueue.Outcome, err error) *ledger.Closing {
	c := &ledger.Closing{
		CallID: a.call.ID, Attempt: int32(a.call.Attempt), Token: a.token,
		Unstarted: a.state != started, Outcome: outcome, Frees: a.frees,
	}
	if err != nil {
		c.Error = clean(err.Error())
	}
	return c
}

// isDecided says whether a handler chose its ending, rather than met an error.
func isDecided(err error) bool {
	var permanent *permanentError
	var later *retryAfterError
	var snooze *snoozeError
	var notSent *notSentError
	return errors.As(err, &permanent) || errors.As(err, &later) || errors.As(err, &snooze) || errors.As(err, &notSent)
}

// clean makes an error's text fit for a text column: valid UTF-8, no NUL, at most 2,000 bytes.
func clean(text string) string {
	const most = 2000
	text = strings.ReplaceAll(text, "\x00", "")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}
