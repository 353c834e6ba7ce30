package model

import (
	"slices"
	"strings"
	"testing"
)

// mutants are mistakes that the code does not make, each in the configuration that shows it.
var mutants = []variant{
	{name: "no lock on the limit", ignore: []string{Rule6}, broken: NoLock, within: "plain", change: small, rule: Rule1},
	{name: "counted by dispatched_at", broken: CountDispatched, within: "plain", rule: Rule4},
	{name: "counted by started_at", ignore: []string{Rule6}, broken: CountStarted, within: "plain", rule: Rule4},
	{name: "usage before open rows, two statements", ignore: []string{Rule6}, broken: TwoStatements, within: "claims", change: small, rule: Rule1},
	{name: "open attempts not counted", broken: OpenNotCounted, within: "plain", rule: Rule4},
	{name: "buckets rounded down", broken: RoundedDown, within: "claims", rule: Rule4},
	{name: "gain forgotten", broken: GainForgotten, within: "forward", rule: Rule4},
	{name: "gain kept short (handlers)", broken: GainKeptShort, within: "handlers", rule: Rule4},

	{name: "gain known to who saw it", broken: GainUnwritten, within: "restart", rule: Rule4},

	{name: "lowered without recall", broken: NoRecall, within: "changes", rule: Rule6},
	{name: "recall skips locked rows", broken: RecallSkips, within: "changes", rule: Rule6},
	{name: "nothing is missing in a new epoch", ignore: []string{Rule6, Rule7}, broken: NoneMissing, within: "failover", change: small, rule: Rule1},
	{name: "workers find what is missing", broken: FindsAll, within: "failover", rule: Rule4},
	{name: "what the clock gained is lost", broken: GainLost, within: "epochs", rule: Rule4},
	{name: "what is missing has arrived", broken: MissingHasArrived, within: "failover", rule: Rule4},
	{name: "the former server's clock was not ahead", broken: SameClock, within: "epochs", rule: Rule7},
	{name: "what is open in a new epoch is known", ignore: []string{Rule6, Rule7}, broken: OpenIsKnown, within: "failover", rule: Rule1},

	{name: "start without compare-and-set", ignore: []string{Rule4}, broken: NoCompareAndSet, within: "messages", rule: Rule2},
	{name: "start does not check the epoch", broken: NoEpochCheck, within: "failover", change: func(c *Configuration) { c.Faults.ParcelTwice = 1 }, rule: Rule2},
	{name: "new m0 on a repeated start", broken: NewM0, within: "starts", rule: Rule4},
	{name: "m0 read at the answer", broken: LateM0, within: "starts", rule: Rule4},
	{name: "no gate", broken: NoGate, within: "plain", rule: Rule4},
	{name: "second request", broken: SecondRequest, within: "plain", rule: Rule2},

	{name: "no slack without an answer", broken: NoSlack, within: "plain", rule: Rule4},
	{name: "late finish overwrites", broken: FinishOverwrites, within: "retries", rule: Rule5},
	{name: "unsent unless answered", broken: UnsentUnlessHeard, within: "plain", rule: Rule4},

	{name: "lost attempt refunded", broken: RefundLost, within: "plain", rule: Rule4},
	{name: "started attempt refunded as unstarted", broken: RefundStarted, within: "starts", rule: Rule4},
	{name: "older epoch refunded", broken: RefundEpoch, within: "failover", rule: Rule4},
	{name: "lost attempt charged at its start", broken: LostAtStart, within: "plain", rule: Rule4},
	{name: "resend as a new attempt", broken: ResendAnew, within: "messages", change: func(c *Configuration) { c.Attempts, c.Faults.Retries = 2, 2 }, rule: Rule4},
	{name: "no resend", broken: NoResend, within: "messages", rule: Rule3},
	{name: "retention frees usage", broken: RetireFrees, within: "deletion", rule: Rule4},
	{name: "deletion takes the open row", broken: DeleteCloses, within: "deletion", rule: Rule4},
	{name: "taken back, call not", broken: TakenBackSilent, within: "starts", rule: Rule3},
	{name: "verify without open attempts", broken: NoLock | VerifyClosed, within: "plain", change: small, rule: Rule7, ignore: []string{Rule6}},
	{name: "verify by starts alone", broken: CountStarted | VerifyAtStart, within: "plain", change: small, rule: Rule7, ignore: []string{Rule1, Rule4, Rule6}},

	// What the code once did.
	{name: "verify beside slow calls", broken: VerifyOpenForEver, within: "plain", change: small, rule: Rule6},
	{name: "verify after a failover", broken: EpochAsOfNow, within: "failover", change: small, rule: Rule6},
	{name: "verify after a slow body", broken: UntilExtended, within: "plain", change: small, rule: Rule6},
	{name: "verify after a step back", broken: ClockAlone, within: "back", change: small, rule: Rule6},
	{name: "request sent again, attempt open", broken: ResendUncounted, within: "resends", rule: Rule4},
	{name: "request sent again, no answer", broken: ResendUncharged, within: "resends", rule: Rule4},
	{name: "acknowledged on its way", broken: AckedUnseen, within: "resends", rule: Rule4},
	{name: "step forward, request under way", broken: GainKeptShort, within: "forward", rule: Rule4},
	{name: "step back within a claim", broken: NoRecount, within: "back", change: small, rule: Rule1, ignore: []string{Rule7}},
	{name: "handler that gave up", broken: EndIsProof, within: "handlers", rule: Rule4},
	{name: "older epoch, not sent", broken: UnsentOldEpoch, within: "failover", change: func(c *Configuration) { c.Faults.Unstarted = 1 }, rule: Rule4},
	{name: "missing, and the clock set forward", broken: MissingForgetsGain, within: "shut", rule: Rule4},
	{name: "gate open past the deadline", broken: GateForgets, within: "plain", change: longGate, rule: Rule4},
}

