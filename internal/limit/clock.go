package limit

import (
	"slices"
	"time"
)

// Clock notices when Postgres's clock is set. It belongs to one dispatcher and is not safe for concurrent use.
type Clock struct {
	pg             time.Time     // the reading of Postgres's clock from which gains count
	sent, received time.Time     // monotonic, before it was asked for and when it had arrived
	known          time.Duration // all that was known then to have been gained, ever
}

// Gained is how much Postgres's clock gained since the reading From, beyond what has become known since, or 0 if that does not
// matter; all is what is known, ever. sent and received are monotonic times here, from before pg was asked for and after it
// arrived. At most received minus the former sent has passed, so whatever more passed on Postgres's clock was gained. Below 0 it was
// set back, by no more than that. least is left to Margin: 0.1 % of the time passed, but 10 ms at most, for so much may be one step.
func (c *Clock) Gained(pg, sent, received time.Time, all time.Duration) (by, known, least time.Duration) {
	if c.pg.IsZero() {
		return 0, 0, 0
	}
	known = max(0, all-c.known) // old ones are tidied
	passed, most, fewest := pg.Sub(c.pg)-known, received.Sub(c.sent), sent.Sub(c.received)
	least = min(most/1000, 10*time.Millisecond)
	if by = passed - most; by <= least && passed >= fewest-least {
		by = 0
	}
	return by, known, least
}

// Saw makes gains count from this reading on, where the former is a second old, or took twice as long, or the clock was set back
// since. known is the sum of what is known by then. A trip hides as much as it takes: counted from each reading, a clock
// that runs fast would gain that much each time.
func (c *Clock) Saw(pg, sent, received time.Time, gained, known time.Duration) {
	if gained < 0 || received.Sub(c.received) >= time.Second || 2*received.Sub(sent) < c.received.Sub(c.sent) {
		c.pg, c.sent, c.received, c.known = pg, sent, received, known
	}
}

// From is the reading of Postgres's clock from which gains count, or zero if there was none.
func (c *Clock) From() time.Time { return c.pg }

// Gain is what Postgres's clock gained at once: time that passed nowhere else, and would let units out early.
type Gain struct {
	At time.Time // when it was seen, on Postgres's clock
	By time.Duration
}

// Gains are the known gains, in the order in which they were seen.
type Gains []Gain

// Within is how much a window must be widened by at now: what was gained within it. How long ago a gain was is told by a
// clock that has gained more since.
func (g Gains) Within(now time.Time, window time.Duration) (sum time.Duration) {
	var since time.Duration
	for _, gain := range slices.Backward(g) {
		since += gain.By
		if gain.At.Add(window + since).After(now) {
			sum += gain.By
		}
	}
	return sum
}

// All is their sum.
func (g Gains) All() (sum time.Duration) {
	for _, gain := range g {
		sum += gain.By
	}
	return sum
}
