package sim

import (
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// host is where all requests go: the host of insertSQL's url.
const host = "api:80"

// arrivals is what httptask.Arrivals keeps for a worker's life: which requests were acknowledged and may wait in the API's queue,
// and what was answered.
type arrivals struct {
	waiting []*attempt
	newest  *exchanged    // whose request was written last; nil: nothing was
	planned bool          // an exchange is
	until   time.Duration // for so long exchanges go on without a doubt
}

// exchanged is a request's write and answer.
type exchanged struct{ written, answered time.Duration }

func (r *arrivals) remove(a *attempt) {
	r.waiting = slices.DeleteFunc(r.waiting, func(other *attempt) bool { return other == a })
}

// acknowledged notes that an attempt's request was seen to be acknowledged.
func (k *worker) acknowledged(a *attempt) {
	if a.later != nil {
		return
	}
	if k.w.mutant.ackIsLater {
		a.later = a.acked
		return
	}
	k.arrivals.waiting = append(k.arrivals.waiting, a)
	k.exchangeIn()
}

// answered notes that an attempt was answered: what was acknowledged before its request was written has been read. A gateway
// may have said 429: it proves nothing.
func (k *worker) answered(a *attempt, with ending) {
	if !a.seen() || with == laterEnding {
		return
	}
	w := k.w
	k.overtaken(a, *a.heard)
	for _, other := range slices.Clone(k.arrivals.waiting) {
		if acked := other.m0 + *other.acked; acked <= a.sent || w.mutant.anyAnswer {
			w.note(other.CallID, "", "attempt %d is overtaken by %d/%d", other.Attempt, a.CallID, a.Attempt)
			if other.request == nil {
				w.note(other.CallID, "", "WRONG")
			}
			k.overtaken(other, w.now-other.m0)
		}
	}
	e := &exchanged{a.sent, w.now}
	if w.mutant.anyAnswer {
		e.written = e.answered
	}
	if k.arrivals.newest == nil || e.written > k.arrivals.newest.written {
		k.arrivals.newest = e
	}
	k.arrivals.until = w.now + 10*time.Second
	k.exchangeIn()
}

// overtaken notes that an attempt's request had been read so long after its m0.
func (k *worker) overtaken(a *attempt, later time.Duration) {
	k.arrivals.remove(a)
	if a.later == nil || later < *a.later {
		a.later = &later
	}
	if a.acked != nil && k.w.now >= a.sent+tellAfter {
		a.tell()
	}
}

// exchangeIn plans the next exchange, unless there would be nothing to tell.
func (k *worker) exchangeIn() {
	if k.arrivals.planned || !k.w.set.queues {
		return
	}
	k.arrivals.planned = true
	k.do(k.w.between(900*time.Millisecond, 1100*time.Millisecond), func() {
		k.arrivals.planned = false
		k.exchange()
	})
}

// exchangeSoon has all workers exchange what they know: a request is in doubt.
func (w *world) exchangeSoon() {
	for _, k := range w.workers {
		k.exchangeIn()
	}
}

// exchange is tasks/exchange.go: the worker hears what others saw, and tells what it knows.
func (k *worker) exchange() {
	w := k.w
	if w.fault(w.set.loss) {
		k.exchangeIn()
		return
	}
	known, err := ledger.AnsweredHosts(w.ctx, w.lane.workers)
	w.must(err)
	read := w.now
	k.do(w.latency(), func() {
		var newer []ledger.Answered
		for _, e := range known {
			k.hearOf(e, read)
			if n := k.arrivals.newest; n != nil {
				told := ledger.Answered{Host: host, Written: e.Now.Add(n.written - read), Answered: e.Now.Add(n.answered - read)}
				if e.Written.IsZero() || told.Written.After(e.Written) {
					newer = append(newer, told)
				}
			}
		}
		var doubtful []string
		if slices.ContainsFunc(k.arrivals.waiting, func(a *attempt) bool { return w.now >= a.sent+tellAfter }) {
			doubtful = []string{host}
		}
		if len(newer) > 0 || len(doubtful) > 0 {
			k.do(w.latency(), func() { w.must(ledger.TellHosts(w.ctx, w.lane.workers, doubtful, newer)) })
		}
		if len(known) > 0 && w.now < k.arrivals.until || len(k.arrivals.waiting) > 0 {
			k.exchangeIn()
		}
	})
}

// hearOf takes in what another worker knows to have been answered, as Postgres's clock showed e.Now.
func (k *worker) hearOf(e ledger.Answered, read time.Duration) {
	if e.Written.IsZero() {
		return
	}
	for _, a := range slices.Clone(k.arrivals.waiting) {
		if a.m0+*a.acked <= read+e.Written.Sub(e.Now)-ledger.ClockMargin {
			k.w.note(a.CallID, "", "attempt %d is overtaken by another worker's", a.Attempt)
			k.overtaken(a, read+e.Answered.Sub(e.Now)-a.m0)
		}
	}
}
