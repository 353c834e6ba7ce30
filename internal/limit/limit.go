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
)

// Margin is what a window is widened by for clocks that run apart: W/1000.
func Margin(window time.Duration) time.Duration { return window / 1000 }

// Arrival bounds, as offsets from the start, the moment at which an attempt's request reached the API: see
// [Arrival.Until].
type Arrival struct {
	By      *time.Duration // proof: what was written through the gate had arrived by then, for it was answered
	Written time.Duration  // the last moment at which it was, or could have been, written
	EndBy   *time.Duration // proof: all that may have been sent had arrived by then
	Closed  time.Duration  // the moment after which nothing more could leave: connection reset, handler's deadline
	// Acked is when the API's machine was seen to have all that was written: TCP sends nothing of it again. Nil: that
	// was not seen.
	Acked *time.Duration
}

// ResendMost is for how long after the write TCP sends again what nobody acknowledges: workers tell the kernel so
// (TCP_USER_TIMEOUT). After that the connection is gone.
const ResendMost = 5 * time.Second

// Until is the latest moment at which the request can have arrived, for a limit with this anchor and slack. An answer
// is proof. That it arrived within slack of the write is believed before an answer only where it was acknowledged, since
// TCP sends what was lost again, after 200 ms at the earliest; the acknowledgement itself may be later than that.
// internal/ledger's closeSQL has the same formula.
func (a Arrival) Until(anchor Anchor, slack time.Duration) time.Duration {
	by, last := a.By, a.Written
	if anchor == AnchorFinish {
		by, last = a.EndBy, a.Closed
	}
	if a.Acked == nil {
		if by != nil {
			return *by
		}
		last = min(a.Closed, last+ResendMost)
	}
	until := last + slack
	if a.Acked != nil {
		until = max(until, *a.Acked)
	}
	if by != nil {
		until = min(until, *by)
	}
	return until
}

// Sending is what a worker measured of an attempt on its monotonic clock, from m0, the reading
// before it asked for the start. Nil: it did not happen or was not seen.
type Sending struct {
	Sent     *time.Duration // the request's last write returned
	Acked    *time.Duration // the API's machine had all of it
	Answered *time.Duration // the answer began
	Ended    time.Duration  // the handler ended, its connection reset if there was no answer
	Own      bool           // by a handler of one's own, which may have sent by other means too
	GaveUp   bool           // which met an error: what it sent may still be on its way
}

// Arrival bounds the arrival of an attempt that ended on a live worker. Each offset is counted
// from m0, which was read before started_at, so the bound is safe however late anything commits.
func (s Sending) Arrival() Arrival {
	if s.Own {
		return s.ownArrival()
	}
	if s.Answered != nil {
		return Arrival{By: s.Answered, Written: *s.Sent, EndBy: s.Answered, Closed: *s.Sent, Acked: s.Acked}
	}
	return Arrival{Written: *s.Sent, Closed: s.Ended, Acked: s.Acked}
}

// ownArrival takes a limit that is anchored at the start as the promise to send through the call's client:
// where that sent, nothing else did. Of one that is anchored at the finish the end is all that is known.
func (s Sending) ownArrival() Arrival {
	a := Arrival{Written: s.Ended, Closed: s.Ended}
	if !s.GaveUp && (s.Sent == nil || s.Answered != nil) { // it had its answers
		a.By, a.EndBy = &s.Ended, &s.Ended
	}
	if s.Sent != nil {
		a.By, a.Written, a.Acked = s.Answered, *s.Sent, s.Acked
	}
	return a
}

// LostArrival bounds the arrival of an attempt whose worker was lost: the write gate let nothing
// through after sendWithin, and nothing at all after the deadline (both from the start). acked is nil where it was not
// seen that the request was acknowledged.
func LostArrival(sendWithin, deadline time.Duration, acked *time.Duration) Arrival {
	return Arrival{Written: min(sendWithin, deadline), Closed: deadline, Acked: acked}
}

// Use is what is known of a limit at a moment.
type Use struct {
	Rate     Rate
	Occupied int64 // units that cannot be given out now; of a token bucket, see Charges
	// Freed is the earliest moment that any occupied unit's until can be; zero: none is occupied
	// or all are unstarted, so that none comes free within a window.
	Freed   time.Time
	Charges []Charge // of a token bucket
	Missing *Missing // nil: all that was given out is known
}

// Missing says that units may have been given out which nobody knows of, as after a failover that lost the last commits.
// Whoever gave them out kept to the rate: with what was charged by KnownAt they are no more than that.
type Missing struct {
	Until   time.Time // they had arrived by then
	KnownAt time.Time // zero: nothing bounds how many they are
	KnownBy time.Time // buckets of what was charged by KnownAt end no later, all others do
	Known   int64     // units that were charged by then, and counted (see Rate.KnownSince)
	Former  int64     // of those occupied, what was open then: its units may have been given out again
}

// MissingAt is what may be missing at now of what had arrived by until, if that may still count; else nil. knownAt is nil
// where nothing bounds it.
func MissingAt(r Rate, until, knownAt *time.Time, now time.Time, gained time.Duration) *Missing {
	if until == nil || !r.Since(now, gained).Before(*until) {
		return nil
	}
	m := &Missing{Until: *until}
	if knownAt != nil {
		m.KnownAt, m.KnownBy = *knownAt, knownAt.Add(r.Bucket())
	}
	return m
}

// Room is how many units may be given out now; gained is what Postgres's clock gained of late (see Clock).
func (u Use) Room(now time.Time, gained time.Duration) int64 {
	if u.Rate.Algorithm == TokenBucket {
		return max(0, int64(math.Floor(u.level(now, gained))))
	}
	room := u.Rate.Units - u.Occupied
	if u.Missing != nil {
		room = min(room, u.Missing.Known-(u.Occupied-u.Missing.Former))
	}
	return max(0, room)
}

// NextLook is the earliest moment at which a unit can come free, unless an attempt turns out not
// to have been sent; gained is how much the window is widened by (see Clock).
func (u Use) NextLook(now time.Time, gained time.Duration) time.Time {
	if u.Missing == nil {
		return u.nextKnown(now, gained)
	}
	passed := u.Rate.Passed(u.Missing.Until, gained)
	if u.Rate.Window == 0 { // of which nothing is known
		return passed
	}
	return earlier(passed, u.nextKnown(now, gained))
}

func (u Use) nextKnown(now time.Time, gained time.Duration) time.Time {
	if u.Rate.Algorithm == TokenBucket {
		return u.refills(now, gained)
	}
	if c, ok := u.Rate.calendar(); ok {
		return c.End(now.Add(-c.apart() - gained)).Add(c.apart() + gained)
	}
	if u.Freed.IsZero() {
		return u.Rate.Passed(now, gained)
	}
	return u.Rate.Passed(u.Freed, gained)
}
