package limit

import (
	"slices"
	"time"
)

// Anchor is from which recorded step on an open attempt's request can be bounded.
type Anchor string

const (
	AnchorStart  Anchor = "start"  // it is written at once after the start, or never: the http task's default
	AnchorFinish Anchor = "finish" // it may be written until the handler has ended: other tasks' default, and concurrency limits'
)

// Margin is what a window is widened by because clocks may run at other speeds: W/1000.
func Margin(window time.Duration) time.Duration { return window / 1000 }

// ResendMost is for how long after the write TCP sends again what is not acknowledged. Workers tell the kernel so
// (TCP_USER_TIMEOUT). After that the connection is gone.
const ResendMost = 5 * time.Second

// Unknown is the until of a charge whose request may still arrive, for an unknown time. It only becomes earlier.
func Unknown() time.Time { return time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC) }

// UnknownSQL is Unknown, for statements.
const UnknownSQL = `timestamptz '2200-01-01 00:00:00Z'`

// Proof is what a limit takes as proof that a request without an answer has arrived. An acknowledgement is none: a kernel or a
// proxy acknowledges what the API's program has not read.
type Proof string

const (
	ProofLater  Proof = "later"  // a request that was written after it, to the same host, was answered
	ProofAnswer Proof = "answer" // only its own answer; without one, ArriveWithin bounds it
	ProofSlack  Proof = "slack"  // the acknowledgement and slack: somebody vouches that the API reads at once

	NoProof Proof = ""        // of an arrival: nothing yet
	Assumed Proof = "assumed" // of an arrival: none, and too much time has passed
)

// Weaker is the proof that promises less.
func (p Proof) Weaker(other Proof) Proof {
	order := []Proof{ProofAnswer, ProofLater, ProofSlack, Assumed, NoProof}
	if slices.Index(order, p) > slices.Index(order, other) {
		return p
	}
	return other
}

// Unanswered is how a limit bounds the arrival of requests without an answer.
type Unanswered struct {
	Proof        Proof
	Slack        time.Duration // how long a request may travel; for ProofAnswer, ArriveWithin
	ArriveWithin time.Duration // after so long without a proof, requests count as arrived: one at a time for ProofLater
}

// Arrival bounds when an attempt's request reached the API, as offsets from the start. Until makes of it, and of a
// limit's anchor and rule, until when the attempt is charged.
type Arrival struct {
	By      *time.Duration // proof: what was written through the gate had arrived by then, for it was answered
	Written time.Duration  // the last moment at which it was, or could have been, written
	EndBy   *time.Duration // proof: all that may have been sent had arrived by then
	Closed  time.Duration  // the moment after which nothing more could leave: a living worker has reset the connection
	Acked   *time.Duration // the API's machine was seen to have all that was written, so TCP sends nothing of it again
	Later   *time.Duration // a request that was written after Acked, to the same host, was answered
	SentBy  *time.Duration // without an answer: by then TCP had brought it to its host, or never will; nil: the host is unknown
	Lost    bool           // its worker was lost
}

// Until is the latest moment at which the request can have arrived, for a limit of a window with this anchor and rule, and what
// that rests on; NoProof: it is not known yet. An answer is proof. APIs read first in, first out, so the answer to a request that was
// written after this one had been acknowledged is, too; slack is for what overtakes on the way, and within the API's program.
// By ProofSlack, only a request that was acknowledged is believed to have arrived within slack of the write: TCP
// sends a lost packet again, for ResendMost. The acknowledgement itself may be later than that.
func (a Arrival) Until(anchor Anchor, u Unanswered) (time.Duration, Proof) {
	answer, last := a.By, a.Written
	if anchor != AnchorStart {
		answer, last = a.EndBy, a.Closed
	}
	bound, proof := a.bound(anchor, last, u)
	if answer != nil && (proof == NoProof || *answer <= bound || a.seen(u.Proof) == nil) {
		return *answer, ProofAnswer
	}
	return bound, proof
}

