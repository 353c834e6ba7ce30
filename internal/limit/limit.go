// Package limit is the arithmetic of limits: until when a request may still arrive, how many units may go now, and when
// the next may.
//
// It is pure: it does no I/O and has no clock of its own. Times are Postgres's clock unless a name says otherwise.
// docs/design.md says what a limit promises, and why this arithmetic keeps it.
package limit

import "time"

// Anchor says from which recorded step on an open attempt's request can be bounded.
type Anchor string

const (
	AnchorStart  Anchor = "start"  // it is written at once after the start, or never: the http task's default
	AnchorFinish Anchor = "finish" // it may be written until the handler has ended: other tasks' default, and concurrency limits'
)

// Margin is what a window is widened by because clocks may run apart: W/1000.
func Margin(window time.Duration) time.Duration { return window / 1000 }

// ResendMost is for how long after the write TCP sends again what nobody acknowledges. Workers tell the kernel so
// (TCP_USER_TIMEOUT). After that the connection is gone.
const ResendMost = 5 * time.Second

// Arrival bounds when an attempt's request reached the API, as offsets from the start. Until makes of it, and of a
// limit's anchor and slack, until when the attempt is charged.
type Arrival struct {
	By      *time.Duration // proof: what was written through the gate had arrived by then, for it was answered
	Written time.Duration  // the last moment at which it was, or could have been, written
	EndBy   *time.Duration // proof: all that may have been sent had arrived by then
	Closed  time.Duration  // the moment after which nothing more could leave: connection reset, handler's deadline
	Acked   *time.Duration // the API's machine was seen to have all that was written, so TCP sends nothing of it again
}

// Until is the latest moment at which the request can have arrived, for a limit of a window with this anchor and slack. An answer
// is proof. Without one, only a request that was acknowledged is believed to have arrived within slack of the write: TCP sends
// a lost packet again, for ResendMost. The acknowledgement itself may be later than that.
func (a Arrival) Until(anchor Anchor, slack time.Duration) time.Duration {
	proof, bound := a.By, a.Written+slack
	if anchor != AnchorStart {
		proof, bound = a.EndBy, a.Closed+slack
	}
	switch {
	case a.Acked != nil:
		bound = max(*a.Acked, bound)
	case proof != nil:
		return *proof
	case anchor == AnchorStart:
		bound = min(a.Closed, a.Written+ResendMost) + slack
	}
	if proof != nil {
		bound = min(*proof, bound)
	}
	return bound
}

// Unlimited is a bound that holds for any slack up to a minute, of an attempt that is charged to no limit.
func (a Arrival) Unlimited() time.Duration {
	bound := max(a.Written, a.Closed) + time.Minute
	if a.EndBy != nil {
		bound = min(*a.EndBy, bound)
	}
	return bound
}

// Sending is what a worker measured of an attempt on its monotonic clock, from the reading before it asked for the start.
// Nil: it did not happen or was not seen.
type Sending struct {
	Sent     *time.Duration // the request's last write returned
	Acked    *time.Duration // the API's machine had all of it
	Answered *time.Duration // the answer began
	Ended    time.Duration  // the handler ended; without an answer, its connection was reset
	Own      bool           // by a custom handler, which may have sent by other means too
	GaveUp   bool           // which ended with an error: what it sent may still be on its way
}

// Arrival bounds the arrival of an attempt that ended on a live worker. Its offsets count from a reading that was taken
// before started_at, so the bound is safe however late anything commits. Under anchor start a custom handler sends through
// the call's client alone. Under anchor finish its end is all that is known.
func (s Sending) Arrival() Arrival {
	switch {
	case !s.Own && s.Answered != nil:
		return Arrival{By: s.Answered, Written: *s.Sent, EndBy: s.Answered, Closed: *s.Sent, Acked: s.Acked}
	case !s.Own:
		return Arrival{Written: *s.Sent, Closed: s.Ended, Acked: s.Acked}
	}
	a := Arrival{Written: s.Ended, Closed: s.Ended}
	if !s.GaveUp && (s.Sent == nil || s.Answered != nil) { // it had its answers
		a.By, a.EndBy = &s.Ended, &s.Ended
	}
	if s.Sent != nil {
		a.By, a.Written, a.Acked = s.Answered, *s.Sent, s.Acked
	}
	return a
}

// LostArrival bounds the arrival of an attempt whose worker was lost. The write gate let nothing through after sendWithin,
// and nothing at all after the deadline, both counted from the start.
func LostArrival(sendWithin, deadline time.Duration, acked *time.Duration) Arrival {
	return Arrival{Written: min(sendWithin, deadline), Closed: deadline, Acked: acked}
}
