package sim

import (
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

// run is what tasks/run.go does with a run's message, in events. All its attempts share one lane, which only makes it slower.
type run struct {
	k       *worker
	token   int64
	members []*attempt
	next    int // whose turn it is
	asked   int // starts
	planned int // looks
	over    time.Duration
	cut     string
	paces   map[paced]*limit.Pace
}

type paced struct{ limit, key string }

// place is an attempt's in its run.
type place struct {
	*run
	units  map[paced]int64
	taken  map[paced]*limit.Taken
	turn   time.Duration
	since  time.Time
	turned bool // it has its slot
	known  bool // its start is answered
	waited time.Duration
	gone   bool // it has ended
}

func moment(d time.Duration) time.Time { return time.Unix(1e9, 0).Add(d) }

func (k *worker) deliverRun(message handoff.Message) {
	r := &run{k: k, token: k.w.rng.Int64() | 1, over: k.w.now + limit.RunFor + time.Second, paces: map[paced]*limit.Pace{}}
	if k.w.mutant.oneToken {
		r.token = message.Attempts[0].CallID
	}
	var calls []int64
	for _, ref := range message.Attempts {
		calls = append(calls, ref.CallID)
	}
	began := k.w.now
	var reserve func()
	reserve = func() {
		var members []ledger.Member
		execute := func() {
			var err error
			members, err = ledger.Reserve(k.w.ctx, k.w.lane.workers, k.id, r.token, calls)
			k.w.must(err)
			k.w.note(0, "", "%d attempts of a run are reserved for %s", len(members), k.id)
		}
		f := k.w.reply()
		switch f {
		case answered, unheard:
			execute()
		case carriedOn:
			epoch := k.w.lane.epoch
			k.w.after(k.w.between(0, pick(k.w, time.Second, 10*time.Second)), func() {
				if k.w.lane.epoch == epoch {
					execute()
				}
			})
		}
		if k.hazard() {
			return
		}
		wait := k.w.latency()
		if f != answered {
			wait = pick(k.w, wait, k.w.between(0, 5*time.Second))
		}
		k.do(wait, func() {
			switch {
			case f == answered:
				r.begin(message, members)
			case k.w.now-began < ledger.StartWithin:
				reserve()
			}
		})
	}
	k.do(k.w.latency(), reserve)
}

// begin loads what was reserved.
func (r *run) begin(message handoff.Message, members []ledger.Member) {
	k := r.k
	if len(members) == 0 {
		return
	}
	k.w.must(k.closer.Learn(k.w.ctx, k.w.lane.workers, members[0].Limits))
	before := len(k.waiting)
	message.Run = false
	k.load(message.Attempts)
	attempts := slices.Clone(k.waiting[before:])
	k.waiting = k.waiting[:before]
	for _, a := range attempts {
		i := slices.IndexFunc(members, func(m ledger.Member) bool { return m.CallID == a.CallID && m.Attempt == a.Attempt })
		if i < 0 {
			continue
		}
		a.token = r.token
		a.place = &place{run: r, units: map[paced]int64{}, taken: map[paced]*limit.Taken{}}
		for n, room := range members[i].Rooms {
			if room != nil {
				of := paced{members[i].Limits[n], members[i].Keys[n]}
				r.paces[of], a.place.units[of] = &limit.Pace{Room: *room, Gap: *members[i].Gaps[n]}, members[i].Costs[n]
			}
		}
		r.members = append(r.members, a)
	}
	r.look()
}

// look gives the next attempt its turn, or plans to look again.
func (r *run) look() {
	k, w := r.k, r.k.w
	for r.next < len(r.members) && r.members[r.next].place.gone {
		r.next++
	}
	if r.next == len(r.members) {
		return
	}
	if w.now >= r.over && r.cut == "" {
		r.cut = "the run took too long"
	}
	if r.cut != "" {
		for _, a := range r.members[r.next:] {
			if !a.place.gone {
				k.record(a, a.unsent("handed back: "+r.cut, 0))
			}
		}
		r.next = len(r.members)
		return
	}
	a := r.members[r.next]
	at, known := max(w.now, a.notBefore), true
	for of, units := range a.place.units {
		turn, is := r.paces[of].Turn(units)
		at, known = max(at, turn.Sub(moment(0))), known && is
	}
	r.ask(at)
	if w.mutant.rushes {
		at, known = w.now, true
	}
	switch {
	case !known:
		r.lookIn(r.over - w.now)
	case at > w.now+5*time.Millisecond:
		r.lookIn(at - w.now - 5*time.Millisecond)
	case k.busy >= k.slots:
		r.lookIn(time.Millisecond)
	default:
		r.next++
		k.busy++
		a.slot, a.place.turn = true, at
		k.running = append(k.running, a)
		for of, units := range a.place.units {
			taken, since := r.paces[of].Take(units, moment(at))
			a.place.taken[of] = taken
			a.place.since = slices.MaxFunc([]time.Time{a.place.since, since}, time.Time.Compare)
		}
		a.do(at-w.now, func() { a.place.turned = true; a.place.meet(a) })
		r.lookIn(0)
	}
}

func (r *run) lookIn(d time.Duration) {
	r.planned++
	plan := r.planned
	r.k.do(d, func() {
		if plan == r.planned {
			r.look()
		}
	})
}

// ask asks for starts ahead, some of them for too late a moment.
func (r *run) ask(at time.Duration) {
	w := r.k.w
	for r.asked = max(r.asked, r.next); r.asked < len(r.members) && at-w.now < 160*time.Millisecond && r.asked < r.next+8; r.asked++ {
		a := r.members[r.asked]
		if a.place.gone {
			continue
		}
		a.notBefore = max(a.notBefore, w.now+w.between(0, 150*time.Millisecond))
		if r.asked == r.next {
			a.notBefore = min(a.notBefore, max(w.now, at))
		}
		a.asked, a.m0 = true, w.now
		r.k.askStart(a)
	}
}

// meet sends the attempt once it has its turn and its start.
func (p *place) meet(a *attempt) {
	if !p.turned || !p.known {
		return
	}
	w := a.k.w
	a.do(max(0, a.m0-w.now), func() {
		p.waited = w.now - a.m0
		if apart := p.since.Sub(a.startedAt.Add(p.waited)); apart > 0 {
			a.m0, p.waited, a.sendBy = a.m0-apart, p.waited+apart, a.sendBy-apart
		}
		switch {
		case a.over || p.gone:
		case p.cut != "":
			a.k.record(a, a.unsent("handed back: "+p.cut, 0))
		case p.waited > limit.RunLate:
			a.k.record(a, a.unsent("its turn came too late", 0))
		default:
			a.prepare()
		}
	})
}

// left notes that the attempt has ended so; nil: it was not sent.
func (p *place) left(a *attempt, c *ledger.Closing) {
	if p.gone {
		return
	}
	p.gone = true
	for of, taken := range p.taken {
		if c == nil || c.Arrival == nil {
			p.paces[of].Unsent(taken)
		} else if until, known := a.k.closer.Until(*c, of.limit); known {
			p.paces[of].Arrived(taken, moment(a.m0+until), a.startedAt.Add(until))
		} else {
			p.cut = "a call may not have arrived"
		}
	}
	if c != nil {
		c.Turn = p.waited
		if c.Outcome == callqueue.OutcomeRefused {
			p.cut = "the API has refused a call"
		}
	}
	if !slices.ContainsFunc(p.members, func(a *attempt) bool { return !a.place.gone }) {
		a.k.w.wake(0.8)
	}
	p.lookIn(0)
}
