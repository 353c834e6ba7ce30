package model

import (
	"cmp"
	"slices"
)

// tidy forgets what cannot matter and brings what is alike to one form: attempts in order of their
// calls, tokens numbered as they are met, and of two workers, dispatchers or statements the
// smaller first, for they are interchangeable.
func (m *Model) tidy(s *State) {
	m.clip(&s.pg)
	if s.split == 1 {
		m.clip(&s.repl)
	}
	for i := range s.disps {
		d := &s.disps[i]
		d.now, d.gainAt = max(d.now, -m.reach), max(d.gainAt, -m.reach)
		if d.phase == counted && !m.keepsClaimed() {
			d.now = 0
		}
		if d.gain > 0 && !m.gainKept(d, 0) && s.left.ClockBack == 0 {
			d.gain, d.gainAt = 0, 0
		}
	}
	for i := range s.runs {
		m.clipRun(s, &s.runs[i])
	}
	for i := range s.seen {
		m.forget(s, i)
	}
	m.order(s)
	slices.SortFunc(s.runs[:], func(a, b run) int {
		return cmp.Or(cmp.Compare(a.phase, b.phase), cmp.Compare(a.slot, b.slot),
			cmp.Compare(a.m0, b.m0), cmp.Compare(a.off, b.off), cmp.Compare(a.by, b.by), cmp.Compare(a.ending, b.ending))
	})
	renumber(s)
	slices.SortFunc(s.disps[:], func(a, b disp) int {
		return cmp.Or(cmp.Compare(a.phase, b.phase), cmp.Compare(a.now, b.now), cmp.Compare(a.room, b.room),
			cmp.Compare(a.unlooked, b.unlooked), cmp.Compare(a.gainAt, b.gainAt), cmp.Compare(a.gain, b.gain), compareBool(a.fresh, b.fresh))
	})
	slices.SortFunc(s.asks[:], func(a, b ask) int {
		return cmp.Or(cmp.Compare(a.token, b.token), cmp.Compare(a.slot, b.slot), compareBool(a.locked, b.locked), cmp.Compare(a.m0, b.m0))
	})
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// clip takes times that lie beyond the reach of every comparison to its edge.
func (m *Model) clip(p *postgres) {
	for i := range p.rows {
		r := &p.rows[i]
		if r.stage == absent {
			*r = row{}
			continue
		}
		r.claimed, r.at, r.until = max(r.claimed, -m.reach), max(r.at, -m.reach), max(r.until, -m.reach)
		if !m.keepsClaimed() || r.stage != open && !m.has(CountDispatched) {
			r.claimed = 0
		}
		if r.stage == charged { // before the starts that verify looks at is before them all
			r.at, r.until = max(r.at, m.Window-m.settled()-1), max(r.until, -m.settled())
		}
		if r.used && r.label <= -m.settled() { // dispatcher/sweep.go tidyUsageSQL
			r.used, r.label = false, 0
		}
	}
	for v := range p.limit.force {
		p.limit.force[v] = max(p.limit.force[v], -m.reach)
		if v >= int(p.limit.version) {
			p.limit.force[v] = -m.reach
		}
	}
	p.limit.shut = max(p.limit.shut, -m.settled())
	if steady := m.Faults.ClockForward+m.Faults.ClockBack == 0; p.limit.epoch == 0 || steady && p.limit.shut < 0 {
		p.limit.shut = 0
	}
}

// forget frees a slot whose attempt can matter no more: closed, its charge and its arrival out of
// every window, and nobody left who knows of it. That is retention of the ledger, too
// (dispatcher/retain.go retireAttemptsSQL).
func (m *Model) forget(s *State, i int) {
	g, r := &s.seen[i], &s.pg.rows[i]
	if !g.used {
		return
	}
	g.arrival = max(g.arrival, -m.Window)
	busy := s.refers(i)
	if !busy && (r.stage == charged || g.lost) {
		g.writes = 0
	}
	if g.arrival == -m.Window {
		g.landed, g.arrival = false, 0
	}
	settled := r.stage == absent && g.lost || r.stage == unsent && g.writes == 0 ||
		r.stage == charged && !r.used && r.until <= -m.settled()
	if !settled || g.flight > 0 || g.landed && g.arrival > -m.Window || s.split == 1 && s.repl.rows[i].stage != absent {
		return
	}
	if g.parcels > 0 && m.known(s, i) { // of an attempt that has ended: whoever takes it drops it
		return
	}
	if !busy {
		*g, *r = seen{}, row{}
	}
}

// refers says whether a worker or a statement under way still knows of the slot.
func (s *State) refers(i int) bool {
	for j := range s.runs {
		if s.runs[j].phase != idle && int(s.runs[j].slot) == i {
			return true
		}
	}
	for j := range s.asks {
		if s.asks[j].token != 0 && int(s.asks[j].slot) == i {
			return true
		}
	}
	return false
}

// clipRun forgets what can matter no more of when the run asked for its start.
func (m *Model) clipRun(s *State, r *run) {
	switch {
	case m.Finish || m.has(NoGate) || m.has(UntilExtended):
	case r.phase == asked || r.phase == granted:
		r.m0 = max(r.m0, -m.SendWithin-1)
	case r.phase == wrote && s.seen[r.slot].flight == 0 || r.phase == heard:
		r.m0 = 0
	}
	if r.phase == ended && m.Faults.Failovers == 0 && !m.has(FinishOverwrites) {
		if i := int(r.slot); !s.pg.isOpen(i) || !m.mayClose(&s.pg, i, *r) {
			*r = run{} // what it records changes nothing
		}
	}
}

// known says whether a late parcel of the attempt could still do something: under a broken rule,
// or because its number was given out again after a failover.
func (m *Model) known(s *State, i int) bool {
	return m.Broken != 0 || s.seen[i].lost || s.split > 0 || s.left.Failovers > 0
}

// order sorts the attempts by call and number; those that a failover lost come last.
func (m *Model) order(s *State) {
	sorted := true
	for i := 1; i < slotCount && sorted; i++ {
		sorted = s.rank(i-1) <= s.rank(i)
	}
	if sorted {
		return
	}
	var from [slotCount]int
	for i := range from {
		from[i] = i
	}
	slices.SortStableFunc(from[:], func(a, b int) int { return cmp.Compare(s.rank(a), s.rank(b)) })
	old := *s
	var to [slotCount]int8
	for i, f := range from {
		s.seen[i], s.pg.rows[i], s.repl.rows[i] = old.seen[f], old.pg.rows[f], old.repl.rows[f]
		to[f] = int8(i)
	}
	for i := range s.runs {
		if s.runs[i].phase != idle {
			s.runs[i].slot = to[s.runs[i].slot]
		}
	}
	for i := range s.asks {
		if s.asks[i].token != 0 {
			s.asks[i].slot = to[s.asks[i].slot]
		}
	}
}

func (s *State) rank(i int) int {
	g := &s.seen[i]
	switch {
	case !g.used:
		return 10_000
	case g.lost:
		return 1000 + int(g.call)*20 + int(g.attempt)
	}
	return int(g.call)*20 + int(g.attempt)
}

// renumber gives tokens the smallest numbers, in the order in which they are met.
func renumber(s *State) {
	var to [32]int8
	next := int8(1)
	number := func(t *int8) {
		if *t == 0 {
			return
		}
		if to[*t] == 0 {
			to[*t] = next
			next++
		}
		*t = to[*t]
	}
	for i := range s.pg.rows {
		number(&s.pg.rows[i].token)
	}
	for i := range s.repl.rows {
		number(&s.repl.rows[i].token)
	}
	for i := range s.runs {
		number(&s.runs[i].token)
	}
	for i := range s.asks {
		number(&s.asks[i].token)
	}
}
