package model

import (
	"fmt"
	"hash/maphash"
	"slices"
	"time"
)

// Report is what Explore found.
type Report struct {
	Name        string
	States      int // distinct
	Transitions int
	Depth       int // steps to the farthest of them
	Healed      int // states from which a run without faults was tried
	Whole       bool
	Took        time.Duration
	Violation   *Violation // nil: every rule held in every state
	met         [moveCount]bool
}

func (r Report) String() string {
	whole := ""
	if !r.Whole {
		whole = ", cut short"
	}
	return fmt.Sprintf("%d states, %d transitions, depth %d, %d healed, %.1f s%s",
		r.States, r.Transitions, r.Depth, r.Healed, r.Took.Seconds(), whole)
}

// healEvery: of so many states, one is healed.
const healEvery = 64

// Explore visits every state of the configuration, nearest first, up to most of them (0: all). It
// ends with the first rule that does not hold, which no shorter list of steps breaks.
func (m *Model) Explore(most int) Report {
	begun := time.Now()
	report := Report{Name: m.Name}
	v := newVisited()
	first := m.initial()
	m.tidy(&first)
	v.add(first, 0)
	depth := []int{1}              // where each depth ends
	healer := New(m.Configuration) // has steps of its own
	var later *Violation           // found while healing; there may be a shorter way to one
	for i := 0; i < v.len() && report.Violation == nil; i++ {
		if i == depth[len(depth)-1] {
			depth = append(depth, v.len())
		}
		if most > 0 && v.len() >= most {
			break
		}
		s := *v.at(i)
		steps := m.next(&s)
		report.Transitions += len(steps)
		for j := range steps {
			st := &steps[j]
			report.met[st.kind] = true
			rule, further := st.bad, []string(nil)
			if rule == "" {
				m.tidy(&st.state)
				if !v.add(st.state, uint32(i)) {
					continue
				}
				rule = m.broken(&st.state)
				if rule == "" && v.len()%healEvery == 0 && m.looks(Rule3) {
					report.Healed++
					rule, further = healer.heal(st.state)
				}
			}
			if rule == "" || later != nil && len(further) > 0 {
				continue
			}
			violation := healer.violation(v, rule, i, st, further)
			if len(further) == 0 || rule == Rule3 {
				report.Violation = violation
				break
			}
			later = violation
		}
	}
	if report.Violation == nil {
		report.Violation = later
	}
	report.States, report.Depth = v.len(), len(depth)-1
	report.Whole = most == 0 || v.len() < most
	report.Took = time.Since(begun)
	return report
}

// next is every step that s allows. It is valid until the next call.
func (m *Model) next(s *State) []step {
	m.steps = m.steps[:0]
	m.claims(s)
	m.publishes(s)
	m.carries(s)
	m.starts(s)
	m.sends(s)
	m.sweeps(s)
	m.passes(s)
	return m.steps
}

func (m *Model) violation(v *visited, rule string, i int, last *step, further []string) *Violation {
	return &Violation{Rule: rule, Steps: append(append(m.trace(v, i), last.String()), further...)}
}

// trace is how i was reached first.
func (m *Model) trace(v *visited, i int) []string {
	var texts []string
	for ; i > 0; i = int(v.parent(i)) {
		parent := *v.at(int(v.parent(i)))
		for _, st := range m.next(&parent) {
			m.tidy(&st.state)
			if st.state == *v.at(i) {
				texts = append(texts, st.String())
				break
			}
		}
	}
	slices.Reverse(texts)
	return texts
}

// heal runs s on, without faults, in one order of steps, and says which rule does not hold then, and
// what it did. All calls must end.
func (m *Model) heal(s State) (rule string, did []string) {
	const most = 500
	s.left = Faults{Failovers: s.left.Failovers}
	if s.split == 0 {
		s.left.Failovers = 0
	}
	m.without = true
	defer func() { m.without = false }()
	did = []string{"without more faults:"}
	for range most {
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
		did = append(did, steps[best].String())
		if steps[best].bad != "" {
			return steps[best].bad, did
		}
		s = steps[best].state
		m.tidy(&s)
		if rule := m.broken(&s); rule != "" {
			return rule, did
		}
	}
	return Rule3, append(did[:40], "and so on: it does not end")
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

// visited holds each distinct state once, in the order in which they were found, and how.
type visited struct {
	seed    maphash.Seed
	chunks  [][]State
	parents []uint32
	table   []uint32 // index + 1; 0: free
}

const chunk = 1 << 14

func newVisited() *visited {
	return &visited{seed: maphash.MakeSeed(), table: make([]uint32, 1<<16)}
}

func (v *visited) len() int            { return len(v.parents) }
func (v *visited) at(i int) *State     { return &v.chunks[i/chunk][i%chunk] }
func (v *visited) parent(i int) uint32 { return v.parents[i] }

// add says whether s is new. States are compared whole: the hash only says where to look.
func (v *visited) add(s State, parent uint32) (isNew bool) {
	hash := maphash.Comparable(v.seed, s)
	mask := uint64(len(v.table) - 1)
	for h := hash & mask; ; h = (h + 1) & mask {
		i := v.table[h]
		if i == 0 {
			v.table[h] = uint32(len(v.parents) + 1)
			break
		}
		if *v.at(int(i - 1)) == s {
			return false
		}
	}
	if len(v.parents)%chunk == 0 {
		v.chunks = append(v.chunks, make([]State, 0, chunk))
	}
	last := &v.chunks[len(v.chunks)-1]
	*last = append(*last, s)
	v.parents = append(v.parents, parent)
	if 2*len(v.parents) > len(v.table) {
		v.grow()
	}
	return true
}

func (v *visited) grow() {
	v.table = make([]uint32, 2*len(v.table))
	mask := uint64(len(v.table) - 1)
	for i := range v.parents {
		h := maphash.Comparable(v.seed, *v.at(i)) & mask
		for v.table[h] != 0 {
			h = (h + 1) & mask
		}
		v.table[h] = uint32(i + 1)
	}
}
