package model

// Difference is a place where the code does not do what the model does, and so breaks a rule.
type Difference struct {
	Where   string // in the code
	What    string // the code does there
	variant variant
}

// Configuration shows the difference: to explore it ends with a violation.
func (d Difference) Configuration() Configuration { return d.variant.configuration() }

// Differences are the ones that are known. Each goes when the code is mended.
func Differences() []Difference {
	again := func(c *Configuration) { c.Faults.ClockForward = 1 }
	restart := func(c *Configuration) { c.Faults.DispatcherDies = 1 }
	swept := func(c *Configuration) { c.Faults.Unstarted = 1 }
	return []Difference{
		{
			"internal/ledger/verify.go windowsSQL", "an open attempt counts for ever, and not until its start's bound",
			variant{name: "verify beside slow calls", broken: VerifyOpenForEver, within: "plain", change: small, rule: Rule6},
		},
		{
			"dispatcher/sweep.go sweepEpoch", "an attempt that had started is charged as of the sweep",
			variant{name: "verify after a failover", broken: EpochAsOfNow, within: "failover", rule: Rule6},
		},
		{
			"tasks/attempt.go sending", "until follows the last write of a request, past send_within + slack",
			variant{name: "verify after a slow body", broken: UntilExtended, within: "plain", change: small, rule: Rule6},
		},
		{
			"internal/ledger/start.go startSQL", "started_at may be earlier than claimed_at, when the clock was set back",
			variant{name: "verify after a step back", broken: ClockAlone, within: "back", rule: Rule6},
		},
		{
			"internal/limit/clock.go Gained", "a gain is kept for W and the gain, whatever was under way",
			variant{name: "step forward, request under way", broken: GainKeptShort, within: "forward", rule: Rule4},
		},
		{
			"dispatcher/claim.go claim", "the clock may be set back by a window between readClock and headroom",
			variant{name: "step back within a claim", broken: NoRecount, within: "back", rule: Rule1, ignore: []string{Rule7}},
		},
		{
			"tasks/attempt.go runHandler", "a handler's end is taken for proof, though it may have given up",
			variant{name: "handler that gave up", broken: EndIsProof, within: "handlers", rule: Rule4},
		},
		{
			"internal/ledger/close.go closeSQL", "recall, sweeper and workers close rows of an older epoch as not sent",
			variant{name: "older epoch, not sent", broken: UnsentOldEpoch, within: "failover", change: swept, rule: Rule4},
		},
		{
			"dispatcher/lock.go shutFor", "shut_until is not put off by what the clock gained since",
			variant{name: "shut, and the clock set forward", broken: ShutForgetsGain, within: "shut", rule: Rule4},
		},
		{
			"internal/limit/limit.go LostArrival", "the deadline bounds a lost attempt, and the gate knows only send_within",
			variant{name: "gate open past the deadline", broken: GateForgets, within: "plain", change: longGate, rule: Rule4},
		},
		{
			"internal/limit/clock.go Look", "a step back and one forward between two looks of a dispatcher cancel out",
			variant{name: "back and forward", within: "back", change: again, rule: Rule4},
		},
		{
			"internal/limit/clock.go Look", "a dispatcher that starts anew does not know what was gained",
			variant{name: "step forward, then a restart", within: "forward", change: restart, rule: Rule4},
		},
	}
}

// small is the least that shows anything: what one call used, another gets.
func small(c *Configuration) { c.Calls, c.Rates = 2, []int8{1} }

// longGate has the gate open for longer than the handler may take.
func longGate(c *Configuration) {
	small(c)
	c.SendWithin = 3
}

// variant is a configuration in which a rule is broken.
type variant struct {
	name   string
	broken Broken
	within string // the configuration that shows it
	change func(*Configuration)
	rule   string   // that is then violated
	ignore []string // others that are
}

func (v variant) configuration() Configuration {
	for _, c := range Configurations() {
		if c.Name != v.within {
			continue
		}
		c.Name, c.Broken, c.Ignore = v.name, v.broken, v.ignore
		if v.change != nil {
			v.change(&c)
		}
		return c
	}
	panic("model: no configuration " + v.within)
}
