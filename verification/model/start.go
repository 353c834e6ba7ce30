package model

// carries is Redis (internal/handoff): it may lose a message, repeat it, and bring it at any later
// time. Whoever takes one reads the attempt's row (tasks/attempt.go loadSQL).
func (m *Model) carries(s *State) {
	for i := range s.seen {
		g := &s.seen[i]
		if g.messages == 0 {
			continue
		}
		if s.left.ParcelLost > 0 {
			n := *s
			n.left.ParcelLost--
			n.seen[i].messages--
			m.emit(moveParcelLost, g.call, g.attempt, n, "")
		}
		if s.left.ParcelTwice > 0 && g.messages < 2 {
			n := *s
			n.left.ParcelTwice--
			n.seen[i].messages++
			m.emit(moveParcelTwice, g.call, g.attempt, n, "")
		}
		for w := range s.runs {
			if s.runs[w].phase == idle {
				m.deliver(s, i, w)
				break // the others are alike
			}
		}
	}
}

func (m *Model) deliver(s *State, i, w int) {
	n := *s
	g := n.seen[i]
	n.seen[i].messages--
	row := n.find(g.call, g.attempt)
	if row < 0 || n.pg.rows[row].stage != open {
		m.emit(moveParcelDropped, g.call, g.attempt, n, "")
		return
	}
	n.runs[w] = run{phase: loaded, slot: int8(row), token: n.newToken()}
	if !n.pg.calls[g.call].isAt(g.attempt) {
		n.runs[w] = run{phase: ended, slot: int8(row), token: n.newToken(), ending: endUnstarted}
	}
	if free, _ := n.asksOf(0); !m.FineStart && n.runs[w].phase == loaded {
		if free < 0 {
			return
		}
		n.runs[w].phase = asked
		n.asks[free] = ask{token: n.runs[w].token, slot: int8(row)}
	}
	m.emit(moveDeliver, g.call, g.attempt, n, "")
}

// isAt says whether the call is still dispatched in that attempt.
func (c *call) isAt(attempt int8) bool { return c.status == dispatched && c.attempts == attempt }

// starts is a worker's way to a durable start (tasks/start.go start): asked for with a token and
// an m0 that stay the same however often it is asked.
func (m *Model) starts(s *State) {
	for w := range s.runs {
		r := &s.runs[w]
		g := &s.seen[r.slot]
		if r.phase != loaded && r.phase != asked {
			continue
		}
		if s.left.Unstarted > 0 { // drained, no connection, or no answer in time
			n := *s
			n.left.Unstarted--
			n.runs[w] = run{phase: ended, slot: r.slot, token: r.token, ending: endUnstarted}
			m.emit(moveGiveBack, g.call, g.attempt, n, "")
		}
		free, under := s.asksOf(r.token)
		if free < 0 || under > 0 && (r.phase == loaded || s.left.StartTwice == 0) {
			continue
		}
		n := *s
		kind := moveAsk
		switch {
		case under > 0:
			n.left.StartTwice--
			kind = moveAskAgain
		case r.phase == asked:
			kind = moveAskAgain
		}
		if r.phase == loaded || m.has(NewM0) {
			n.runs[w].m0 = 0
		}
		n.runs[w].phase = asked
		n.asks[free] = ask{token: r.token, slot: r.slot}
		m.emit(kind, g.call, g.attempt, n, "")
	}
	for a := range s.asks {
		if s.asks[a].token == 0 {
			continue
		}
		m.startStatement(s, a)
		if s.left.StartAnswer > 0 {
			n := *s
			n.left.StartAnswer--
			g := n.seen[n.asks[a].slot]
			n.asks[a] = ask{}
			m.emit(moveStartAborts, g.call, g.attempt, n, "")
		}
	}
}

// asksOf is a free place for a statement, or -1, and how many with that token are under way.
func (s *State) asksOf(token int8) (free, under int) {
	free = -1
	for a := range s.asks {
		switch s.asks[a].token {
		case 0:
			free = a
		case token:
			under++
		}
	}
	return free, under
}

// startStatement is startSQL: it locks the row, and then starts the attempt by compare-and-set.
func (m *Model) startStatement(s *State, a int) {
	q := s.asks[a]
	g := s.seen[q.slot]
	row := s.find(g.call, g.attempt)
	n := *s
	n.asks[a] = ask{}
	switch {
	case row < 0 || !m.mayStart(&s.pg, row, q.token):
		m.answer(s, &n, q, moveNotStarted, func(r *run) { *r = run{} })
	case !s.pg.calls[g.call].isAt(g.attempt):
		m.answer(s, &n, q, moveCallGone, func(r *run) {
			*r = run{phase: ended, slot: int8(row), token: q.token, ending: endUnstarted}
		})
	case q.locked || !m.FineStart:
		if !q.locked && s.rowLocked(row) {
			return
		}
		m.startRow(&n, row, q.token)
		m.answer(s, &n, q, moveStart, func(r *run) {
			r.phase, r.slot = granted, int8(row)
			if m.has(LateM0) {
				r.m0 = 0
			}
		})
	case !s.rowLocked(row):
		n.asks[a] = ask{token: q.token, slot: int8(row), locked: true}
		m.emit(moveStartLock, g.call, g.attempt, n, "")
	}
}

func (m *Model) mayStart(p *postgres, row int, token int8) bool {
	r := &p.rows[row]
	return p.isOpen(row) && (r.epoch == p.epoch || m.has(NoEpochCheck)) &&
		(r.token == 0 || r.token == token || m.has(NoCompareAndSet))
}

func (m *Model) startRow(n *State, row int, token int8) {
	r := &n.pg.rows[row]
	if r.stage == open {
		r.at = 0
		if !m.has(ClockAlone) {
			r.at = max(0, r.claimed)
		}
		n.seen[row].version = n.pg.limit.version
	}
	r.stage, r.token = started, token
}

// answer gives a start's answer to the run that asked, if it still waits, or loses it.
func (m *Model) answer(s, n *State, q ask, kind move, tell func(*run)) {
	g := s.seen[q.slot]
	for w := range n.runs {
		if n.runs[w].phase != asked || n.runs[w].token != q.token {
			continue
		}
		if s.left.StartAnswer > 0 {
			lost := *n
			lost.left.StartAnswer--
			m.emit(moveAnswerLost, g.call, g.attempt, lost, "")
		}
		tell(&n.runs[w])
		break
	}
	m.emit(kind, g.call, g.attempt, *n, "")
}
