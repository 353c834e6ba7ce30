package model

// passes is what happens by itself: time, the network, Postgres's clock, a failover.
func (m *Model) passes(s *State) {
	for i := range s.seen {
		if g := &s.seen[i]; g.flight > 0 {
			n := *s
			n.seen[i].flight, n.seen[i].landed, n.seen[i].arrival = 0, true, 0
			for w := range n.runs {
				if r := &n.runs[w]; r.phase == wrote && int(r.slot) == i {
					r.phase = heard
					if !m.Finish {
						r.by = -r.m0
					}
				}
			}
			m.emit(moveArrive, g.call, g.attempt, n, m.overLimit(&n))
		}
	}
	n := *s
	m.tick(&n)
	m.emit(moveTick, 0, 0, n, "")
	if unseen := m.SeenSteps && (s.disps[0].fresh || s.disps[1].fresh); s.left.ClockForward > 0 && !unseen {
		n := *s
		n.left.ClockForward--
		m.setClock(&n, m.StepBy)
		m.emit(moveClockForward, m.StepBy, 0, n, "")
	}
	if s.left.ClockBack > 0 {
		n := *s
		n.left.ClockBack--
		m.setClock(&n, -m.StepBy)
		m.emit(moveClockBack, m.StepBy, 0, n, "")
	}
	m.failsOver(s)
}

// tick lets one unit of time pass, on every clock. What was in the network for slack is lost. A claim
// that takes too long is aborted (claimTimeout), and a worker that was stopped for too long is taken
// not to come back.
func (m *Model) tick(n *State) {
	m.advance(n, 1)
	for i := range n.seen {
		g := &n.seen[i]
		g.flight = max(0, g.flight-1)
		if g.landed {
			g.arrival--
		}
	}
	for w := range n.runs {
		r := &n.runs[w]
		if r.phase == asked || r.phase == granted || r.phase == wrote || r.phase == heard || r.phase == told {
			if r.m0--; -r.m0 > m.frozen {
				*r = run{}
			}
		}
	}
	for i := range n.disps {
		if d := &n.disps[i]; (d.phase == clocked || d.phase == halved) && d.now < -claimMost {
			d.rest()
		}
	}
}

// setClock sets Postgres's clock by so much; dispatchers will know when they look.
func (m *Model) setClock(n *State, by int8) {
	m.advance(n, by)
	for i := range n.disps {
		if d := &n.disps[i]; !d.fresh {
			d.unlooked += by
		}
	}
}

// advance moves Postgres's clock: what it has told lies further back.
func (m *Model) advance(s *State, by int8) {
	if m.Bucket > 0 {
		s.phase = ((s.phase+by)%m.Bucket + m.Bucket) % m.Bucket
	}
	s.pg.advance(by)
	if s.split == 1 {
		s.repl.advance(by)
	}
	for i := range s.disps {
		d := &s.disps[i]
		if d.phase != resting {
			d.now -= by
		}
		if d.gain > 0 {
			d.gainAt -= by
		}
	}
}

func (p *postgres) advance(by int8) {
	for i := range p.rows {
		r := &p.rows[i]
		switch r.stage {
		case open:
			r.claimed -= by
		case started:
			r.claimed, r.at = r.claimed-by, r.at-by
		case charged:
			r.claimed, r.at, r.until = r.claimed-by, r.at-by, r.until-by
			if r.used {
				r.label -= by
			}
		case absent, unsent:
		}
	}
	if p.gain > 0 {
		p.gainAt -= by
	}
	p.limit.missing -= by
	p.limit.force[0] -= by
	p.limit.force[1] -= by
}

// failsOver: the standby stops following at some moment, at a later one it is promoted. The former
// primary is fenced; statements under way there are lost with their connections, and what had been
// committed since the standby followed is lost, too.
func (m *Model) failsOver(s *State) {
	if s.left.Failovers > 0 && s.split == 0 {
		n := *s
		n.left.Failovers--
		n.split, n.repl = 1, n.pg
		m.emit(moveStandbyStops, 0, 0, n, "")
	}
	if s.split != 1 {
		return
	}
	n := *s
	n.split, n.pg, n.repl = 2, s.repl, postgres{}
	n.pg.epoch++
	for i := range n.disps {
		if d := &n.disps[i]; !d.fresh && d.unlooked <= 0 && !m.has(GainLost) { // it writes down again what it saw
			n.pg.gain, n.pg.gainAt = s.pg.gain, s.pg.gainAt
		}
	}
	n.asks = [askCount]ask{}
	n.publishing = false
	for i := range n.disps {
		n.disps[i].rest()
	}
	for i := range n.seen {
		if n.seen[i].used && n.pg.rows[i].stage == absent {
			n.seen[i].lost = true
		}
	}
	m.emit(moveFailover, 0, 0, n, "")
	if (m.Broken == 0 || m.has(FindsAll)) && m.foundAll(s) { // then all goes on as it is; other mistakes show without
		n.pg.epoch = s.pg.epoch
		m.emit(moveFailoverWhole, 0, 0, n, "")
	}
}

// foundAll says whether the standby has each start that a worker was told of, and may have sent for. Workers that live say so of
// their last: the standby then has all before it. One that died since the standby stopped following says nothing.
func (m *Model) foundAll(s *State) bool {
	for i := range s.seen {
		g := &s.seen[i]
		told := g.used && (s.pg.rows[i].stage == charged || g.writes > 0 || g.flight > 0 || g.landed)
		for j := range s.runs {
			told = told || s.runs[j].phase >= granted && int(s.runs[j].slot) == i
		}
		if stage := s.repl.rows[i].stage; told && (stage == absent || stage == open) && !m.has(FindsAll) {
			return false
		}
	}
	return true
}
