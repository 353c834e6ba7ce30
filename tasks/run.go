package tasks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/alarm"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

// A run is a message of which one delivery has all attempts. It lets each through once its turn has come by the paces of its limits, and
// asks for the starts a little ahead. What it does not send goes back.

// lane is the attempts of a run that wait for one another, in their order.
type lane struct {
	w       *Worker
	members []*attempt
	step    time.Duration // the least between two turns
	took    time.Duration // between the last ones, about
	over    time.Time     // what has no turn by then goes back
	starts  int           // that were asked for
	alarm   alarm.Alarm
	news    chan struct{} // has one when something of the following has changed

	mu    sync.Mutex
	paces map[paced]*limit.Pace
	open  int   // members that have not ended
	cut   error // why the others go back
}

// paced is a limit, with its key, that paces calls.
type paced struct{ limit, key string }

// place is an attempt's in its lane.
type place struct {
	*lane
	units  map[paced]int64
	taken  map[paced]*limit.Taken
	turn   time.Time
	since  time.Time     // its turn had come by Postgres's clock
	asked  chan struct{} // closed once the start is answered, so:
	answer ledger.StartAnswer
	err    error
}

const (
	askAhead = 60 * time.Millisecond  // of a turn, for its start
	askMost  = 200 * time.Millisecond // what comes by then is asked for with it
	precise  = 20 * time.Millisecond  // before a turn only the alarm is waited for
	overrun  = time.Second            // how much longer than limit.RunFor a run may take
)

var (
	errRunOver = errors.New("its turn in the run did not come in time")
	errRefused = errors.New("the API has refused a call before it")
	errDoubt   = errors.New("whether a call before it has arrived is not known")
)

// deliverRun runs a run's message. It returns once the run is reserved, or never will be.
func (w *Worker) deliverRun(message handoff.Message) {
	token := rand.Int64() | 1 // never 0
	members := w.reserve(message.Attempts, token)
	message.Attempts = slices.DeleteFunc(message.Attempts, func(r handoff.Ref) bool {
		return !slices.ContainsFunc(members, func(m ledger.Member) bool { return m.CallID == r.CallID && m.Attempt == r.Attempt })
	})
	byCall := make(map[int64]ledger.Member, len(members))
	for _, m := range members {
		byCall[m.CallID] = m
	}
	attempts := w.attemptsOf(message)
	for _, a := range attempts {
		a.token = token
		w.slots.attempts.Add(1)
	}
	for _, l := range w.lanes(attempts, byCall) {
		go l.drive()
	}
}

// reserve reserves a run for this delivery. It tries for as long as that may help.
func (w *Worker) reserve(refs []handoff.Ref, token int64) (members []ledger.Member) {
	calls := make([]int64, len(refs))
	for i, r := range refs {
		calls[i] = r.CallID
	}
	ctx, cancel := context.WithTimeout(w.handling, ledger.StartWithin)
	defer cancel()
	retry(ctx, 20*time.Millisecond, func() (err error) {
		ctx, cancelled := context.WithTimeout(ctx, statementTimeout)
		defer cancelled()
		members, err = ledger.Reserve(ctx, w.db, w.id, token, calls)
		if err == nil && len(members) > 0 { // they have the same limits. What changes after this recalls what has not started
			err = w.recorder.closer.Learn(ctx, w.db, members[0].Limits)
		}
		if err != nil && w.draining() {
			cancel() // recovery hands them back
		}
		return err
	}, func(err error) { w.log.WarnContext(ctx, "run not reserved", "attempts", len(refs), "err", err) })
	return members
}

// lanes puts attempts into lanes: one for each key, or one for all, if a limit that all keys share paces them.
func (w *Worker) lanes(attempts []*attempt, members map[int64]ledger.Member) (list []*lane) {
	of := map[string]*lane{}
	for _, a := range attempts {
		m := members[a.callID]
		p := &place{units: map[paced]int64{}, taken: map[paced]*limit.Taken{}, asked: make(chan struct{})}
		name := ""
		for i, room := range m.Rooms {
			if room != nil {
				p.units[paced{m.Limits[i], m.Keys[i]}] = m.Costs[i]
				name = m.Keys[i]
			}
		}
		for of := range p.units {
			if of.key == "" {
				name = ""
			}
		}
		l := of[name]
		if l == nil {
			l = &lane{
				w: w, news: make(chan struct{}, 1), paces: map[paced]*limit.Pace{}, over: time.Now().Add(limit.RunFor + overrun),
			}
			of[name], list = l, append(list, l)
		}
		for i, room := range m.Rooms {
			if room != nil {
				l.paces[paced{m.Limits[i], m.Keys[i]}] = &limit.Pace{Room: *room, Gap: *m.Gaps[i]}
				l.step = max(l.step, *m.Gaps[i]/time.Duration(*room))
			}
		}
		p.lane, a.place = l, p
		l.members, l.open, l.took = append(l.members, a), l.open+1, l.step
	}
	return list
}

