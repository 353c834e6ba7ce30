package model

// The dispatchers' claim (internal/claim) in three steps between which
// anything may happen: lock the limit and read the clock; count; commit. FineClaim apart, the first
// two are one: an earlier clock only counts more, unless it is set back. Reading the clock in a step
// of its own would add nothing but a later lock.

func (m *Model) claims(s *State) {
	for i := range s.disps {
		if i > 0 && s.disps[i] == s.disps[0] {
			break // it would do the same
		}
		switch s.disps[i].phase {
		case resting:
			m.lockLimit(s, i)
		case clocked:
			m.countOccupied(s, i)
		case halved:
			n := *s
			d := &n.disps[i]
			d.room -= m.occupiedOpen(&n, d)
			n.afterCount(i)
			m.emit(moveCountOpen, 0, 0, n, "")
		case counted:
			m.commitClaim(s, i)
		}
		if s.disps[i].phase != resting && s.left.ClaimAborted > 0 {
			n := *s
			n.left.ClaimAborted--
			n.disps[i].rest()
			m.emit(moveClaimAborts, 0, 0, n, "")
		}
	}
	if s.left.DispatcherDies > 0 {
		for i := range s.disps {
			if i > 0 && s.disps[i] == s.disps[0] || m.SeenSteps && s.stepUnseen() {
				break
			}
			n := *s
			n.left.DispatcherDies--
			n.disps[i] = disp{fresh: true}
			if m.has(GainUnwritten) {
				n.pg.gain, n.pg.gainAt = 0, 0
			}
			m.emit(moveDispatcherDies, 0, 0, n, "")
		}
	}
}

func (d *disp) rest() { d.phase, d.now, d.room, d.gain, d.gainAt = resting, 0, 0, 0, 0 }

// limitFree says whether nobody holds the limit's lock.
func (s *State) limitFree() bool {
	for i := range s.disps {
		if s.disps[i].phase != resting {
			return false
		}
	}
	return !s.publishing
}

// claimable says whether the call may have another attempt, within the bounds.
func (m *Model) claimable(s *State, k *call) bool {
	switch {
	case k.status != waiting:
		return false
	case m.without || k.attempts == 0:
		return true
	}
	return k.attempts < m.Attempts && s.left.Retries > 0
}

func (m *Model) someWait(s *State) bool {
	for i := range s.pg.calls {
		if m.claimable(s, &s.pg.calls[i]) {
			return true
		}
	}
	return false
}

// lockLimit is lockQueue, readClock and enterEpoch.
func (m *Model) lockLimit(s *State, i int) {
	if !m.has(NoLock) && !s.limitFree() {
		return
	}
	n := *s
	m.look(&n, i)
	looked := n
	looked.disps[i].rest()
	if looked != *s { // whether or not anything is due
		m.emit(moveLook, 0, 0, looked, "")
	}
	p := &n.pg
	switch {
	case !m.someWait(s):
		return
	case p.limit.epoch != p.epoch && !m.has(NoneMissing):
		m.enterEpoch(p)
		n.disps[i].rest()
		m.emit(moveEnterEpoch, 0, 0, n, "")
		return
	}
	if m.without && (m.room(&n, &n.disps[i]) <= 0 || n.freeSlot() < 0) {
		return // heal waits instead of counting in vain
	}
	n.disps[i].phase = clocked
	if m.FineClaim || m.has(TwoStatements) {
		m.emit(moveLock, 0, 0, n, "")
		return
	}
	if m.count(&n, i); n != *s { // else there is no room, and the look told nothing
		m.emit(moveLockCount, 0, 0, n, "")
	}
}

// enterEpoch is enterSQL: what is charged now is known, what is open is not.
func (m *Model) enterEpoch(p *postgres) {
	p.limit.epoch, p.limit.known, p.limit.missing = p.epoch, 0, m.SendWithin+m.Resend+m.Slack
	switch {
	case m.has(MissingHasArrived):
		p.limit.missing = 0
	case m.Finish:
		p.limit.missing += m.Deadline
	}
	since := -m.Window
	if m.Faults.ClockBack > 0 && !m.has(SameClock) { // the former server's clock may have been so much ahead
		since += m.StepBy
	}
	for i := range p.rows {
		r := &p.rows[i]
		if m.usageCounts(r, since) && !r.former || m.has(OpenIsKnown) && p.isOpen(i) {
			p.limit.known++
		}
	}
}

