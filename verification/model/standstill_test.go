package model

import "testing"

// TestStandstill: the rules hold in every state, with few requests and short times.
//
//callq:guarantee 1
func TestStandstill(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]Standstill{
		"one unit":      {Requests: 4, Rate: 1, Window: 2, Slack: 1, ArriveWithin: 3},
		"two units":     {Requests: 3, Rate: 2, Window: 2, Slack: 1, ArriveWithin: 3},
		"four requests": {Requests: 4, Rate: 2, Window: 1, Slack: 0, ArriveWithin: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := m.Explore()
			t.Log(report)
			if report.Violation != nil {
				t.Error(report.Violation)
			}
		})
	}
}

// TestStandstillMutants: each mistake is noticed, by what it breaks.
func TestStandstillMutants(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		mistaken Mistake
		rule     string
	}{
		{"acknowledged counts as arrived", AckIsArrival, RuleStandstill},
		{"any later answer counts", AnyLater, RuleStandstill},
		{"a timeout frees its unit after slack", TimeoutFrees, RuleStandstill},
		{"a written request has its place", WriteIsPlaced, RuleStandstill},
		{"a new connection's request has its place by its write", PlaceAtWrite, RuleStandstill},
		{"two probes at once", TwoProbes, RuleStandstill},
		{"a probe though the API answers", AnswersIgnored, RuleStandstill},
		{"only what was acknowledged is overtaken", OnlyAcked, RuleReturn},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			report := Standstill{Requests: 3, Rate: 2, Window: 1, Slack: 1, ArriveWithin: 2, Mistaken: c.mistaken}.Explore()
			switch {
			case report.Violation == nil:
				t.Errorf("not noticed: %s", report)
			case report.Violation.Rule != c.rule:
				t.Errorf("broken is %q, want %q\n%s", report.Violation.Rule, c.rule, report.Violation)
			default:
				t.Logf("%s\n%s", report, report.Violation)
			}
		})
	}
}
