package model

import "testing"

// TestRuns: no window holds more than the rate, whatever becomes of runs, with few calls and short times.
//
//callq:guarantee 1
func TestRuns(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]Runs{
		"one by one":  {Rate: 1, Window: 2, Travel: 2, Length: 3, Deaths: 1},
		"two":         {Rate: 2, Window: 2, Travel: 1, Length: 3, Deaths: 1},
		"two of four": {Rate: 2, Window: 1, Travel: 1, Length: 4, Deaths: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := m.Explore()
			if report.Violation != nil {
				t.Errorf("%+v", *report.Violation)
			}
			t.Logf("%d states, %d transitions in %s", report.States, report.Transitions, report.Took)
		})
	}
}

// TestRunsMutants: each rule of runs that is not kept is noticed.
func TestRunsMutants(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]Misrun{
		"no turns": NoTurns, "turns come early": EarlyTurns, "each delivery starts what it can": NobodysRun,
		"each delivery reserves what it can": ByRow, "what is unsent is free": UnsentIsFree, "doubt keeps nothing back": DoubtIsOver,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Runs{Rate: 1, Window: 2, Travel: 2, Length: 3, Deaths: 1, Misruns: broken}.Explore()
			if report.Violation == nil || report.Violation.Rule != RuleRuns {
				t.Fatalf("not noticed in %d states", report.States)
			}
			t.Logf("%d states: %q", report.States, report.Violation.Steps)
		})
	}
}
