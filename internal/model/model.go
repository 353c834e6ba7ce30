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
package model

import "fmt"

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
	Deadline   int8   // from the start; the handler's timeout ends a tick before it
	Bucket     int8   // width of a bucket of usage; 0: so small that its end is until
	Rates      []int8 // the limit's rate, version by version; Faults.Changes says how many come
	Finish     bool   // the limit is anchored at the finish, else at the start
	StepBy     int8   // by how much Postgres's clock is set forward or back

	Calls    int8 // 0: all
	Attempts int8 // of one call, at most
	Failures int8 // of one call, then it has failed
	// Each splits steps that are otherwise taken as one.
	FineClaim bool // a claim's clock, and its count
	FineStart bool // a start's lock, and its commit; taking a parcel, and asking for the start

	Faults Faults // how many of each may happen
	Broken Broken // which rules do not hold
	// Ignore names a rule that is not looked at: what is broken may break several.
	Ignore []string
}

// Faults is a budget: how often each of these may happen on one path.
type Faults struct {
	ClaimUnknown   int8 // a claim commits and its dispatcher does not know, or dies: no hand-over
	ClaimAborted   int8 // a claim ends without a commit
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
	Failovers      int8 // to a server that may lack the last commits
}

func (f Faults) String() string {
	list := ""
	for _, b := range []struct {
		n    int8
		name string
	}{
		{f.ClaimUnknown, "claim unknown"},
		{f.ClaimAborted, "claim aborted"},
		{f.ParcelLost, "parcel lost"},
		{f.ParcelTwice, "parcel twice"},
		{f.WorkerDies, "worker dies"},
		{f.StartAnswer, "start's answer lost"},
		{f.StartTwice, "start asked twice"},
		{f.FinishAnswer, "finish's answer lost"},
		{f.Unstarted, "taken back unstarted"},
		{f.ClockForward, "clock forward"},
		{f.ClockBack, "clock back"},
		{f.DispatcherDies, "dispatcher restarts"},
		{f.Changes, "limit changed"},
		{f.Deleted, "call deleted"},
		{f.Failovers, "failover"},
	} {
		if b.n > 0 {
			list += fmt.Sprintf(", %d %s", b.n, b.name)
		}
	}
	if list == "" {
		return "none"
	}
	return list[2:]
}

// Model explores one configuration. It is not safe for concurrent use.
type Model struct {
	Configuration
	reach   int8 // a time on Postgres's clock older than this is as good as older still
	frozen  int8 // a worker that was stopped for longer never comes back
	steps   []step
	without bool // heal: no fault, and no bound on attempts
}

func (m *Model) emit(kind move, a, b int8, s State, bad string) {
	m.steps = append(m.steps, step{kind, a, b, s, bad})
}

// claimMost is how long a claim may take from its clock to its count; then it is aborted.
const claimMost = 1

// New makes a Model of c.
func New(c Configuration) *Model {
	m := &Model{Configuration: c}
	if c.Calls == 0 {
		m.Calls = callCount
	}
	m.frozen = c.Deadline + 1
	longest := c.SendWithin + c.Slack
	if c.Finish || m.has(UntilExtended) {
		longest = m.frozen + c.Slack
	}
	m.reach = max(m.settled()+longest, c.Deadline+1)
	return m
}

func (m *Model) has(b Broken) bool { return m.Broken&b != 0 }

// settled is the age at which a charge can matter no more to any claim or check to come.
func (m *Model) settled() int8 {
	age := m.Window + claimMost
	if m.Faults.ClockForward > 0 {
		age += m.StepBy
	}
	if m.Faults.ClockBack > 0 {
		age += m.StepBy
	}
	return age
}
