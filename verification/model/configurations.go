package model

// Configurations are what `make model` explores, each as a whole. Together they let everything go
// wrong that the protocol is made for; the faults of one may meet in any order, those of two
// configurations do not meet.
func Configurations() []Configuration {
	base := Configuration{
		Window: 3, SendWithin: 1, Slack: 1, Deadline: 2, Bucket: 0, StepBy: 2,
		Rates: []int8{2}, Attempts: 1, Failures: 2,
	}
	with := func(name, about string, change func(*Configuration)) Configuration {
		c := base
		c.Name, c.About = name, about
		change(&c)
		return c
	}
	// What may go wrong but a failover.
	world := Faults{
		ClaimUnknown: 1, ClaimAborted: 1, ParcelLost: 1, ParcelTwice: 1, WorkerDies: 1, StartAnswer: 1, StartTwice: 1,
		FinishAnswer: 1, Unstarted: 1, Deleted: 1, ClockForward: 1, ClockBack: 1, Changes: 1,
	}
	return []Configuration{
		with("plain", "no fault", func(c *Configuration) {}),
		with("claims", "claims step by step, commits in doubt", func(c *Configuration) {
			c.FineClaim, c.Bucket = true, 2
			c.Faults = Faults{ClaimUnknown: 1, ClaimAborted: 1}
		}),
		with("resends", "requests that are lost on their way and sent again, workers that die", func(c *Configuration) {
			c.Resend, c.Rates, c.Calls = 1, []int8{1}, 2
			c.Faults = Faults{WorkerDies: 1}
		}),
		with("messages", "what Redis loses and repeats, workers that die, starts step by step", func(c *Configuration) {
			c.FineStart = true
			c.Faults = Faults{ParcelLost: 1, ParcelTwice: 1, WorkerDies: 1}
		}),
		with("starts", "starts step by step, in doubt, asked for again", func(c *Configuration) {
			c.Rates, c.Calls, c.FineStart = []int8{1}, 2, true
			c.Faults = Faults{StartAnswer: 1, StartTwice: 1, FinishAnswer: 1, Unstarted: 1}
		}),
		with("retries", "second attempts of both of two calls, late results", func(c *Configuration) {
			c.Rates, c.Calls, c.Attempts = []int8{1}, 2, 2
			c.Faults = Faults{Unstarted: 1, Retries: 2}
		}),
		with("deletion", "both of two calls deleted or retired", func(c *Configuration) {
			c.Rates, c.Calls = []int8{1}, 2
			c.Faults = Faults{Deleted: 2, ParcelTwice: 1, StartAnswer: 1}
		}),
		with("changes", "the limit is lowered, then raised", func(c *Configuration) {
			c.Rates, c.FineStart = []int8{2, 1, 2}, true
			c.Faults = Faults{Changes: 2}
			c.Window = 2
		}),
		with("forward", "the clock is set forward", func(c *Configuration) {
			c.StepBy = 1
			c.Faults = Faults{ClockForward: 1}
		}),
		with("restart", "the clock is set forward, seen, and a dispatcher starts anew", func(c *Configuration) {
			c.StepBy, c.SeenSteps = 1, true
			c.Faults = Faults{ClockForward: 1, DispatcherDies: 1}
		}),
		with("back", "the clock is set back", func(c *Configuration) {
			c.FineClaim, c.Window, c.StepBy = true, 2, 3
			c.Faults = Faults{ClockBack: 1}
		}),
		with("leap", "the clock is set forward by more than the window", func(c *Configuration) {
			c.StepBy = 4
			c.Faults = Faults{ClockForward: 1}
		}),
		with("handlers", "a limit anchored at the finish", func(c *Configuration) {
			c.Rates, c.Calls, c.Finish, c.StepBy = []int8{1}, 2, true, 1
			c.Faults = Faults{ClockForward: 1}
		}),
		with("world", "all that may go wrong but a failover", func(c *Configuration) {
			c.Window, c.StepBy, c.Rates = 2, 1, []int8{2, 1, 2}
			c.Most, c.Faults = 2, world
		}),
		with("failover", "a standby that lacks the last commits is promoted", func(c *Configuration) {
			c.Window, c.Faults = 2, Faults{Failovers: 1}
		}),
		with("epochs", "the same and all else that may go wrong, with two calls that are retried", func(c *Configuration) {
			c.Calls, c.Rates, c.Window, c.StepBy, c.Attempts = 2, []int8{1}, 2, 1, 2
			c.Most, c.Faults = 2, world
			c.Faults.Failovers, c.Faults.Retries, c.Faults.Changes = 1, 1, 0
		}),
		with("shut", "the same, and the clock is set forward, with one call", func(c *Configuration) {
			c.Rates, c.Calls, c.StepBy = []int8{1}, 1, 1
			c.Faults = Faults{Failovers: 1, ClockForward: 1}
		}),
	}
}
