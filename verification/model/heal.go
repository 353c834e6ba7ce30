package model

// heal runs s on, without faults, in one order of steps, and says which rule does not hold then, and
// what it did, if it is to tell. All calls must end.
func (m *Model) heal(s State, tell bool) (rule string, did []string) {
	const most = 500
	s.left, s.most = Faults{}, 0
	m.without = true
	defer func() { m.without = false }()
	did = []string{"without more faults:"}
	for range most {
		m.tidyKeepingNames(&s)
		if s.allEnded() {
			return "", nil
		}
		steps := m.next(&s)
		best := 0
		for i := range steps {
			if turn := texts[steps[i].kind].heal; turn > 0 && (texts[steps[best].kind].heal == 0 || turn < texts[steps[best].kind].heal) {
				best = i
			}
		}
		if tell {
			did = append(did, steps[best].String())
		}
		if steps[best].bad != "" {
			return steps[best].bad, did
		}
		s = steps[best].state
		if rule := m.broken(&s); rule != "" {
			return rule, did
		}
	}
	return Rule3, append(did[:min(40, len(did))], "and so on: it does not end")
}

// allEnded: every call has a final state, and nothing is open or under way.
func (s *State) allEnded() bool {
	for c := range s.pg.calls {
		if k := s.pg.calls[c].status; k == waiting || k == dispatched {
			return false
		}
	}
	for i := range s.pg.rows {
		if s.pg.isOpen(i) {
			return false
		}
	}
	return s.limitFree()
}
