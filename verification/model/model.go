// Package model checks callq's protocol by trying everything: it explores every state that
// dispatchers, workers, Redis, Postgres, its clock and the API can reach together within small
// bounds, and looks in each for a rule of docs/guarantees.md that does not hold.
//
// It promises that within a Configuration's bounds and budget of faults no order of steps is left
// out, that a violation is reported with the shortest list of steps that leads to it, and that each
// rule it is told to break (see Broken) is noticed. It does not read the code: what it says holds
// for the code as far as the steps here are the code's, and each names the function it stands for.
// It says nothing about SQL, net/http or speed, about limits that share a queue, about limits that
// are counted anew from the ledger, nor about what needs more calls, workers or time than it has.
//
// Two things keep the number of states down. States from which the same can go wrong are made one
// (tidy.go says which, and why that loses nothing), and a state is known again by 64 bits (visited.go
// has the chance that two are taken for one).
//
// Standstill is a second model, of APIs that acknowledge what they read much later.
package model

// The bounds that all configurations share.
const (
	callCount   = 3
	slotCount   = 5 // attempts that can still matter at once; with none free a claim waits
	workerCount = 2
	askCount    = 2 // start statements under way at once
	dispCount   = 2
)

// Configuration is one space to explore: how long things take, in ticks, and what may go wrong.
type Configuration struct {
	Name  string
	About string

	Window     int8
	SendWithin int8
	Slack      int8
	Resend     int8   // for how long TCP sends again what was lost on its way
	Deadline   int8   // from the start; the handler's timeout ends a tick before it
	Bucket     int8   // width of a bucket of usage; 0: so small that its end is until
	Rates      []int8 // the limit's rate, version by version; Faults.Changes says how many come
	Finish     bool   // the limit is anchored at the finish, else at the start
	SeenSteps  bool   // the clock is set forward only while dispatchers look, and none starts anew before one has looked
	StepBy     int8   // by how much Postgres's clock is set forward or back

	Calls    int8 // 0: all
	Attempts int8 // of one call, at most
	Failures int8 // of one call, then it has failed
	// Each splits steps that are otherwise taken as one.
	FineClaim bool // a claim's clock, and its count
	FineStart bool // a start's lock, and its commit; taking a message, and asking for the start

	// Most: so many faults in all may happen on one path, in any mixture; 0: each as often as Faults says.
	Most   int8
	Faults Faults // how many of each may happen; with Most: which may, at all
	Broken Broken // which rules do not hold
	// Ignore names a rule that is not looked at: what is broken may break several.
	Ignore []string
}

// Model explores one configuration. It is not safe for concurrent use.
type Model struct {
	Configuration
	longest int8 // from a start to its until, at most
	back    int8 // how long ago a start was that verify is asked about, at most
	frozen  int8 // a worker that was stopped for longer never comes back
	steps   []step
	whole   bool // without the reductions of tidy.go, for the test that compares
	without bool // heal: no fault, and no bound on attempts
}

func (m *Model) emit(kind move, a, b int8, s State, bad string) {
	m.steps = append(m.steps, step{kind, a, b, s, bad})
}

// claimMost is how long a claim may take from its clock to its count; then it is aborted.
const claimMost = 1

// New makes a Model of c.
func New(c Configuration) *Model { return newModel(c, false) }

func newModel(c Configuration, whole bool) *Model {
	m := &Model{Configuration: c, whole: whole}
	if c.Most > 0 {
		m.Faults = c.Faults.upTo(c.Most)
	}
	if c.Calls == 0 {
		m.Calls = callCount
	}
	m.frozen = c.Deadline + 1
	m.longest = c.SendWithin + c.Resend + c.Slack
	if c.Finish || m.has(UntilExtended) {
		m.longest = m.frozen + c.Slack
	}
	if c.FineClaim || c.Broken != 0 || c.Faults.Failovers > 0 || whole {
		m.back = claimMost
	}
	return m
}

func (m *Model) has(b Broken) bool { return m.Broken&b != 0 }
