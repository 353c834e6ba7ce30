package model

import (
	"fmt"
	"slices"
	"time"
)

// Explore visits every state, nearest first, and ends with the first rule that does not hold.
func (m Standstill) Explore() Report {
	first := standstill{probed: m.ArriveWithin}
	ids := map[standstill]int32{first: 0}
	states, parents := []standstill{first}, []int32{-1}
	begun := time.Now()
	depths, returning := []int{0}, map[standstill]bool{}
	report := Report{Name: "standstill", Whole: true}
	for id := int32(0); int(id) < len(states) && report.Violation == nil; id++ {
		for _, st := range m.next(&states[id]) {
			report.Transitions++
			if _, ok := ids[st.state]; ok {
				continue
			}
			ids[st.state] = int32(len(states))
			states, parents = append(states, st.state), append(parents, id)
			depths = append(depths, depths[id]+1)
			if st.bad == "" {
				report.Healed++
				if !m.returns(st.state, returning) {
					st.bad = RuleReturn
				}
			}
			if st.bad != "" {
				report.Violation = &Violation{Rule: st.bad, Steps: m.way(states, parents)}
				break
			}
		}
	}
	report.States, report.Depth, report.Took = len(states), depths[len(states)-1], time.Since(begun)
	return report
}

// way is the steps to the last state. Requests are numbered as they are claimed.
func (m Standstill) way(states []standstill, parents []int32) (steps []string) {
	var ids []int32
	for id := int32(len(states)) - 1; id > 0; id = parents[id] {
		ids = append(ids, id)
	}
	var numbers [requestCount]int
	claimed := 0
	for _, id := range slices.Backward(ids) {
		all := m.next(&states[parents[id]])
		st := all[slices.IndexFunc(all, func(st standstillStep) bool { return st.state == states[id] })]
		if st.move == requestClaimed {
			claimed++
			numbers[st.i] = claimed
		}
		text := standstillTexts[st.move]
		if st.move != standstillTick {
			text = fmt.Sprintf(text, numbers[st.i])
		}
		steps = append(steps, text)
		was := numbers
		for to, from := range st.order {
			numbers[to] = was[from]
		}
	}
	return steps
}

// returns goes on from s with an API that reads and answers all it can, and says whether every unit comes back. While any is in
// doubt more requests are sent. One counts as arrived without a proof only where no unit is left for them. known has the states
// from which it was so.
func (m Standstill) returns(s standstill, known map[standstill]bool) bool {
	var way []standstill
	for m.counted(&s) > 0 && !known[s] {
		if len(way) == returnMost {
			return false
		}
		way = append(way, s)
		doubtful, coming := false, m.counted(&s) < m.Rate
		for i := range s.requests {
			r := &s.requests[i]
			doubtful = doubtful || r.doubtful()
			coming = coming || m.counts(r) && r.proven
		}
		var next *standstillStep
		steps := m.next(&s)
		for j := range steps {
			st := &steps[j]
			switch {
			case st.move == requestProbed && coming, st.move == requestClaimed && !doubtful:
			case next == nil || st.move < next.move:
				next = st
			}
		}
		s = next.state
	}
	for _, s := range way {
		known[s] = true
	}
	return true
}

// returnMost is more steps than any such run takes.
const returnMost = 200
