package model

// tidy forgets what cannot matter and brings what is alike to one form, so that fewer states are to be
// explored. From what it makes one the same can go wrong:
//
//   - Calls, workers, dispatchers and statements are interchangeable. A claim takes any calls that wait.
//   - A time that lies beyond every comparison to come is as good as any that is earlier.
//   - Of a call that is done, failed, deleted or out of attempts nothing more comes, and the call
//     is asked for nothing but that. (heal still sees it wait, once.)
//   - A message of an attempt that has started or ended is dropped by whoever takes it, unless a failover
//     may undo the start.
//   - What a worker still has to record of an attempt that others have ended changes nothing.
//   - Until only shrinks (closeRow holds that), so a charge exceeds the rate at its start or never, and
//     when those started that have ended is forgotten. Not so with a failover, or with a broken rule.
//   - A dispatcher that sees the clock set forward at once, rather than later, counts as much until it
//     forgets, and forgets sooner: whatever the other can do wrong it can, and it may. Not so where one may start
//     anew, which knows only what was seen.
//
// TestTidyLosesNothing compares what is reached with and without. With the last alone that is less,
// not the same.
func (m *Model) tidy(s *State) {
	m.tidyKeepingNames(s)
	if m.whole {
		return
	}
	if m.nameCalls(s) {
		s.orderAttempts()
		sortRest(s)
	}
}

// tidyKeepingNames is tidy, but calls keep their numbers, so that steps can be told by them.
func (m *Model) tidyKeepingNames(s *State) {
	for i := range s.disps {
		m.clipDisp(s, i)
	}
	m.clipGain(s, &s.pg)
	if s.split == 1 {
		m.clipGain(s, &s.repl)
	}
	e := m.edges(s)
	for i := range s.disps {
		if d := &s.disps[i]; d.phase == counted {
			d.now = max(d.now, e.claimed)
		}
	}
	m.clip(&s.pg, &e)
	if s.split == 1 {
		m.clip(&s.repl, &e)
	}
	for i := range s.runs {
		m.clipRun(s, &s.runs[i])
	}
	for i := range s.seen {
		m.forget(s, i, &e)
	}
	m.endCalls(s, &s.pg)
	if s.split == 1 {
		m.endCalls(s, &s.repl)
	}
	s.orderAttempts()
	sortRest(s)
}

func (m *Model) clipDisp(s *State, i int) {
	d := &s.disps[i]
	d.gainAt = max(d.gainAt, -m.forgotten())
	if !m.whole && (d.phase == resting || d.phase == counted) {
		switch {
		case d.unlooked > 0 && s.left.ClockBack == 0 && m.Faults.DispatcherDies == 0:
			m.look(s, i) // the sooner it looks, the sooner it forgets: see tidy
		case d.unlooked < 0 && s.left.ClockForward == 0:
			d.unlooked = 0
		}
		if s.left.ClockForward == 0 {
			d.fresh = false // there is nothing to come that it would have to have looked for
		}
	}
	switch {
	case d.phase == resting || d.phase == counted: // it reads what is written when it looks
		d.gain, d.gainAt = 0, 0
	case s.left.ClockBack == 0 && !m.gainKept(d, d.now):
		d.gain, d.gainAt = 0, 0
	}
}

// clipGain forgets a gain by which no window is widened any more.
func (m *Model) clipGain(s *State, p *postgres) {
	p.gainAt = max(p.gainAt, -m.forgotten())
	if s.left.ClockBack == 0 && !m.gainKept(&disp{gain: p.gain, gainAt: p.gainAt}, 0) {
		p.gain, p.gainAt = 0, 0
	}
}

// edges are the times, relative to now, that are as good as any that are earlier.
type edges struct {
	claimed int8 // of an attempt that has not started
	at      int8 // started_at of an open attempt
	charged int8 // started_at in the ledger
	until   int8 // a charge that ended by then can matter no more
	force   int8
}

func (m *Model) edges(s *State) edges {
	// Set back, the clock makes what is old younger by so much.
	comes := m.StepBy * s.left.ClockBack
	gain := int8(0)
	for i := range s.disps {
		gain = max(gain, max(s.pg.gain, s.repl.gain, s.disps[i].gain)+max(0, s.disps[i].unlooked))
	}
	var e edges
	e.until = -(m.Window + m.back + comes + gain)
	if m.whole {
		e.until = -(m.Window + claimMost + m.StepBy*(m.Faults.ClockForward+m.Faults.ClockBack))
	}
	e.at = min(e.until-m.longest, -m.Deadline-1-comes)
	e.charged = m.Window + e.until - 1
	e.claimed = -comes // claimed_at matters to a start after a step back ...
	if m.Faults.Failovers > 0 {
		e.claimed = min(e.claimed, e.charged) // ... and to what a new epoch finds unstarted
	}
	if m.has(CountDispatched) {
		e.claimed = e.at
	}
	e.force = -(m.back + comes + 1)
	return e
}

