package model

// sweeps are the dispatchers' sweepers (internal/recovery/attempts.go), retention and an operator who deletes
// calls. Each acts by compare-and-set, so it does not matter which dispatcher it is, nor whether it
// still runs.
func (m *Model) sweeps(s *State) {
	for i := range s.pg.rows {
		if s.pg.isOpen(i) && !s.rowLocked(i) {
			m.sweepRow(s, i)
		}
	}
	for c := range s.pg.calls {
		m.retire(s, c)
	}
}

func (m *Model) sweepRow(s *State, i int) {
	r, g := s.pg.rows[i], s.seen[i]
	closed := func(kind move, e ending, off int8) {
		n := *s
		bad := m.closeRow(&n, i, e, off)
		n.pg.rows[i].former = r.epoch != n.pg.epoch && n.pg.rows[i].used
		m.emit(kind, g.call, g.attempt, n, bad)
	}
	current := r.epoch == s.pg.epoch
	lost := min(m.SendWithin+m.Resend, m.Deadline) + m.Slack
	if r.arrived > 0 {
		lost = r.arrived
	}
	if m.Finish {
		lost = m.Deadline + m.Slack
	}
	if !current {
		off := lost
		if r.stage == open || m.has(EpochAsOfNow) { // whether it started is not known
			off = m.Slack - r.at
			if r.stage == open {
				off = m.Slack - r.claimed
			}
		}
		e := endError
		if m.has(RefundEpoch) {
			e = endUnsent
		}
		closed(moveSweepEpoch, e, off)
	}
	if r.stage == started && r.at+m.Deadline < 0 {
		off, e := lost, endError
		switch {
		case m.has(RefundLost):
			e = endUnsent
		case m.has(LostAtStart):
			off = 0
		}
		closed(moveSweepLost, e, off)
	}
	if (r.stage == open || m.has(RefundStarted)) && (current || m.has(UnsentOldEpoch)) && s.left.Unstarted > 0 {
		left := s.left.Unstarted
		n := *s
		n.left.Unstarted = left - 1
		bad := m.closeRow(&n, i, endUnstarted, 0)
		m.emit(moveSweepUnstarted, g.call, g.attempt, n, bad)
	}
	if (r.stage == open || m.has(ResendAnew)) && current && g.messages == 0 && !m.has(NoResend) {
		m.resend(s, i)
	}
}

// resend sends again what Redis no longer has. While a worker has it, that is a fault: it took longer
// than resendAfter.
func (m *Model) resend(s *State, i int) {
	n := *s
	g := &n.seen[i]
	for w := range s.runs {
		if s.runs[w].phase == idle || int(s.runs[w].slot) != i {
			continue
		}
		if s.left.ParcelTwice == 0 {
			return
		}
		n.left.ParcelTwice--
		break
	}
	if m.has(ResendAnew) {
		c := g.call
		k := &n.pg.calls[c]
		n.pg.rows[i] = row{stage: unsent}
		k.status = waiting
		m.openAttempt(&n, int(c), 0)
		m.emit(moveResend, c, k.attempts, n, "")
		return
	}
	g.messages = 1
	m.emit(moveResend, g.call, g.attempt, n, "")
}

// retire is retention, at any time after the call has ended and no attempt is open, or an operator
// who deletes the call, whatever its status. What it used stays used.
func (m *Model) retire(s *State, c int) {
	if s.left.Deleted == 0 || s.pg.calls[c].status == gone {
		return
	}
	n := *s
	n.left.Deleted--
	n.pg.calls[c].status = gone
	for i := range n.seen {
		if g := &n.seen[i]; g.used && !g.lost && int(g.call) == c {
			r := &n.pg.rows[i]
			if m.has(RetireFrees) {
				r.used, r.label = false, 0
			}
			if m.has(DeleteCloses) && n.pg.isOpen(i) && !n.rowLocked(i) {
				*r = row{stage: unsent}
			}
		}
	}
	m.emit(moveDelete, int8(c), 0, n, "")
}
