package sim

import (
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
	laterEnding  // 429, with Retry-After or without
	snoozeEnding // a handler of one's own puts the call off
)

// answer draws how the API answers what it reads now, and in how long it wants more, if it names that.
func (w *world) answer() (e ending, after time.Duration) {
	switch {
	case w.now < w.api.shutUntil && w.api.bare:
		return laterEnding, 0
	case w.now < w.api.shutUntil:
		return laterEnding, w.api.shutUntil - w.now
	case !w.healing && w.chance(w.set.refusals):
		return laterEnding, pick(w, 0, retryAfter)
	case !w.chance(w.set.apiErrors):
		return doneEnding, 0
	case w.chance(0.7):
		return errorEnding, 0
	}
	if e = pick(w, permanentEnding, laterEnding, snoozeEnding); e == laterEnding {
		after = pick(w, 0, retryAfter)
	}
	return e, after
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
	case laterEnding:
		if a.Task != "http" && a.k.w.chance(0.3) { // a handler of one's own says RetryAfter, or nothing
			a.fail(&c)
			break
		}
		a.refuse(&c)
	default:
		a.after = 0
		a.fail(&c)
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

func (a *attempt) expired() ledger.Closing {
	c := a.unsent("expired", 0)
	c.Status = callqueue.StatusFailed
	return c
}