// drive gives the members their turns.
func (l *lane) drive() {
	l.alarm = alarm.New()
	defer l.alarm.Close()
	for i, a := range l.members {
		err := l.await(i)
		if err == nil && !l.w.slots.take(l.w.serving) {
			err = errDraining
		}
		if err != nil {
			for _, a := range l.members[i:] {
				a.giveBack(err)
			}
			return
		}
		l.take(a)
		a.begin()
	}
}

// await waits until it is a member's turn, and asks for starts meanwhile.
func (l *lane) await(i int) error {
	a := l.members[i]
	for {
		now := time.Now()
		at, known, cut := l.turnOf(a)
		at = slices.MaxFunc([]time.Time{at, a.notBefore, now}, time.Time.Compare)
		switch {
		case cut != nil:
			return cut
		case l.w.draining():
			return errDraining
		case now.After(l.over):
			return errRunOver
		}
		wait := l.over.Sub(now)
		if known {
			l.ask(i, at)
			if wait = at.Sub(now); wait <= precise {
				l.alarm.Sleep(at)
				if i > 0 {
					l.took = (3*l.took + at.Sub(l.members[i-1].place.turn)) / 4
				}
				a.place.turn = at
				return nil
			}
			if l.starts < len(l.members) {
				wait = min(wait, askAhead/2+precise)
			}
			wait -= precise
		}
		select {
		case <-l.news:
		case <-time.After(wait):
		case <-l.w.serving.Done():
		}
	}
}

// turnOf is when a member's units may be used.
func (l *lane) turnOf(a *attempt) (at time.Time, known bool, cut error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known = true
	for of, units := range a.place.units {
		t, is := l.paces[of].Turn(units)
		known = known && is
		at = slices.MaxFunc([]time.Time{at, t}, time.Time.Compare)
	}
	return at, known, l.cut
}

// ask asks for the starts of the members whose turns are near, the i-th at a moment: for several at once.
func (l *lane) ask(i int, at time.Time) {
	now := time.Now()
	comesBy := func(d time.Duration) bool {
		return l.starts < len(l.members) && at.Add(time.Duration(l.starts-i)*l.took).Sub(now) <= d
	}
	if !comesBy(askAhead) {
		return
	}
	for ; comesBy(askMost); l.starts++ {
		a := l.members[l.starts]
		a.notBefore = slices.MaxFunc([]time.Time{a.notBefore, at.Add(time.Duration(l.starts-i) * l.step)}, time.Time.Compare)
		a.m0 = now
		l.w.starts.Tell(l.w.recording, a.startRequest(), func(answer ledger.StartAnswer, err error) {
			a.place.answer, a.place.err = answer, err
			close(a.place.asked)
		})
	}
}

// take takes a member's units, as its turn has come.
func (l *lane) take(a *attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for of, units := range a.place.units {
		taken, since := l.paces[of].Take(units, a.place.turn)
		a.place.taken[of] = taken
		a.place.since = slices.MaxFunc([]time.Time{a.place.since, since}, time.Time.Compare)
	}
}

// started waits for the start's answer.
func (p *place) started() (ledger.StartAnswer, error) {
	<-p.asked
	return p.answer, p.err
}

// await notes when the attempt's turn has come. What has come too late for its gate, or after the run was cut, is refused.
//
// By Postgres's clock the turn is not before that of what has passed. Two starts have two readings of the two clocks, which are apart by
// less than a statement takes. An earlier m0 only makes bounds later.
func (p *place) await(a *attempt) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.waited = time.Since(a.m0)
	if apart := p.since.Sub(a.From.Add(a.waited)); apart > 0 {
		a.m0, a.waited = a.m0.Add(-apart), a.waited+apart
	}
	switch {
	case p.cut != nil:
		return p.cut
	case a.waited > limit.RunLate:
		return errRunOver
	}
	return nil
}

// left notes that an attempt has ended so; nil: it was never sent. It reports whether it was the last of its lane.
func (p *place) left(a *attempt, c *ledger.Closing) (last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for of, taken := range p.taken {
		pace := p.paces[of]
		if c == nil || c.Arrival == nil {
			pace.Unsent(taken)
		} else if until, known := p.w.recorder.closer.Until(*c, of.limit); known {
			pace.Arrived(taken, a.m0.Add(until), a.From.Add(until))
		} else {
			p.cut = errDoubt
		}
	}
	if c != nil && c.Outcome == callqueue.OutcomeRefused {
		p.cut = errRefused
	}
	select {
	case p.news <- struct{}{}:
	default:
	}
	p.open--
	return p.open == 0
}

// giveBack gives back an attempt of a run that has had no turn.
func (a *attempt) giveBack(why error) {
	closing := a.unsent(fmt.Errorf("handed back: %w", why), 0)
	last := a.place.left(a, closing)
	a.w.recorder.record(a.w.recording, *closing, func() {
		a.w.slots.attempts.Done()
		if last {
			a.w.recorder.unforeseen()
		}
	})
}
