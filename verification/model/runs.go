package model

import (
	"fmt"
	"slices"
	"time"
)

// Runs is a third model: of claims that give a worker more calls than there is room for, of which it gives the turns itself
// (limit.Pace). Messages may be delivered twice, to two workers, and workers die. Requests are answered or not, and what a dead worker
// has sent may arrive for a while. Others claim beside the run whatever they find free. Clocks agree, and nothing fails over.
type Runs struct {
	Rate    int8
	Window  int8 // these are in ticks
	Travel  int8 // a request has arrived so long after it was sent, or never will
	Length  int  // calls of a run, at most runCalls
	Deaths  int8 // of workers
	Misruns Misrun
}

// Misrun is a rule that a Runs is told not to keep.
type Misrun int8

const (
	NoMisrun     Misrun = iota
	NoTurns             // a run's calls are sent as they come
	EarlyTurns          // a tick before what they wait for has left the window
	NobodysRun          // each delivery of the message starts what it can
	ByRow               // a delivery reserves what is free of the run, not all or none
	UnsentIsFree        // claims count nothing of a run that has not started
	DoubtIsOver         // what ended without an answer keeps no turn back
)

// RuleRuns is what must hold in each state.
const RuleRuns = "1: a window holds at most the rate, whatever runs there are"

const (
	runCalls   = 4
	deliveries = 2
)

type runStage int8

const (
	runFree runStage = iota
	runOpen
	runStarted
	runSent
	runClosed // answered, lost or dead
)

// runCall is an attempt.
type runCall struct {
	stage   runStage
	run     bool // it is of the run; else it was claimed by itself
	worker  int8 // that has reserved or started it, plus one; 0: none
	age     int8 // ticks since it had arrived, for all that is known, at most the window; of one that was lost it begins below 0
	seen    int8 // ticks, plus one, since it arrived, while a window holds it; 0: it has not, or long ago
	flies   int8 // for so many ticks more it may arrive; 0: no more
	unknown bool // it ended without an answer
}

// runState is a state. It is comparable.
type runState struct {
	calls  [runCalls]runCall
	room   int8             // of the run
	dead   [deliveries]bool // workers
	deaths int8
}

func (m Runs) counts(s *runState) (n int8) {
	for i := range s.calls {
		c := &s.calls[i]
		switch {
		case c.stage == runFree, c.stage == runClosed && c.age >= m.Window, c.run && c.stage == runOpen && m.Misruns == UnsentIsFree:
		default:
			n++
		}
	}
	return n
}

// turn reports whether a worker may send one more call of the run: it goes by those that it has sent itself.
func (m Runs) turn(s *runState, worker int8) bool {
	window := m.Window
	switch m.Misruns {
	case NoTurns:
		return true
	case EarlyTurns:
		window--
	}
	used := int8(0)
	for i := range s.calls {
		c := &s.calls[i]
		if !c.run || c.worker != worker || c.stage != runSent && c.stage != runClosed {
			continue
		}
		if c.stage == runSent || c.age < window && (!c.unknown || m.Misruns != DoubtIsOver) {
			used++
		}
	}
	return used < s.room
}

type runStep struct {
	text  string
	state runState
	bad   string
}

// next are the steps from a state.
func (m Runs) next(s *runState) (steps []runStep) {
	step := func(text string, n runState, bad string) { steps = append(steps, runStep{text, n, bad}) }
	m.claims(s, step)
	for i := range s.calls {
		c := &s.calls[i]
		n := *s
		to := &n.calls[i]
		switch {
		case c.stage == runOpen && !c.run:
			to.stage, to.flies = runSent, m.Travel+1
			step(fmt.Sprintf("call %d is sent", i), n, "")
		case c.stage == runOpen:
			m.starts(s, i, step)
		case c.stage == runStarted && m.turn(s, c.worker):
			to.stage, to.flies = runSent, m.Travel+1
			step(fmt.Sprintf("call %d has its turn at worker %d", i, c.worker), n, "")
		}
		if c.stage == runOpen || c.stage == runStarted {
			n := *s
			n.calls[i] = runCall{}
			step(fmt.Sprintf("call %d goes back", i), n, "")
		}
		if c.flies > 0 && c.seen == 0 {
			n := *s
			n.calls[i].seen, n.calls[i].flies = 1, 0
			step(fmt.Sprintf("call %d arrives", i), n, m.exceeded(&n))
		}
		if c.stage == runSent {
			if c.seen > 0 {
				n := *s
				n.calls[i].stage, n.calls[i].age = runClosed, 0
				step(fmt.Sprintf("call %d is answered", i), n, "")
			}
			n := *s
			n.calls[i].stage, n.calls[i].age, n.calls[i].unknown = runClosed, -m.Travel, true
			step(fmt.Sprintf("call %d ends without an answer", i), n, "")
		}
	}
	m.deaths(s, step)
	m.tick(s, step)
	return steps
}

func (m Runs) exceeded(s *runState) string {
	n := int8(0)
	for i := range s.calls {
		if s.calls[i].seen > 0 {
			n++
		}
	}
	if n > m.Rate {
		return RuleRuns
	}
	return ""
}

