package callqueue

// Status is the state of a call.
type Status string

// A call is new or error while it waits, and dispatched while it has an open attempt. In the other statuses it has
// ended.
const (
	StatusNew        Status = "new"
	StatusDispatched Status = "dispatched"
	StatusDone       Status = "done"
	StatusError      Status = "error"     // will be tried again at run_at
	StatusFailed     Status = "failed"    // gave up; the error message says why
	StatusCancelled  Status = "cancelled" // by an operator
)

// Statuses returns all statuses.
func Statuses() []Status {
	return []Status{StatusNew, StatusDispatched, StatusDone, StatusError, StatusFailed, StatusCancelled}
}

// Final reports whether a call with this status has ended: only a retry changes it.
func (s Status) Final() bool {
	return s == StatusDone || s == StatusFailed || s == StatusCancelled
}

// Outcome is how an attempt ended, as the ledger records it.
type Outcome string

// How an attempt ends. Error, permanent and lost count towards max_attempts.
const (
	OutcomeDone      Outcome = "done"
	OutcomeError     Outcome = "error"     // may be tried again
	OutcomePermanent Outcome = "permanent" // would fail again
	OutcomeLost      Outcome = "lost"      // its worker never reported; the request may have been sent
	OutcomeNotSent   Outcome = "not_sent"  // provably never sent: nothing was charged
	OutcomeSnoozed   Outcome = "snoozed"   // postponed by its handler
	OutcomeCancelled Outcome = "cancelled"
)
