package sim

import (
	"errors"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

// ending is how the API answered.
type ending int

const (
	doneEnding ending = iota
	errorEnding
	permanentEnding
	laterEnding  // 429 with Retry-After
	snoozeEnding // a handler of one's own puts the call off
)

func (w *world) answer() ending {
	switch {
	case !w.chance(w.set.apiErrors):
		return doneEnding
	case w.chance(0.7):
		return errorEnding
	}
	return pick(w, permanentEnding, laterEnding, snoozeEnding)
}

// code is the HTTP status of the answer.
func (e ending) code() int {
	return map[ending]int{doneEnding: 200, errorEnding: 500, permanentEnding: 400, laterEnding: 429, snoozeEnding: 500}[e]
}

// end records the handler's word. arrival nil: provably never sent.
func (a *attempt) end(e ending, arrival *limit.Arrival, why string) {
	a.over = true
	a.k.arrivals.remove(a)
	c := a.closing(callqueue.OutcomeDone, why)
	c.Arrival, c.Settled = arrival, a.settled
	if a.seen() && arrival != nil {
		one := int16(1)
		c.Requests = &one
	}
	if a.heard != nil {
		c.Code = e.code()
	}
	if e == snoozeEnding && a.Task == "http" {
		e = errorEnding
	}
	if e != doneEnding {
		c.Arrival = a.gaveUp(arrival)
	}
	switch e {
	case snoozeEnding:
		delay := a.k.w.between(0, pick(a.k.w, time.Second, a.k.w.set.window))
		c.Outcome, c.Status, c.Delay = callqueue.OutcomeSnoozed, callqueue.StatusNew, &delay
	case doneEnding:
		c.Status = callqueue.StatusDone
	case permanentEnding:
		c.Outcome, c.Status, c.Failed = callqueue.OutcomePermanent, callqueue.StatusFailed, true
	default:
		status, delay := a.policy().Next(a.FailedCount+1, a.k.w.rng.Int64N)
		if e == laterEnding {
			delay = retryAfter
		}
		c.Outcome, c.Status, c.Delay, c.Failed = callqueue.OutcomeError, status, &delay, true
	}
	a.k.record(a, c)
}

// gaveUp is the arrival of an attempt that met an error: a handler of one's own may have left a request
// behind that is still on its way.
func (a *attempt) gaveUp(arrival *limit.Arrival) *limit.Arrival {
	if arrival != nil && a.Task != "http" {
		arrival.EndBy = nil
		if !a.seen() {
			arrival.By = nil
		}
	}
	return arrival
}

const retryAfter = 700 * time.Millisecond

// shutLimits closes the attempt's limits for a while, as the API asked.
func (k *worker) shutLimits(a *attempt) {
	d := retryAfter
	for i, name := range a.Limits {
		_, err := ledger.Pause(k.w.ctx, k.w.lane.workers, ledger.Paused{
			What: "limit", Name: name, Key: a.Keys[i], For: &d, Extend: true, By: k.id, Reason: "the API wants no more",
		})
		if !errors.Is(err, ledger.ErrUnknown) { // no queue is under it any more
			k.w.must(err)
		}
	}
}

func (a *attempt) expired() ledger.Closing {
	c := a.unsent("expired", 0)
	c.Status = callqueue.StatusFailed
	return c
}
