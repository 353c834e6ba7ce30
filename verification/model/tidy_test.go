package model

import "testing"

// TestTidyLosesNothing: without what tidy leaves out (New), the same is reached, and nothing else. Where
// the clock is set forward, dispatchers look sooner with tidy, and no state is reached that is not
// without it.
//
//callq:guarantee 1 2 3 4 5 6
func TestTidyLosesNothing(t *testing.T) {
	t.Parallel()
	base := Configuration{
		Calls: 2, Window: 1, SendWithin: 1, Slack: 1, Deadline: 2, StepBy: 1, Rates: []int8{1}, Attempts: 1, Failures: 2, Most: 1,
	}
	for name, change := range map[string]func(*Configuration){
		"crashes and losses": func(c *Configuration) {
			c.Faults = Faults{
				ClaimUnknown: 1, ClaimAborted: 1, ParcelLost: 1, ParcelTwice: 1, WorkerDies: 1, StartAnswer: 1, StartTwice: 1,
				FinishAnswer: 1, Unstarted: 1, Deleted: 1,
			}
		},
		"three calls":     func(c *Configuration) { c.Calls = 3 },
		"two in a window": func(c *Configuration) { c.Rates = []int8{2} },
		"retries":         func(c *Configuration) { c.Attempts, c.Faults = 2, Faults{Retries: 1} },
		"changes":         func(c *Configuration) { c.Rates, c.Faults = []int8{1, 2}, Faults{Changes: 1} },
		"step back":       func(c *Configuration) { c.Faults = Faults{ClockBack: 1} },
		"step forward":    func(c *Configuration) { c.Calls, c.Faults = 1, Faults{ClockForward: 1} },
		"failover":        func(c *Configuration) { c.Calls, c.Faults = 1, Faults{Failovers: 1} },
		"handlers":        func(c *Configuration) { c.Finish = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := base
			change(&c)
			tidied, whole := newModel(c, false), newModel(c, true)
			with, without := map[State]bool{}, map[State]bool{}
			a := tidied.explore(0, 1, func(s *State) { with[tidied.named(*s)] = true })
			b := whole.explore(0, 1, func(s *State) { without[tidied.named(*s)] = true })
			for _, r := range []Report{a, b} {
				if r.Violation != nil {
					t.Fatal(r.Violation)
				}
			}
			t.Logf("with tidy %s; without it %s", a, b)
			for s := range with {
				if !without[s] {
					t.Fatalf("reached with tidy alone: %+v", s)
				}
			}
			for s := range without {
				if !with[s] && c.Faults.ClockForward == 0 {
					t.Fatalf("reached without tidy alone: %+v", s)
				}
			}
		})
	}
}

// named is s after tidy, whichever numbers its calls had.
func (m *Model) named(s State) State {
	var least State
	var print uint64
	for i, from := range orders {
		if i > 0 && m.Calls == 1 || i > 0 && m.Calls == 2 && from != [callCount]int8{1, 0, 2} {
			continue // the others it has not
		}
		n := s
		m.tidyKeepingNames(&n)
		n.renameCalls(from)
		n.orderAttempts()
		m.tidy(&n)
		if p := testPrints.print(&n); print == 0 || p < print {
			least, print = n, p
		}
	}
	return least
}

var testPrints = newVisited(1)