// claims gives out a call, or a run, while there is room.
func (m Runs) claims(s *runState, step func(string, runState, string)) {
	room := m.Rate - m.counts(s)
	var free []int
	runs := false
	for i := range s.calls {
		if s.calls[i] == (runCall{}) {
			free = append(free, i)
		}
		runs = runs || s.calls[i].run
	}
	if room <= 0 || len(free) == 0 {
		return
	}
	n := *s
	n.calls[free[0]] = runCall{stage: runOpen}
	step(fmt.Sprintf("call %d is claimed", free[0]), n, "")
	if runs || len(free) < m.Length || m.Length <= int(room) {
		return
	}
	n = *s
	n.room, n.dead = room, [deliveries]bool{}
	for _, i := range free[:m.Length] {
		n.calls[i] = runCall{stage: runOpen, run: true}
	}
	step(fmt.Sprintf("a run of %v is claimed with room for %d", free[:m.Length], room), n, "")
}

// starts has each delivery of the run's message reserve the run, and start a call of it.
func (m Runs) starts(s *runState, i int, step func(string, runState, string)) {
	taken := slices.ContainsFunc(s.calls[:], func(c runCall) bool { return c.run && c.worker > 0 })
	for w := int8(1); w <= deliveries; w++ {
		if s.dead[w-1] {
			continue
		}
		c := &s.calls[i]
		n := *s
		switch {
		case c.worker == w:
			n.calls[i].stage = runStarted
			step(fmt.Sprintf("call %d is started by worker %d", i, w), n, "")
		case c.worker > 0:
		case m.Misruns == NobodysRun:
			n.calls[i].stage, n.calls[i].worker = runStarted, w
			step(fmt.Sprintf("call %d is started by worker %d", i, w), n, "")
		case m.Misruns == ByRow:
			n.calls[i].worker = w
			step(fmt.Sprintf("worker %d reserves call %d", w, i), n, "")
		case !taken:
			for k := range n.calls {
				if n.calls[k].run && n.calls[k].stage == runOpen {
					n.calls[k].worker = w
				}
			}
			step(fmt.Sprintf("worker %d reserves the run", w), n, "")
		}
	}
}

// deaths ends a worker of the run. Recovery takes back what it had not started, and charges the rest.
func (m Runs) deaths(s *runState, step func(string, runState, string)) {
	for w := range s.dead {
		if s.dead[w] || s.deaths == m.Deaths {
			continue
		}
		n, some := *s, false
		n.dead[w] = true
		n.deaths++
		for i := range n.calls {
			c := &n.calls[i]
			if !c.run || c.worker != int8(w)+1 {
				continue
			}
			switch some = true; c.stage {
			case runOpen:
				*c = runCall{}
			case runStarted:
				c.stage, c.age, c.unknown = runClosed, -m.Travel, true
			case runSent:
				c.stage, c.age, c.unknown = runClosed, -m.Travel, true
			}
		}
		if some {
			step(fmt.Sprintf("worker %d dies", w+1), n, "")
		}
	}
}

func (m Runs) tick(s *runState, step func(string, runState, string)) {
	n := *s
	for i := range n.calls {
		c := &n.calls[i]
		if c.stage == runClosed {
			c.age = min(c.age+1, m.Window)
		}
		if c.flies > 0 {
			c.flies--
		}
		if c.seen > 0 {
			c.seen = (c.seen + 1) % (m.Window + 1)
		}
	}
	running := slices.ContainsFunc(n.calls[:], func(c runCall) bool { return c.run && c.stage != runClosed && c.stage != runFree })
	for i := range n.calls {
		c := &n.calls[i]
		// A call that nothing counts is forgotten; of a run, once that has ended.
		if c.stage == runClosed && c.age >= m.Window && c.seen == 0 && c.flies == 0 && (!c.run || !running) {
			*c = runCall{}
		}
	}
	step("time passes", n, "")
}

// Explore visits every state, nearest first, and ends with the first rule that does not hold.
func (m Runs) Explore() Report {
	var first runState
	ids := map[runState]int32{first: 0}
	states, parents, texts := []runState{first}, []int32{-1}, []string{""}
	begun := time.Now()
	report := Report{Name: "runs", Whole: true}
	for id := int32(0); int(id) < len(states) && report.Violation == nil; id++ {
		for _, st := range m.next(&states[id]) {
			report.Transitions++
			if _, known := ids[st.state]; known && st.bad == "" {
				continue
			}
			ids[st.state] = int32(len(states))
			states, parents, texts = append(states, st.state), append(parents, id), append(texts, st.text)
			if st.bad != "" {
				var steps []string
				for at := int32(len(states)) - 1; at > 0; at = parents[at] {
					steps = append(steps, texts[at])
				}
				slices.Reverse(steps)
				report.Violation = &Violation{Rule: st.bad, Steps: steps}
				break
			}
		}
	}
	report.States, report.Took = len(states), time.Since(begun)
	return report
}