// forgotten is the age of a gain that no window is widened by.
func (m *Model) forgotten() int8 {
	return m.Window + m.longest + m.Deadline + 3*m.StepBy + 1
}

// endCalls makes calls alike that differ in nothing to come: done, failed, deleted with no attempt
// open, or waiting for an attempt that the bounds do not allow.
func (m *Model) endCalls(s *State, p *postgres) {
	if m.whole {
		return
	}
	for c := range p.calls {
		k := &p.calls[c]
		switch k.status {
		case dispatched:
			continue
		case waiting:
			if m.claimable(s, k) {
				continue
			}
		case gone:
			if m.Broken != 0 || s.hasOpen(p, c) {
				continue
			}
		}
		if m.Broken != 0 {
			k.status, k.fails = done, 0
			continue
		}
		*k = call{status: done}
	}
}

func (s *State) hasOpen(p *postgres, c int) bool {
	for i := range s.seen {
		if s.seen[i].used && int(s.seen[i].call) == c && p.isOpen(i) {
			return true
		}
	}
	return false
}

// clip takes times that lie beyond the reach of every comparison to its edge.
func (m *Model) clip(p *postgres, e *edges) {
	for i := range p.rows {
		r := &p.rows[i]
		switch r.stage {
		case absent:
			*r = row{}
			continue
		case open:
			r.claimed = max(r.claimed, e.claimed)
		case started:
			r.at = max(r.at, e.at)
		case charged:
			r.at, r.until = max(r.at, e.charged), max(r.until, e.until)
			if !r.used {
				r.label = 0
			}
		}
		if r.stage != open && !m.has(CountDispatched) {
			r.claimed = 0
		}
		if r.used && r.label <= e.until { // internal/recovery/attempts.go tidyUsageSQL
			r.used, r.label, r.former = false, 0, false
		}
	}
	l := &p.limit
	for v := range l.force {
		l.force[v] = max(l.force[v], e.force)
		if v >= int(l.version) {
			l.force[v] = 0
		}
	}
	if l.missing = max(l.missing, e.until); l.epoch == 0 || l.missing == e.until {
		l.known = 0
		for i := range p.rows {
			p.rows[i].former = p.rows[i].former && l.epoch == 0 && p.epoch > 0 // it may not have been entered yet
		}
	}
	if l.epoch == 0 {
		l.missing = 0
	}
}

// forget frees a slot whose attempt can matter no more: closed, its charge and its arrival out of
// every window, and nobody left who knows of it. That is retention of the ledger, too
// (internal/maintenance/maintenance.go: purgeAttemptsSQL).
func (m *Model) forget(s *State, i int, e *edges) {
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
	late := g.messages > 0 && m.known(s, i) // else whoever takes it drops it, for the attempt has started or ended
	if !m.whole && r.stage != open && !late {
		g.messages = 0
		if !busy && r.stage == started && m.Broken == 0 && s.split != 1 {
			g.writes = 0 // nobody has its token: nothing more is written
		}
	}
	settled := r.stage == absent && g.lost || r.stage == unsent && g.writes == 0 ||
		r.stage == charged && !r.used && r.until <= e.until
	if !settled || g.flight > 0 || g.landed && g.arrival > -m.Window || s.split == 1 && s.repl.rows[i].stage != absent {
		return
	}
	if !late && !busy {
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
	case m.Resend > 0 && (r.phase == heard || r.phase == wrote && s.seen[r.slot].flight == 0):
		r.m0 = max(r.m0, -r.off-m.Resend)
	case r.phase == wrote && s.seen[r.slot].flight == 0 || r.phase == heard || r.phase == told:
		r.m0 = 0
	}
	if r.phase == ended && r.ending == endError && !m.whole && m.Broken == 0 {
		c := s.seen[r.slot].call
		if m.endsAnyway(s, &s.pg.calls[c]) && (s.split != 1 || m.endsAnyway(s, &s.repl.calls[c])) {
			r.ending = endDone
		}
	}
	if r.phase == ended && s.split != 1 && !s.seen[r.slot].lost && !m.has(FinishOverwrites) {
		if i := int(r.slot); !s.pg.isOpen(i) || !m.mayClose(&s.pg, i, *r) {
			*r = run{} // what it records changes nothing
		}
	}
}

// endsAnyway says whether the call ends, or has ended, whether its attempt is done or failed.
func (m *Model) endsAnyway(s *State, k *call) bool {
	return k.status != dispatched || k.fails+1 >= m.Failures || k.attempts >= m.Attempts || s.left.Retries == 0
}

// known says whether a late message of the attempt could still do something: under a broken rule,
// or because its number was given out again after a failover.
func (m *Model) known(s *State, i int) bool {
	if m.Broken != 0 || m.whole || s.seen[i].lost {
		return true
	}
	return s.split == 1 && (s.repl.rows[i].stage == absent || s.repl.rows[i].stage == open)
}
