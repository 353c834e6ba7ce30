package model

import (
	"fmt"
	"slices"
	"strings"
)

// Faults is a budget: how often each of these may happen on one path.
type Faults struct {
	ClaimUnknown   int8 // a claim commits and its dispatcher does not know, or dies: no hand-over
	ClaimAborted   int8 // a claim ends without a commit, by an error or because its dispatcher dies
	ParcelLost     int8 // by Redis, or by a worker that dies with it
	ParcelTwice    int8 // comes again, or is sent again while the first is under way
	WorkerDies     int8
	StartAnswer    int8 // a start commits and its answer is lost
	StartTwice     int8 // a start is asked for again while the first statement may still run
	FinishAnswer   int8 // a closing commits and its answer is lost
	Unstarted      int8 // the sweeper takes an unstarted attempt back, or a worker hands it back
	ClockForward   int8
	ClockBack      int8
	DispatcherDies int8 // and starts anew, knowing nothing of the clock
	Changes        int8 // versions of the limit that are published after the first
	Deleted        int8 // rows of call_queue deleted by an operator, whatever their status
	Retries        int8 // attempts of a call after its first
	Failovers      int8 // to a server that may lack the last commits
}

const faultCount = 16

var faultNames = [faultCount]string{
	"commit unknown or dispatcher dead after it", "claim aborted or dispatcher dead in it", "message lost", "message twice", "worker dies", "start's answer lost",
	"start asked twice", "finish's answer lost", "taken back unstarted", "clock forward", "clock back",
	"dispatcher restarts, clock forgotten", "limit changed", "call deleted", "call retried", "failover",
}

// each is the numbers, in the order of faultNames.
func (f *Faults) each() [faultCount]*int8 {
	return [...]*int8{
		&f.ClaimUnknown, &f.ClaimAborted, &f.ParcelLost, &f.ParcelTwice, &f.WorkerDies, &f.StartAnswer,
		&f.StartTwice, &f.FinishAnswer, &f.Unstarted, &f.ClockForward, &f.ClockBack,
		&f.DispatcherDies, &f.Changes, &f.Deleted, &f.Retries, &f.Failovers,
	}
}

// upTo allows each fault that f does so often; the clock is set once.
func (f Faults) upTo(most int8) Faults {
	for _, n := range f.each() {
		if *n > 0 {
			*n = most
		}
	}
	f.ClockForward, f.ClockBack = min(f.ClockForward, 1), min(f.ClockBack, 1)
	f.Failovers = min(f.Failovers, 1)
	return f
}

// FaultsAtMost says which faults may happen on one path, and how many.
func (c Configuration) FaultsAtMost() string {
	var list []string
	for i, n := range c.Faults.each() {
		switch {
		case *n == 0:
		case c.Most > 0:
			list = append(list, faultNames[i])
		default:
			list = append(list, fmt.Sprintf("%d %s", *n, faultNames[i]))
		}
	}
	text := strings.Join(list, ", ")
	switch {
	case text == "":
		return "none"
	case c.Most > 0:
		return fmt.Sprintf("%d in all of %s", c.Most, text)
	}
	return text
}

// spend takes what each step from s costs off what may still happen, where Most bounds it, and drops
// the steps that cost more. What has happened is not remembered but by its number, so that paths
// whose faults are over and forgotten meet again.
//
// Where the clock is set forward, it is not set back too, nor does a dispatcher start anew; where it is
// set back, the limit is not changed: what comes of these pairs is known, see Differences.
func (m *Model) spend(s *State) {
	if m.Most == 0 {
		return
	}
	dear := false
	for i := range m.steps {
		n := &m.steps[i].state
		if n.left == s.left {
			continue
		}
		now, before := n.left, s.left
		n.left = s.left
		is, was := now.each(), before.each()
		for j := range is {
			n.most -= *was[j] - *is[j]
		}
		switch {
		case now.ClockForward < before.ClockForward:
			n.left.ClockForward, n.left.ClockBack, n.left.DispatcherDies = 0, 0, 0
		case now.ClockBack < before.ClockBack:
			n.left.ClockForward, n.left.ClockBack, n.left.Changes = 0, 0, 0
		case now.Changes < before.Changes:
			n.left.ClockBack = 0
		case now.DispatcherDies < before.DispatcherDies:
			n.left.ClockForward = 0
		case now.Failovers < before.Failovers:
			n.left.Failovers = 0
		}
		if n.most <= 0 {
			n.left = Faults{}
		}
		dear = dear || n.most < 0
	}
	if dear {
		m.steps = slices.DeleteFunc(m.steps, func(st step) bool { return st.state.most < 0 })
	}
}