// unknown says whether what a failover lost may still count. What the clock gained since does not let it pass any sooner.
func (m *Model) unknown(p *postgres, d *disp) bool {
	since := m.since(d)
	if m.has(MissingForgetsGain) {
		since = d.now - m.Window
	}
	return p.limit.epoch > 0 && since < p.limit.missing
}

// room is limit.Use.Room.
func (m *Model) room(s *State, d *disp) int8 {
	p := &s.pg
	occupied := m.occupied(s, d)
	room := m.rate(p.limit.version) - occupied
	if m.unknown(p, d) {
		room = min(room, p.limit.known-(occupied-m.former(s, d)))
	}
	return room
}

// former is what is occupied of what was open when the epoch was entered.
func (m *Model) former(s *State, d *disp) (n int8) {
	if m.has(OpenIsKnown) {
		return 0
	}
	for i := range s.pg.rows {
		r := &s.pg.rows[i]
		if r.former && m.usageCounts(r, m.since(d)) || r.epoch != s.pg.limit.epoch && m.openCounts(&s.pg, i, m.since(d)) {
			n++
		}
	}
	return n
}

// look is readClock: answers come at once here, so that limit.Clock sees exactly what was gained. What it sees it
// writes down, unless another did, and it goes by what is written.
func (m *Model) look(s *State, i int) {
	d, p := &s.disps[i], &s.pg
	if d.unlooked > 0 && !d.fresh {
		p.gain, p.gainAt = p.gain+d.unlooked, 0
		for j := range s.disps {
			if o := &s.disps[j]; j != i && o.unlooked > 0 {
				o.unlooked = max(0, o.unlooked-d.unlooked)
			}
		}
	}
	d.gain, d.gainAt, d.unlooked, d.fresh = p.gain, p.gainAt, 0, false
}

// stepUnseen says whether the clock was set forward and nobody has looked since.
func (s *State) stepUnseen() bool { return s.disps[0].unlooked > 0 || s.disps[1].unlooked > 0 }

// gainKept says whether a window is still widened at now, limit.Clock.Gained.
func (m *Model) gainKept(d *disp, now int8) bool {
	switch {
	case m.has(GainForgotten) || d.gain == 0:
		return false
	case m.has(GainKeptShort):
		return d.gainAt+m.Window+d.gain > now
	case m.Finish:
		return d.gainAt+m.Window+d.gain+m.Deadline+m.Slack > now
	}
	return d.gainAt+m.Window+d.gain+m.SendWithin+m.Resend+m.Slack > now
}

func (m *Model) since(d *disp) int8 {
	since := d.now - m.Window
	if m.gainKept(d, d.now) {
		since -= d.gain
	}
	return since
}

// countOccupied is headroom. The clock is read again after it: where it was set back meanwhile, what
// has started since would be taken for old.
func (m *Model) countOccupied(s *State, i int) {
	n := *s
	d := &n.disps[i]
	if !m.has(NoRecount) && d.unlooked < 0 {
		d.rest()
		m.emit(moveClockWentBack, 0, 0, n, "")
		return
	}
	if m.has(TwoStatements) {
		d.room = m.rate(n.pg.limit.version) - m.occupiedUsage(&n, d)
		d.phase = halved
		m.emit(moveCountUsage, 0, 0, n, "")
		return
	}
	m.count(&n, i)
	m.emit(moveCountOccupied, 0, 0, n, "")
}

func (m *Model) count(n *State, i int) {
	d := &n.disps[i]
	d.room = m.room(n, d)
	n.afterCount(i)
}

func (n *State) afterCount(i int) {
	d := &n.disps[i]
	d.phase, d.gain, d.gainAt = counted, 0, 0
	if d.room <= 0 {
		d.rest()
	}
}

