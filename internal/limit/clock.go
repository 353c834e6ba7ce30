package limit

import (
	"slices"
	"time"
)

// Clock notices when Postgres's clock was set. It belongs to one dispatcher and is not safe for concurrent use.
type Clock struct {
	pg             time.Time // the last reading of Postgres's clock
	sent, received time.Time // monotonic, before it was asked for and when it had arrived
}

// steady is for how long a difference between the clocks may be taken for their running apart.
const steady = 10 * time.Second

// Gained is how much Postgres's clock gained since the last reading that was seen, by one that was asked for at sent and
// had arrived at received (both monotonic here); 0: nothing that matters. At most received minus the last one's sent has
// passed, so more than that on Postgres's clock was gained; less than 0: it was set back, by no more than that. least is
// what is left to Margin: 0.1 % of the time passed; but after a long time without a look, that much may have been gained in
// one step.
func (c *Clock) Gained(pg, sent, received time.Time) (by, least time.Duration) {
	if c.pg.IsZero() {
		return 0, 0
	}
	most, fewest := received.Sub(c.sent), sent.Sub(c.received)
	least = min(most, steady) / 1000
	by = pg.Sub(c.pg) - most
	if by > least || pg.Sub(c.pg) < fewest-least {
		return by, least
	}
	return 0, least
}

// Saw has the next gain count from this reading on.
func (c *Clock) Saw(pg, sent, received time.Time) { c.pg, c.sent, c.received = pg, sent, received }

// Last is the last reading of Postgres's clock; zero: there was none.
func (c *Clock) Last() time.Time { return c.pg }

// Gain is what Postgres's clock gained at once: time that passed there and nowhere else, which would let units out early.
// A step back needs nothing.
type Gain struct {
	At time.Time // when it was seen, on Postgres's clock
	By time.Duration
}

// Gains are those that are known, in the order in which they were seen.
type Gains []Gain

// Within is how much a window must be widened by at now: what was gained within it. How long ago a gain
// was is told by a clock that has gained more since.
func (g Gains) Within(now time.Time, window time.Duration) time.Duration {
	var sum, since time.Duration
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
