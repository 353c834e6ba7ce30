package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// attempt is the life of an attempt on a worker, as tasks/attempt.go has it.
type attempt struct {
	loaded
	k         *worker
	life      int // of the worker: a later one knows nothing of it
	token     int64
	slot      bool
	asked     bool
	begun     bool      // started, as far as the worker knows
	startedAt time.Time // if so
	m0        time.Duration
	answer    ledger.StartAnswer // what the last statement said, whether heard or not
	askedAt   int64              // for the witness
	sendBy    time.Duration      // 0: no bound

	written bool
	sent    time.Duration  // the write returned
	acked   *time.Duration // the kernel was seen to have nothing left to send
	later   *time.Duration // it, or a request that was written after that, was answered
	heard   *time.Duration
	how     ending
	after   time.Duration // in how long the API wants more; 0: it did not say
	settled *int64        // what the API said that it took, less than the cost; nil: it did not say
	over    bool          // the handler has ended
	request *request
	of      *callRecord   // whose data it has
	slack   time.Duration // that its request keeps to
	cut     bool          // the API has seen the connection go
	place   *place        // in its run; nil: it is in none
}

func (a *attempt) id() attemptID { return attemptID{callAttempt{a.CallID, a.Attempt}, a.Epoch} }

// do plans what the worker does for the attempt, while it lives.
func (a *attempt) do(d time.Duration, act func()) {
	if a.life == a.k.life {
		a.k.do(d, act)
	}
}

// run connects, then asks for the start. A handler of one's own asks at once.
func (a *attempt) run() {
	k := a.k
	if k.hazard() {
		return
	}
	connecting := time.Duration(0)
	if a.Task == "http" {
		connecting = k.w.between(0, 3*time.Millisecond)
		if k.w.fault(0.02) {
			a.do(k.w.between(0, time.Second), func() { a.end(errorEnding, nil, "no connection") })
			return
		}
	}
	a.do(connecting, func() {
		a.asked = true
		a.m0 = k.w.now
		k.askStart(a)
	})
}

// sendWithinMost is tasks/start.go's: for so long a start is asked for again.
const sendWithinMost = 5 * time.Second

func (a *attempt) startAnswered(ok bool) {
	k := a.k
	switch {
	case !ok && k.w.now-a.m0 > sendWithinMost:
		k.record(a, a.unsent("the start took too long", 0))
	case !ok:
		wait := 20 * time.Millisecond
		if k.w.mutant.newM0 {
			wait = k.w.between(0, 2*limit.ResendMost)
		}
		a.do(wait, func() {
			if k.w.mutant.newM0 {
				a.m0 = k.w.now
			}
			k.askStart(a)
		})
	case errors.Is(a.answer.Refused, ledger.ErrGone):
		k.record(a, a.unsent("its call is gone", 0))
	case errors.Is(a.answer.Refused, ledger.ErrExpired):
		k.record(a, a.expired())
	case a.answer.Refused != nil && !k.w.mutant.secondSend:
		if a.place != nil {
			a.place.left(a, nil)
		}
		a.free()
	default:
		a.begun, a.startedAt = true, a.answer.StartedAt
		freeAt := a.notBefore
		if starts := a.m0 + a.answer.Wait; starts > freeAt {
			freeAt, a.m0 = k.w.now+a.answer.Wait, starts
		} else {
			a.m0 = freeAt
		}
		if k.w.mutant.early {
			freeAt = 0
		}
		if a.answer.SendWithin != nil {
			a.sendBy = a.m0 + *a.answer.SendWithin
		}
		if a.place != nil {
			a.place.known = true
			a.place.meet(a)
			return
		}
		a.do(max(0, freeAt-k.w.now), a.prepare)
	}
}

// prepare is the time between the start's answer and the write.
func (a *attempt) prepare() {
	w := a.k.w
	if a.k.hazard() {
		return
	}
	if a.Task != "http" && !a.gated() {
		a.handle()
		return
	}
	wait := w.between(0, time.Millisecond)
	if left := a.sendBy - w.now; a.sendBy > 0 && left > 0 && w.dawdles() {
		wait = w.between(left*4/5, left*21/20) // the gate's last moment, or just past it
		if w.mutant.openGate {
			wait = w.between(left, left+3*limit.ResendMost) // past all that may be sent again
		}
	}
	a.do(wait, a.write)
}

// gated says whether the request goes through the gate: where a limit is anchored at the start a handler of one's
// own has promised that.
func (a *attempt) gated() bool { return a.Task == "http" || a.answer.SendWithin != nil }

// seen says whether the worker's client sees what becomes of the request. Where the API stands still handlers of one's own use
// it, too: of what they send by other means nothing is promised once they have ended.
func (a *attempt) seen() bool { return a.gated() || a.k.w.set.queues }

