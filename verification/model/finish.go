package model

// sends is what a worker does once it was granted a start: through the gate, and to an end that it
// records until it is recorded (internal/httptask/gate.go, attempt.go, internal/limit Sending.Arrival).
func (m *Model) sends(s *State) {
	for w := range s.runs {
		r := &s.runs[w]
		g := &s.seen[r.slot]
		switch r.phase {
		case granted:
			m.gate(s, w)
		case wrote, heard, told:
			m.ends(s, w)
			m.acknowledges(s, w)
		case ended:
			m.records(s, w)
		}
		if r.phase != idle && s.left.WorkerDies > 0 {
			n := *s
			n.left.WorkerDies--
			m.reset(&n, int(r.slot))
			n.runs[w] = run{}
			m.emit(moveWorkerDies, g.call, g.attempt, n, "")
		}
	}
}

// gateOpen says whether the run may begin its request now. A handler of one's own has no gate but
// its deadline.
func (m *Model) gateOpen(r *run) bool {
	timeout := m.Deadline - 1
	switch {
	case m.has(NoGate):
		return true
	case m.Finish:
		return -r.m0 <= timeout
	case m.has(GateForgets):
		return -r.m0 <= m.SendWithin
	}
	return -r.m0 <= min(m.SendWithin, timeout)
}

func (m *Model) gate(s *State, w int) {
	r := &s.runs[w]
	g := s.seen[r.slot]
	if m.gateOpen(r) {
		n := *s
		m.write(&n, w)
		m.emit(moveWrite, g.call, g.attempt, n, m.twice(&n, int(r.slot)))
	}
	if !m.gateOpen(r) || s.left.Unstarted > 0 { // refused, or cancelled before
		n := *s
		if m.gateOpen(r) {
			n.left.Unstarted--
		}
		n.runs[w] = run{phase: ended, slot: r.slot, token: r.token, ending: endUnsent}
		m.emit(moveGateShut, g.call, g.attempt, n, "")
	}
}

func (m *Model) write(n *State, w int) {
	r := &n.runs[w]
	g := &n.seen[r.slot]
	r.phase, r.off = wrote, -r.m0
	g.writes++
	g.flight = m.Resend + m.Slack + 1
}

// reset ends the connection, on which nothing is sent again.
func (m *Model) reset(n *State, slot int) { n.seen[slot].flight = min(n.seen[slot].flight, m.Slack+1) }

// acknowledges has the worker see that its request has arrived, and tell the ledger (internal/httptask/gate.go).
func (m *Model) acknowledges(s *State, w int) {
	r := s.runs[w]
	g := s.seen[r.slot]
	seen := r.phase == heard || r.phase == wrote && m.has(AckedUnseen)
	if m.Resend == 0 || !seen {
		return
	}
	n := *s
	if r.phase == wrote {
		n.runs[w].by = -r.m0
	}
	n.runs[w].phase = told
	row := s.find(g.call, g.attempt)
	if row >= 0 && s.pg.rows[row].stage == started && s.pg.rows[row].token == r.token && !s.rowLocked(row) {
		n.pg.rows[row].arrived = max(n.runs[w].by, m.SendWithin+m.Slack)
	}
	m.emit(moveAcknowledge, g.call, g.attempt, n, "")
}

func (m *Model) twice(n *State, slot int) string {
	if n.seen[slot].writes > 1 {
		return Rule2
	}
	return ""
}