// seen is what a limit takes as proof, besides the answer; nil: it was not seen.
func (a Arrival) seen(p Proof) *time.Duration {
	switch p {
	case ProofLater:
		return a.Later
	case ProofAnswer:
		return nil
	}
	return a.Acked
}

// bound is Until without the answer. last is when the request can have been written last.
func (a Arrival) bound(anchor Anchor, last time.Duration, u Unanswered) (time.Duration, Proof) {
	seen := a.seen(u.Proof)
	switch {
	case seen != nil:
		return max(*seen, last+u.Slack), u.Proof
	case u.Proof == ProofLater && a.SentBy != nil:
		return 0, NoProof
	case u.Proof == ProofLater && a.Lost:
		return last + u.ArriveWithin, Assumed
	case u.Proof == ProofAnswer && !a.Lost && a.SentBy == nil, u.Proof == ProofLater: // a custom handler's end
		return last + u.Slack, ProofSlack
	case anchor == AnchorStart:
		last = min(a.Closed, a.Written+ResendMost)
	}
	if u.Proof == ProofAnswer {
		return last + u.Slack, Assumed
	}
	return last + u.Slack, ProofSlack
}

// Ended bounds until when the API works on the request of an attempt that ended without an answer, for a concurrency limit: it
// must have seen the connection go.
func (a Arrival) Ended(u Unanswered) (time.Duration, Proof) {
	if u.Proof != ProofLater {
		return a.Closed + u.Slack, ProofSlack
	}
	return a.bound(AnchorFinish, a.Closed, u)
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
	Later    *time.Duration // a request that was written after that, to the same host, was answered
	Answered *time.Duration // the answer began
	Ended    time.Duration  // the handler ended; without an answer, its connection was reset
	Own      bool           // by a custom handler, which may have sent by other means too
	GaveUp   bool           // which ended with an error: what it sent may still be on its way
}

// Arrival bounds the arrival of an attempt that ended on a live worker. Its offsets count from a reading made
// before started_at, so the bound is safe however late anything commits. Under anchor start a custom handler sends through
// the call's client alone. Under anchor finish its end is all that is known.
func (s Sending) Arrival() Arrival {
	var sentBy *time.Duration
	switch {
	case s.Sent == nil || s.Answered != nil:
	case s.Acked != nil:
		sentBy = s.Acked
	default:
		sentBy = new(*s.Sent + ResendMost)
	}
	switch {
	case !s.Own && s.Answered != nil:
		return Arrival{By: s.Answered, Written: *s.Sent, EndBy: s.Answered, Closed: *s.Sent, Acked: s.Acked, Later: s.Later}
	case !s.Own:
		return Arrival{Written: *s.Sent, Closed: s.Ended, Acked: s.Acked, Later: s.Later, SentBy: sentBy}
	}
	a := Arrival{Written: s.Ended, Closed: s.Ended, SentBy: sentBy}
	if !s.GaveUp && (s.Sent == nil || s.Answered != nil) { // it had its answers
		a.By, a.EndBy = &s.Ended, &s.Ended
	}
	if s.Sent != nil {
		a.By, a.Written, a.Acked, a.Later = s.Answered, *s.Sent, s.Acked, s.Later
	}
	return a
}

// LostArrival bounds the arrival of an attempt whose worker was lost. The write gate let nothing through after sendWithin,
// and the handler wrote nothing after the deadline, both counted from the start. A frozen worker resets no connection, so TCP
// goes on. host: where it was sent to is known.
func LostArrival(sendWithin, deadline time.Duration, acked, later *time.Duration, host bool) Arrival {
	a := Arrival{Written: min(sendWithin, deadline), Closed: deadline + ResendMost, Acked: acked, Later: later, Lost: true}
	if host && later == nil {
		a.SentBy = new(a.Written + ResendMost)
	}
	return a
}
