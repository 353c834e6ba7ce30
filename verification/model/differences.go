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
	setBack := func(c *Configuration) { c.Faults = Faults{Changes: 1, ClockBack: 1} }
	restart := func(c *Configuration) { small(c); c.Faults.DispatcherDies = 1 }
	return []Difference{
		{
			"internal/limit/clock.go Gained", "a step back and one forward between two looks of a dispatcher cancel out",
			variant{name: "back and forward", within: "back", change: again, rule: Rule4},
		},
		{
			"internal/limit/clock.go Gained", "a dispatcher that starts anew does not know of a step that nobody has seen",
			variant{name: "step forward, then a restart", within: "forward", change: restart, rule: Rule4},
		},
		{
			"internal/policy/apply.go recordSQL", "effective_from is what the clock says: set back since the last start, it has verify judge that start by the rate that came after it",
			variant{name: "step back, then a lower rate", within: "changes", change: setBack, rule: Rule6},
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
