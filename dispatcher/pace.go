package dispatcher

import (
	"time"

	"github.com/callq/callq/internal/claim"
)

// pace decides when to poll between ticks. It keeps polls apart where they are many: a poll that claims costs as much as several
// calls, and all that arrives before the next shares it. A few may follow one another at once. Source: the generic cell rate
// algorithm, ITU-T I.371.
type pace struct {
	next     time.Time     // when the next poll would be, if all were evenly apart
	due      time.Time     // when the last step asked for a poll
	toldAt   time.Time     // of something new
	earlyFor time.Duration // earlyFor, but in tests of what needs no early polls
}

const (
	pollEvery = 80 * time.Millisecond
	pollBurst = 4

	// An insert within 80 ms of one that woke the dispatchers notifies none, and may be committed later. So they poll again soon after
	// a wake, and then less and less often.
	earlyFor = 2 * time.Second
)

// polls is what a step left behind.
type polls struct {
	in      time.Duration // when to poll again
	standBy time.Duration // for so long another dispatcher claims
	hurried bool          // more can be claimed once something comes free
	failed  bool
}

// in is how long the next poll has to wait; 0 or less: it need not.
func (p *pace) in(now time.Time) time.Duration { return p.next.Add(-pollBurst * pollEvery).Sub(now) }

// polled notes a poll. One that did not wait for its turn delays the next by no more than others.
func (p *pace) polled(now time.Time) {
	ahead := min(max(p.next.Sub(now), 0), pollBurst*pollEvery)
	p.next = now.Add(ahead + pollEvery)
}

// told notes that there may be something new, and returns when to poll for it; 0 or less: now.
func (p *pace) told(now time.Time, s polls) time.Duration {
	p.toldAt = now
	wait := max(p.in(now), s.standBy)
	if wait <= 0 || s.hurried {
		return 0
	}
	wait = min(wait, p.due.Sub(now))
	p.due = now.Add(wait)
	return wait
}

// stepped notes a step, and returns when the next one is due. Polls without a notification come as long after the last notification as
// it is ago, and delay none that somebody does ask for.
func (p *pace) stepped(now time.Time, s polls) time.Duration {
	wait := s.in
	if wait <= claim.MinGap && !s.hurried {
		wait = p.in(now)
	}
	wait = max(wait, claim.MinGap)
	p.due = now.Add(wait)
	quiet := now.Sub(p.toldAt)
	if s.failed || s.standBy > 0 || quiet > p.earlyFor { // what has arrived waits for the retry, or the other dispatcher
		return wait
	}
	return min(wait, max(quiet, p.next.Sub(now)))
}
