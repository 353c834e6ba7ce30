package model

// The rules of docs/guarantees.md.
const (
	Rule1 = "1: at most the rate arrives at the API in any window"
	Rule2 = "2: one attempt sends at most one request"
	Rule3 = "3: a call ends or stays visibly pending"
	Rule4 = "4: no unit comes back early"
	Rule5 = "5: a late result never overwrites a newer one"
	Rule6 = "6: verify finds nothing while nothing is wrong"
	Rule7 = "6: verify finds what is wrong" // where the API saw more than the rate
)

// broken is the first rule that does not hold in s, or "".
func (m *Model) broken(s *State) string {
	switch {
	case m.looks(Rule3) && !s.allAccounted():
		return Rule3
	case m.looks(Rule4) && m.freedEarly(s):
		return Rule4
	case m.looks(Rule6) && m.verify(s):
		return Rule6
	}
	return ""
}

func (m *Model) looks(rule string) bool {
	for _, r := range m.Ignore {
		if r == rule {
			return false
		}
	}
	return true
}

// overLimit is looked at when a request arrives: how many arrived in the window that ends now, by the
// API's clock, against the rate that was in force when the last of them started.
func (m *Model) overLimit(s *State) string {
	n, version := int8(0), int8(0)
	for i := range s.seen {
		if g := &s.seen[i]; g.landed && g.arrival > -m.Window {
			n++
			version = max(version, g.version)
		}
	}
	switch {
	case n <= m.rate(version):
		return ""
	case m.looks(Rule7) && !m.verify(s):
		return Rule7
	case m.looks(Rule1):
		return Rule1
	}
	return ""
}

// allAccounted: a call is dispatched exactly while its last attempt is open, and has no other open.
func (s *State) allAccounted() bool {
	for c := range s.pg.calls {
		k := &s.pg.calls[c]
		openNow, last := 0, false
		for i := range s.seen {
			if g := &s.seen[i]; g.used && !g.lost && int(g.call) == c && s.pg.isOpen(i) {
				openNow++
				last = last || g.attempt == k.attempts
			}
		}
		if openNow > 1 || k.status == dispatched && !last || k.status != dispatched && k.status != gone && openNow > 0 {
			return false
		}
	}
	return true
}

// freedEarly: an attempt was written and closed without a charge; or a dispatcher that claimed now
// would not count an attempt whose request is in the window that ends now, or may still be, though
// it is not of what counts as used after a failover.
func (m *Model) freedEarly(s *State) bool {
	var disps [dispCount]disp // as each would be, had it looked now, first of all
	for i := range disps {
		n := *s
		n.disps[i].now = 0
		m.look(&n, i)
		disps[i] = n.disps[i]
	}
	for i := range s.seen {
		g, r := &s.seen[i], &s.pg.rows[i]
		if !g.used {
			continue
		}
		if r.stage == unsent && g.writes > 0 {
			return true
		}
		if s.pg.limit.epoch != s.pg.epoch || !m.inWindow(s, i) {
			continue
		}
		for j := range disps {
			since := m.since(&disps[j])
			if m.unknown(&s.pg, &disps[j]) && (g.lost || r.former || s.pg.isOpen(i) && r.epoch != s.pg.epoch) {
				continue // it is of what counts as used
			}
			if !m.usageCounts(r, since) && !m.openCounts(&s.pg, i, since) {
				return true
			}
		}
	}
	return false
}

// inWindow says whether a request of the attempt arrived within the window that ends now, or may yet
// arrive without another start.
func (m *Model) inWindow(s *State, i int) bool {
	g := &s.seen[i]
	if g.flight > 0 || g.landed && g.arrival > -m.Window {
		return true
	}
	for w := range s.runs {
		if r := &s.runs[w]; r.phase == granted && int(r.slot) == i && m.gateOpen(r) {
			return true
		}
	}
	return false
}

// verify says whether internal/ledger verify.go windowsSQL would name a start: at each, the attempts
// that had started by then and whose until is later than a window before. Only starts to which
// something to come could still be added are looked at: the others were, when they were new.
func (m *Model) verify(s *State) bool {
	p := &s.pg
	for i := range p.rows {
		at, _, ok := m.charge(p, i)
		if !ok || at < -m.back {
			continue
		}
		n := int8(0)
		for j := range p.rows {
			from, until, ok := m.charge(p, j)
			before := from < at || from == at && s.seen[j].version <= s.seen[i].version // a tick holds several
			if ok && before && until > at-m.Window {
				n++
			}
		}
		if n > m.rate(s.versionAt(at, s.seen[i].version)) {
			return true
		}
	}
	return false
}

// charge is when an attempt started, and its until, as verify reads them.
func (m *Model) charge(p *postgres, i int) (at, until int8, ok bool) {
	const infinity = 120
	r := &p.rows[i]
	switch {
	case r.stage == started && m.has(VerifyClosed):
		return 0, 0, false
	case r.stage == started && (m.Finish || m.has(VerifyOpenForEver)):
		return r.at, infinity, true
	case r.stage == started:
		return r.at, r.at + m.openFor(r), true
	case r.stage == charged && m.has(VerifyAtStart):
		return r.at, r.at, true
	case r.stage == charged:
		return r.at, r.until, true
	}
	return 0, 0, false
}

// versionAt is the version that was in force at that time. Ticks are coarse: where it came into force
// in that very tick, known is the one under which the start was.
func (s *State) versionAt(at, known int8) int8 {
	l := &s.pg.limit
	for v := l.version; v > 0; v-- {
		switch {
		case l.force[v-1] < at:
			return v
		case l.force[v-1] == at:
			return min(known, v)
		}
	}
	return 0
}