// ends is what a worker may make of an attempt that was written: answered, at any time since it
// arrived, or not answered.
func (m *Model) ends(s *State, w int) {
	r := &s.runs[w]
	g := s.seen[r.slot]
	end := func(kind move, e ending, off int8) {
		n := *s
		n.runs[w] = run{phase: ended, slot: r.slot, token: r.token, ending: e, off: min(off, m.frozen+m.Slack)}
		if kind == moveUnanswered {
			m.reset(&n, int(r.slot))
		}
		m.emit(kind, g.call, g.attempt, n, "")
	}
	if m.has(SecondRequest) && g.writes < 2 {
		n := *s
		m.write(&n, w)
		m.emit(moveWrite, g.call, g.attempt, n, m.twice(&n, int(r.slot)))
	}
	if m.Finish {
		off := -r.m0
		if r.phase == heard {
			end(moveAnswered, endDone, off)
		}
		if !m.has(EndIsProof) {
			off += m.Slack
		}
		end(moveUnanswered, endError, off)
		return
	}
	slack := m.Slack
	if m.has(NoSlack) {
		slack = 0
	}
	if r.phase == heard || r.phase == told {
		end(moveAnswered, endDone, r.by)
	}
	if m.has(UnsentUnlessHeard) {
		end(moveUnanswered, endUnsent, 0)
		return
	}
	switch {
	case r.phase == told:
		end(moveUnanswered, endError, max(r.by, r.off+slack))
	case m.Resend > 0 && !m.has(ResendUncharged):
		end(moveUnanswered, endError, min(-r.m0, r.off+m.Resend)+slack)
	default:
		end(moveUnanswered, endError, r.off+slack)
	}
	if m.has(UntilExtended) { // the last write returns when the body is through
		end(moveUnanswered, endError, -r.m0+slack)
	}
}

// records is a closing by compare-and-set on the token, repeated while its answer is lost.
func (m *Model) records(s *State, w int) {
	r := s.runs[w]
	g := s.seen[r.slot]
	row := s.find(g.call, g.attempt)
	n := *s
	bad := ""
	if row >= 0 && s.pg.isOpen(row) && m.mayClose(&s.pg, row, r) {
		if s.rowLocked(row) {
			return
		}
		bad = m.closeRow(&n, row, r.ending, r.off)
	} else if m.has(FinishOverwrites) {
		bad = m.moveCall(&n, g.call, g.attempt, r.ending)
	}
	if s.left.FinishAnswer > 0 {
		lost := n
		lost.left.FinishAnswer--
		m.emit(moveCloseLost, g.call, g.attempt, lost, bad)
	}
	n.runs[w] = run{}
	m.emit(moveClose, g.call, g.attempt, n, bad)
}

func (m *Model) mayClose(p *postgres, row int, r run) bool {
	o := &p.rows[row]
	if o.token != 0 {
		return o.token == r.token
	}
	return r.ending == endUnstarted && (o.epoch == p.epoch || m.has(UnsentOldEpoch))
}

// closeRow is closeSQL: the row goes, the ledger is written, the limit charged in a bucket labelled
// with its end, and the call moves on, all at once.
func (m *Model) closeRow(n *State, i int, e ending, off int8) string {
	r := &n.pg.rows[i]
	g := &n.seen[i]
	if r.stage == open {
		r.at = r.claimed
	}
	r.former = r.epoch != n.pg.limit.epoch
	r.token, r.epoch, r.arrived = 0, 0, 0
	if e == endUnsent || e == endUnstarted {
		*r = row{stage: unsent}
		return m.moveCall(n, g.call, g.attempt, e)
	}
	if m.back == 0 && !m.Finish && r.stage == started && off > m.SendWithin+m.Resend+m.Slack {
		return Rule6 // until only shrinks: verify must not find later what it did not at the start
	}
	r.stage, r.until, r.used = charged, r.at+off, true
	r.label = m.bucketEnd(n, r.until)
	if m.has(RoundedDown) {
		r.label -= m.Bucket
	}
	return m.moveCall(n, g.call, g.attempt, e)
}

// bucketEnd is date_bin(width, until) + width.
func (m *Model) bucketEnd(n *State, until int8) int8 {
	if m.Bucket == 0 {
		return until
	}
	sincePhase := (until+n.phase)%m.Bucket + m.Bucket
	return until - sincePhase%m.Bucket + m.Bucket
}

// moveCall changes the call, if the attempt is still its last and it is dispatched.
func (m *Model) moveCall(n *State, c, attempt int8, e ending) string {
	k := &n.pg.calls[c]
	bad := ""
	if !k.isAt(attempt) {
		if !m.has(FinishOverwrites) || k.status == gone {
			return ""
		}
		bad = Rule5
	}
	switch e {
	case endDone:
		k.status = done
	case endError:
		k.fails++
		k.status = waiting
		if k.fails >= m.Failures {
			k.status = failed
		}
	case endUnsent, endUnstarted:
		k.status = waiting
		if m.has(TakenBackSilent) {
			k.status = dispatched
		}
	}
	return bad
}
