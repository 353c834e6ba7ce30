// Package limit is the arithmetic of limits: until when a request may still arrive, how many
// units may go now, and when the next may.
//
// It is pure: no I/O, no clock of its own. Times are Postgres's clock unless a name says
// otherwise. What a limit promises, and why this arithmetic keeps it, is in docs/design.md.
package limit

import (
	"math"
	"time"
)

// Anchor says from which recorded step on an open attempt's request can be bounded.
type Anchor string

const (
	// AnchorStart: the request is written at once after the start, or never. Default of the http task.
	AnchorStart Anchor = "start"
	// AnchorFinish: the request may be written until the handler has ended. Default of other tasks,
	// and the only one of concurrency limits.
	AnchorFinish Anchor = "finish"
	// AnchorDispatch counts from the claim, whenever the request is sent: for comparison only, it
	// promises nothing.
	AnchorDispatch Anchor = "dispatch"
)

// Margin is what a window is widened by for clocks that run apart: W/1000.
func Margin(window time.Duration) time.Duration { return window / 1000 }

// Arrival bounds, as offsets from the start, the moment at which an attempt's request reached
// the API: until = started_at + min(By, Written or Closed + slack), with Written for limits
// anchored at the start and Closed for those anchored at the finish.
type Arrival struct {
	By      *time.Duration // proof: it had arrived by then, because it was answered or its handler had ended
	Written time.Duration  // the last moment at which it was, or could have been, written
	Closed  time.Duration  // the moment after which nothing more could leave: connection reset, handler's deadline
}

// Sending is what a worker measured of an attempt on its monotonic clock, from m0, the reading
// before it asked for the start. Nil: it did not happen or was not seen.
type Sending struct {
	Sent     *time.Duration // the request's last write returned
	Answered *time.Duration // the answer began
	Ended    time.Duration  // the handler ended, its connection reset if there was no answer
}

// Arrival bounds the arrival of an attempt that ended on a live worker. Each offset is counted
// from m0, which was read before started_at, so the bound is safe however late anything commits.
func (s Sending) Arrival() Arrival {
	switch {
	case s.Sent == nil: // sent by other means than the call's client: its end is all that is known
		return Arrival{By: &s.Ended, Written: s.Ended, Closed: s.Ended}
	case s.Answered != nil:
		return Arrival{By: s.Answered, Written: *s.Sent, Closed: *s.Sent}
	default:
		return Arrival{Written: *s.Sent, Closed: s.Ended}
	}
}

// LostArrival bounds the arrival of an attempt whose worker was lost: the write gate let nothing
// through after sendWithin, and nothing at all after the deadline (both from the start).
func LostArrival(sendWithin, deadline time.Duration) Arrival {
	return Arrival{Written: min(sendWithin, deadline), Closed: deadline}
}

// Use is what is known of a limit at a moment.
type Use struct {
	Rate     Rate
	Occupied int64 // units that cannot be given out now; of a token bucket, see Charges
	// Freed is the earliest moment that any occupied unit's until can be; zero: none is occupied
	// or all are unstarted, so that none comes free within a window.
	Freed   time.Time
	Charges []Charge // of a token bucket
}

// Room is how many units may be given out now; gained is what Postgres's clock gained of late (see Clock).
func (u Use) Room(now time.Time, gained time.Duration) int64 {
	if u.Rate.Algorithm == TokenBucket {
		return max(0, int64(math.Floor(u.Rate.level(now, gained, u.Charges))))
	}
	return max(0, u.Rate.Units-u.Occupied)
}

// NextLook is the earliest moment at which a unit can come free, unless an attempt turns out not
// to have been sent; gained is how much the window is widened by (see Clock).
func (u Use) NextLook(now time.Time, gained time.Duration) time.Time {
	if u.Rate.Algorithm == TokenBucket {
		return u.Rate.refills(now, gained, u.Charges)
	}
	if c, ok := u.Rate.calendar(); ok {
		return c.End(now.Add(-c.apart() - gained)).Add(c.apart() + gained)
	}
	wait := u.Rate.Window + Margin(u.Rate.Window) + gained
	if u.Freed.IsZero() {
		return now.Add(wait)
	}
	return u.Freed.Add(wait)
}