// dawdles says whether something takes as long as it may.
func (w *world) dawdles() bool { return w.pace == late || w.pace == mixed && w.chance(0.3) }

// write is the gate: nothing goes through after send_within, or the timeout.
func (a *attempt) write() {
	w := a.k.w
	if a.over {
		return
	}
	timedOut := w.now >= a.m0+a.Timeout
	if !w.mutant.openGate && (timedOut || a.sendBy > 0 && w.now > a.sendBy) {
		w.note(a.CallID, "", "attempt %d is too late for the gate", a.Attempt)
		a.over = true
		a.k.record(a, a.unsent("too late", a.BackoffMin/10))
		return
	}
	a.sendNow()
	a.do(a.m0+a.Timeout-w.now, func() {
		if !a.over {
			a.reset()
			a.end(errorEnding, a.arrival(), "timed out")
		}
	})
}

// sendNow writes the request. It arrives within slack, or, where TCP has to send it again, within slack of that; or
// never.
func (a *attempt) sendNow() {
	w := a.k.w
	slack := a.slack
	travel := w.between(100*time.Microsecond, min(2*time.Millisecond, slack))
	if w.dawdles() {
		travel = w.between(slack*9/10, slack)
	}
	a.written, a.sent = true, w.now
	w.note(a.CallID, "", "attempt %d is sent", a.Attempt)
	if a.k.hazard() && w.chance(0.5) { // its kernel sends no more; or it had been sent
		return
	}
	if w.fault(0.02) {
		w.note(a.CallID, "", "attempt %d never arrives", a.Attempt)
		return
	}
	if !w.fault(0.03) && !(w.mutant.resends && w.chance(0.5)) || !a.seen() {
		w.after(travel, func() { a.reach(slack) })
		return
	}
	again := w.between(0, limit.ResendMost)
	w.after(again, func() {
		w.note(a.CallID, "", "attempt %d is sent again after %s", a.Attempt, again)
		if a.life == a.k.life && !a.over { // else the connection was reset
			w.after(travel, func() { a.reach(slack) })
		}
	})
}

// acknowledge has the worker see, some time after, that the request has arrived, and tell the ledger where the answer
// takes long: tasks/start.go.
func (a *attempt) acknowledge() {
	w := a.k.w
	if !a.seen() {
		return
	}
	a.do(w.between(0, pick(w, 50*time.Millisecond, time.Second)), func() {
		if a.over {
			return
		}
		a.acked = new(w.now - a.m0)
		a.k.acknowledged(a)
		a.do(max(0, a.sent+tellAfter-w.now), a.tell)
	})
}

// tellAfter is httptask's: for so long a request must have been under way.
const tellAfter = 500 * time.Millisecond

// tell tells the ledger what is known of a request that has been under way for long: tasks/start.go.
func (a *attempt) tell() {
	w := a.k.w
	if a.over || !a.gated() || w.fault(w.set.loss) {
		return
	}
	r := ledger.Running{CallID: a.CallID, Attempt: a.Attempt, Token: a.token, Overtaken: a.later}
	if !w.set.queues {
		r.Acked = a.acked
	}
	if r.Acked != nil || r.Overtaken != nil {
		w.must(ledger.Acknowledge(w.ctx, w.lane.workers, []ledger.Running{r}))
		w.note(a.CallID, "", "attempt %d is acknowledged, overtaken %t", a.Attempt, r.Overtaken != nil)
	}
}

// reach brings the request to the API's kernel, which acknowledges it and hands it to the program, at once or when that
// goes on: what came from a connection that was reset meanwhile, too.
func (a *attempt) reach(slack time.Duration) {
	w := a.k.w
	a.acknowledge()
	if w.now < w.api.stalled {
		w.note(a.CallID, "", "attempt %d waits in the API's queue", a.Attempt)
	}
	w.api.read(func() { a.arrive(slack) })
}

// arrive is the API's part: it works for a while, then answers, or does not.
func (a *attempt) arrive(slack time.Duration) {
	w := a.k.w
	settled := a.drawSettled()
	r := w.api.arrive(a.id(), settled)
	a.request = r
	if a.cut {
		w.api.leave(r)
	}
	works := w.between(time.Millisecond, 50*time.Millisecond)
	if w.chance(0.1) || w.mutant.slow && w.chance(0.5) {
		works = w.between(0, a.Timeout)
	}
	how, after := w.answer()
	if how == laterEnding { // it does not work for that
		works = w.between(time.Millisecond, 50*time.Millisecond)
	}
	works = min(works, max(0, a.m0+a.Timeout+slack-w.now)) // it gives up by itself
	silent := w.outage && !w.healing || w.fault(0.03)
	w.after(works, func() {
		w.api.leave(r)
		if silent {
			return
		}
		w.api.answered[answer{r.callAttempt, how}] = true
		w.note(a.CallID, "", "attempt %d is answered %d, after %s", a.Attempt, how.code(), after)
		a.do(w.between(100*time.Microsecond, 2*time.Millisecond), func() {
			a.settled, a.after = settled, after
			a.hear(how)
		})
	})
}

