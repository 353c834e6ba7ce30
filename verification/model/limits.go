package model

// publishes is internal/policy/apply.go: a new version of the limit, under its lock. Where it is lower,
// what has not started is recalled once no start is in doubt; only then is it in force.
func (m *Model) publishes(s *State) {
	if !s.publishing {
		if s.left.Changes > 0 && int(s.pg.limit.version)+1 < len(m.Rates) && s.limitFree() {
			n := *s
			n.left.Changes--
			n.publishing = true
			m.emit(movePublishLock, 0, 0, n, "")
		}
		return
	}
	n := *s
	p := &n.pg
	now := p.limit.version + 1
	if m.rate(now) < m.rate(p.limit.version) && !m.has(NoRecall) {
		for i := range p.rows {
			if p.rows[i].stage != open || p.rows[i].epoch != p.epoch && !m.has(UnsentOldEpoch) {
				continue
			}
			if n.rowLocked(i) {
				if m.has(RecallSkips) {
					continue
				}
				return // it waits
			}
			m.closeRow(&n, i, endUnsent, 0)
		}
	}
	p.limit.version = now
	p.limit.force[now-1] = 0
	n.publishing = false
	m.emit(movePublish, m.rate(now), 0, n, "")
}
