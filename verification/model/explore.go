package model

import (
	"fmt"
	"sync"
	"sync/atomic"
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

// Explore visits every state of the configuration, nearest first, up to about most of them (0: all),
// with so many explorers at once. It ends with the first rule that does not hold, which no shorter
// list of steps breaks.
func Explore(c Configuration, most, explorers int) Report {
	return New(c).explore(most, explorers, nil)
}

// explore is Explore; a lone explorer shows each state to visit, unless that is nil.
func (m *Model) explore(most, explorers int, visit func(*State)) Report {
	begun := time.Now()
	e := exploration{visited: newVisited(explorers)}
	for i := range explorers {
		e.explorers = append(e.explorers, &explorer{
			Model: newModel(m.Configuration, m.whole), healer: newModel(m.Configuration, m.whole), e: &e, me: i, visit: visit,
		})
	}
	first := m.initial()
	e.explorers[0].tidy(&first)
	e.explorers[0].add(&first, 0)
	report := Report{Name: m.Name, Depth: -1, Whole: true}
	for e.takeFront() && report.Whole {
		report.Depth++
		for !e.stop.Load() && report.Whole && e.round() {
			report.Whole = most == 0 || e.visited.len() < most
		}
		if e.stop.Load() {
			break
		}
	}
	for _, x := range e.explorers {
		report.Transitions += x.transitions
		report.Healed += x.healed
		for kind, yes := range x.met {
			report.met[kind] = report.met[kind] || yes
		}
	}
	if found := e.found(); found != nil {
		report.Violation = m.retrace(e.visited, found)
	}
	report.States = e.visited.len()
	report.Took = time.Since(begun)
	return report
}

// exploration is what its explorers share. They work in rounds: within one each takes blocks of the
// front and adds what it finds to a front of its own, between them they stand still.
type exploration struct {
	visited   *visited
	explorers []*explorer
	front     []block // the states of this depth
	taken     atomic.Int64
	most      int64 // of front, in this round
	stop      atomic.Bool
}

// block is some states of one depth, and their ids.
type block struct {
	states []State
	ids    []uint32
}

const blockSize = 256

type explorer struct {
	*Model
	healer      *Model // has steps of its own
	e           *exploration
	me          int
	ahead       []block // what was found, a step further
	spare       []block
	transitions int
	healed      int
	met         [moveCount]bool
	first       *violating
	later       *violating // found while healing; there may be a shorter way to one
	visit       func(*State)
}

// violating says where a rule does not hold: in the state with this print, a step after the parent.
type violating struct {
	rule   string
	parent uint32
	print  uint64
	healed bool // not there, but on the way on without faults
}

// takeFront goes a step further, and says whether there is anything.
func (e *exploration) takeFront() bool {
	e.front = e.front[:0]
	for _, x := range e.explorers {
		e.front = append(e.front, x.ahead...)
		x.ahead = x.ahead[:0]
	}
	e.taken.Store(0)
	e.most = 0
	return len(e.front) > 0
}

// round explores as many blocks as there is room for in the table, and says whether there were any.
func (e *exploration) round() bool {
	if e.most == int64(len(e.front)) {
		return false
	}
	e.most = min(int64(len(e.front)), e.most+int64(e.visited.room()/(blockSize*stepsMost)))
	if len(e.explorers) == 1 {
		e.explorers[0].work()
	} else {
		var all sync.WaitGroup
		for _, x := range e.explorers {
			all.Go(x.work)
		}
		all.Wait()
	}
	e.taken.Store(e.most)
	return true
}

func (x *explorer) work() {
	for {
		i := x.e.taken.Add(1) - 1
		if i >= x.e.most {
			return
		}
		b := &x.e.front[i]
		for j := range b.states {
			if x.e.stop.Load() {
				return
			}
			x.expand(&b.states[j], b.ids[j])
		}
		x.spare = append(x.spare, block{b.states[:0], b.ids[:0]})
		*b = block{}
	}
}

// expand takes every step from s.
func (x *explorer) expand(s *State, id uint32) {
	steps := x.next(s)
	if len(steps) > stepsMost {
		panic("model: more steps from one state than the table has room for")
	}
	x.transitions += len(steps)
	for j := range steps {
		st := &steps[j]
		x.met[st.kind] = true
		raw := st.state
		x.tidy(&st.state)
		found := violating{rule: st.bad, parent: id}
		if st.bad == "" {
			if !x.add(&st.state, id) {
				continue
			}
			found.rule = x.broken(&st.state)
			if found.rule == "" && x.looks(Rule3) && x.e.visited.counted(x.me)%healEvery == 0 {
				x.healed++
				found.rule, _ = x.healer.heal(raw, false)
				found.healed = found.rule != ""
			}
		}
		if found.rule == "" {
			continue
		}
		found.print = x.e.visited.print(&st.state)
		if found.healed && found.rule != Rule3 {
			if x.later == nil {
				x.later = &found
			}
			continue
		}
		x.first = &found
		x.e.stop.Store(true)
		return
	}
}

// healEvery: of so many states, one is healed.
const healEvery = 64

// add adds s to what was visited and to what is ahead, and says whether it is new.
func (x *explorer) add(s *State, parent uint32) bool {
	id, isNew := x.e.visited.add(x.me, s, parent)
	if !isNew {
		return false
	}
	last := len(x.ahead) - 1
	if last < 0 || len(x.ahead[last].states) == blockSize {
		if n := len(x.spare); n > 0 {
			x.ahead = append(x.ahead, x.spare[n-1])
			x.spare = x.spare[:n-1]
		} else {
			x.ahead = append(x.ahead, block{make([]State, 0, blockSize), make([]uint32, 0, blockSize)})
		}
		last++
	}
	b := &x.ahead[last]
	b.states, b.ids = append(b.states, *s), append(b.ids, id)
	if x.visit != nil {
		x.visit(s)
	}
	return true
}

func (e *exploration) found() *violating {
	var later *violating
	for _, x := range e.explorers {
		if x.first != nil {
			return x.first
		}
		if x.later != nil {
			later = x.later
		}
	}
	return later
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
	m.spend(s)
	return m.steps
}