// drawSettled draws what a call takes of limits by cost, where its handler will say so. Nil: what it said.
func (a *attempt) drawSettled() *int64 {
	w := a.k.w
	if a.Task == "http" || !slices.ContainsFunc(w.set.rules.Limits, func(l policy.Limit) bool { return l.CountCost }) || !w.chance(0.5) {
		return nil
	}
	return new(w.rng.Int64N(a.Cost + 1))
}

// reset drops the connection: the API notices within slack.
func (a *attempt) reset() {
	w := a.k.w
	w.after(w.between(0, a.slack), func() {
		a.cut = true
		if a.request != nil {
			w.api.leave(a.request)
		}
	})
}

func (a *attempt) hear(answer ending) {
	if a.over {
		return
	}
	since := a.k.w.now - a.m0
	a.heard, a.how = &since, answer
	a.k.answered(a, answer)
	if w := a.k.w; a.Task != "http" && a.gated() && w.chance(0.5) { // it has more to do
		a.do(w.between(0, max(0, a.m0+a.Timeout-w.now)), func() {
			if !a.over {
				a.end(answer, a.arrival(), "")
			}
		})
		return
	}
	a.end(answer, a.arrival(), "")
}

// hearCancel ends the attempt, for its call was cancelled: tasks/running.go. What is done is done.
func (a *attempt) hearCancel() {
	if a.over || !a.begun {
		return
	}
	a.over = true
	a.k.arrivals.remove(a)
	c := a.closing(callqueue.OutcomeCancelled, "cancelled")
	c.Status = callqueue.StatusCancelled
	if a.written {
		a.reset()
		c.Arrival = a.gaveUp(a.arrival())
	}
	a.k.record(a, c)
}

// arrival is what the worker has measured.
func (a *attempt) arrival() *limit.Arrival {
	ended := a.k.w.now - a.m0
	s := limit.Sending{Ended: ended, Own: a.Task != "http"}
	if a.seen() {
		sent := a.sent - a.m0
		s.Sent, s.Acked, s.Later, s.Answered = &sent, a.acked, a.later, a.heard
	}
	arrival := s.Arrival()
	return &arrival
}

// handle is a handler of one's own: it sends when it likes, while its context lives, and ends after
// its request arrived.
func (a *attempt) handle() {
	w := a.k.w
	wait := w.between(0, 20*time.Millisecond)
	if w.chance(0.2) || w.dawdles() {
		wait = w.between(0, max(0, a.m0+a.Timeout-w.now))
	}
	a.do(wait, func() {
		if a.over {
			return
		}
		if w.now >= a.m0+a.Timeout || w.chance(0.02) {
			a.over = true
			a.k.record(a, a.unsent("the handler did not send", a.BackoffMin))
			return
		}
		a.sendNow()
		patience := a.m0 + a.Timeout - w.now
		if w.chance(0.1) { // it gives up before
			patience = w.between(0, patience)
		}
		a.do(patience, func() {
			if !a.over {
				a.reset()
				a.end(errorEnding, a.arrival(), "timed out")
			}
		})
	})
}

func (a *attempt) free() {
	if a.slot {
		a.slot = false
		a.k.busy--
		a.k.running = slices.DeleteFunc(a.k.running, func(other *attempt) bool { return other == a })
	}
	a.k.fillSlots()
	a.k.takeIn(time.Millisecond)
}

// unsent and end make the closing, as tasks/attempt.go does.
func (a *attempt) unsent(why string, d time.Duration) ledger.Closing {
	c := a.closing(callqueue.OutcomeNotSent, why)
	c.Status = callqueue.StatusNew
	if d > 0 {
		d = d/2 + time.Duration(a.k.w.rng.Int64N(int64(d)))
		c.Delay = &d
	}
	return c
}

func (a *attempt) closing(outcome callqueue.Outcome, why string) ledger.Closing {
	c := ledger.Closing{
		CallID: a.CallID, Attempt: a.Attempt, Token: a.token, Unstarted: !a.begun, Outcome: outcome, Error: why,
	}
	if a.Epoch != "" && (a.answer.Refused == nil || !a.begun) {
		c.Opened = &ledger.Opened{Epoch: a.Epoch, Task: a.Task, Cost: a.Cost, Limits: a.Limits, Keys: a.Keys, Costs: a.Costs}
		if a.begun {
			c.Opened.From, c.Opened.SendWithin = a.answer.StartedAt, a.answer.SendWithin
		}
	}
	return c
}