// TestRulesHold: near the beginning of every configuration, which is all that there is time for here.
// Every move is met there, so none of what `make model` explores is out of reach.
//
//callq:guarantee 1 2 3 4 5 6
func TestRulesHold(t *testing.T) {
	t.Parallel()
	var met [moveCount]bool
	for _, c := range Configurations() {
		report := Explore(c, 2_500, 1)
		if report.Violation != nil {
			t.Errorf("%s: %s\n%s", c.Name, report, report.Violation)
		}
		for kind, yes := range report.met {
			met[kind] = met[kind] || yes
		}
	}
	for kind, yes := range met {
		broken := move(kind) == moveCountUsage || move(kind) == moveCountOpen
		if yes == broken {
			t.Errorf("%q: met %v", texts[kind].text, yes)
		}
	}
}

// TestShortestTrace: a violation is told by the steps that lead to it.
func TestShortestTrace(t *testing.T) {
	t.Parallel()
	v := variant{broken: SecondRequest, within: "plain"}
	report := Explore(v.configuration(), 0, 1)
	want := []string{
		"a dispatcher locks the limit, reads the clock and counts what is occupied",
		"its claim of 1 commits and is handed over",
		"a worker takes the message of call 1 attempt 1",
		"call 1 attempt 1 is started",
		"the request of call 1 attempt 1 is written",
		"the request of call 1 attempt 1 is written",
	}
	if report.Violation == nil || !slices.Equal(report.Violation.Steps, want) {
		t.Errorf("%v, want these steps:\n%s", report.Violation, strings.Join(want, "\n"))
	}
}

// TestExplorersAgree: two find what one finds.
func TestExplorersAgree(t *testing.T) {
	t.Parallel()
	v := variant{broken: NoSlack, within: "plain", change: small}
	for _, c := range []Configuration{variant{within: "plain", change: small}.configuration(), v.configuration()} {
		one, two := Explore(c, 0, 1), Explore(c, 0, 2)
		if (one.Violation == nil) != (two.Violation == nil) {
			t.Fatalf("one finds %v, two find %v", one.Violation, two.Violation)
		}
		switch {
		case one.Violation == nil && (one.States != two.States || one.Transitions != two.Transitions || one.Depth != two.Depth):
			t.Errorf("one explores %s, two %s", one, two)
		case one.Violation != nil && (one.Violation.Rule != two.Violation.Rule || len(one.Violation.Steps) != len(two.Violation.Steps)):
			t.Errorf("one finds %v, two find %v", one.Violation, two.Violation)
		}
	}
}

// TestMutants: each broken rule is noticed, by what it breaks.
//
//callq:guarantee 1 2 3 4 5 6
func TestMutants(t *testing.T) {
	t.Parallel()
	for _, v := range mutants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			mustFind(t, v)
		})
	}
}

// TestDifferences: what the code does otherwise is still a violation; if not, its line can go.
//
//callq:guarantee 1 2 3 4 5 6
func TestDifferences(t *testing.T) {
	t.Parallel()
	for _, d := range Differences() {
		t.Run(d.variant.name, func(t *testing.T) {
			t.Parallel()
			mustFind(t, d.variant)
		})
	}
}

func mustFind(t *testing.T, v variant) {
	t.Helper()
	report := Explore(v.configuration(), 500_000, 1)
	switch {
	case report.Violation == nil:
		t.Errorf("not noticed: %s", report)
	case report.Violation.Rule != v.rule:
		t.Errorf("broken is %q, want %q\n%s", report.Violation.Rule, v.rule, report.Violation)
	default:
		t.Logf("%s\n%s", report, report.Violation)
	}
}