func (m *Model) occupied(s *State, d *disp) int8 { return m.occupiedUsage(s, d) + m.occupiedOpen(s, d) }

func (m *Model) occupiedUsage(s *State, d *disp) int8 {
	n := int8(0)
	for i := range s.pg.rows {
		if m.usageCounts(&s.pg.rows[i], m.since(d)) {
			n++
		}
	}
	return n
}

func (m *Model) occupiedOpen(s *State, d *disp) int8 {
	n := int8(0)
	for i := range s.pg.rows {
		if m.openCounts(&s.pg, i, m.since(d)) {
			n++
		}
	}
	return n
}

func (m *Model) usageCounts(r *row, since int8) bool {
	switch {
	case m.has(CountDispatched):
		return r.used && r.claimed > since
	case m.has(CountStarted):
		return r.used && r.at > since
	}
	return r.used && r.label > since
}

// openCounts is occupiedSQL's part about call_open.
func (m *Model) openCounts(p *postgres, i int, since int8) bool {
	r := &p.rows[i]
	if !p.isOpen(i) || m.has(OpenNotCounted) {
		return false
	}
	bounded := r.stage == started && !m.Finish && r.epoch == p.limit.epoch
	switch {
	case m.has(CountDispatched):
		return r.claimed > since
	case m.has(CountStarted):
		return r.stage == started && r.at > since
	}
	return !bounded || r.at+m.openFor(r) > since
}

// openFor is callq.occupied_until: the longest from the start of an open attempt to its until.
func (m *Model) openFor(r *row) int8 {
	switch {
	case r.arrived > 0:
		return r.arrived
	case m.has(ResendUncounted):
		return m.SendWithin + m.Slack
	}
	return m.SendWithin + m.Resend + m.Slack
}

// commitClaim opens attempts of waiting calls, as many as there is room for or fewer, whichever they
// are (pickSQL, openSQL: priority, turns and run_at are not the model's), and hands them over.
func (m *Model) commitClaim(s *State, i int) {
	if !m.commitMore(s, s, i, 0, 0) {
		n := *s
		n.disps[i].rest()
		m.emit(moveNothingToClaim, 0, 0, n, "")
	}
}

// commitMore adds to n, in which taken are opened, each of the calls from c on, and says whether it
// could.
func (m *Model) commitMore(s, n *State, i int, taken int8, c int) bool {
	could, passed := false, false // passed: a call that is as new as any
	for ; c < len(n.pg.calls) && taken < s.disps[i].room; c++ {
		isNew := n.pg.calls[c].attempts == 0
		if isNew && passed {
			continue
		}
		more := *n
		if !m.openAttempt(&more, c, s.disps[i].now) {
			continue
		}
		could = true
		after := more
		after.disps[i].rest()
		m.emit(moveCommit, taken+1, 0, after, "")
		if s.left.ClaimUnknown > 0 {
			after.left.ClaimUnknown--
			for j := range after.seen {
				if after.seen[j] != s.seen[j] {
					after.seen[j].messages = 0
				}
			}
			m.emit(moveCommitUnknown, taken+1, 0, after, "")
		}
		m.commitMore(s, &more, i, taken+1, c+1)
		passed = passed || isNew
	}
	return could
}

func (m *Model) openAttempt(n *State, c int, now int8) bool {
	k := &n.pg.calls[c]
	if !m.claimable(n, k) {
		return false
	}
	if k.attempts > 0 && !m.without {
		n.left.Retries--
	}
	slot := n.freeSlot()
	if slot < 0 {
		return false
	}
	k.attempts++
	k.status = dispatched
	n.pg.rows[slot] = row{stage: open, epoch: n.pg.epoch, claimed: now}
	n.seen[slot] = seen{used: true, call: int8(c), attempt: k.attempts, messages: 1}
	return true
}

func (s *State) freeSlot() int {
	for i := range s.seen {
		if !s.seen[i].used {
			return i
		}
	}
	return -1
}
