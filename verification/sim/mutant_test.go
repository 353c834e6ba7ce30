package sim

import (
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/policy"
)

// mutant turns rules off, one in each of mutants, to prove that the simulation would notice.
type mutant struct {
	rough      bool            // the faults are many
	calm       bool            // much to do, in short windows, and no faults but those of the mutant
	secondSend bool            // what is delivered twice is sent twice
	newM0      bool            // m0 is read anew when a start is asked for again
	early      bool            // units that are given out ahead are used at once
	openGate   bool            // nothing is too late for the gate
	resends    bool            // half of the requests are sent again
	oneToken   bool            // each delivery of a run has the same token
	rushes     bool            // no call of a run waits for its turn
	narrow     bool            // windows are
	noRecall   bool            // a lower rate or a pause recalls nothing
	late       bool            // queues close all the time
	queues     bool            // the API always stands still at times
	ackIsLater bool            // what is acknowledged counts as read
	anyAnswer  bool            // so does what was acknowledged before any answer, whenever that request was written
	slow       bool            // half of the requests take the API as long as they may
	timeout    time.Duration   // of all queues; 0: each has its own
	often      func(*world)    // happens some times more than it would
	failover   policy.Failover // "": as the setting has it
	turn       func(*world)
	close      func(*world, *attempt, *ledger.Closing)
	retention  func(*world)
	clockRuns  int64 // dispatchers' clocks run that much faster, so that no step shows
	sql        string
	undo       string
}

func (m mutant) beforeTurn(w *world) {
	if m.turn != nil && !w.redisDown {
		m.turn(w)
	}
}

func (m mutant) closing(w *world, a *attempt, c *ledger.Closing) {
	if m.close != nil {
		m.close(w, a, c)
	}
}

func (m mutant) retained(w *world) {
	if m.retention != nil {
		m.retention(w)
	}
}

func (m mutant) monotonic(now time.Duration) time.Duration {
	if m.clockRuns > 0 {
		return now * time.Duration(m.clockRuns)
	}
	return now
}
