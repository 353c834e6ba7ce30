package limit

import (
	"slices"
	"time"
)

// Clock notices when Postgres's clock was set forward: time that passed there and not here would
// let units out early, so windows are widened by it while it lies within them. A step back
// needs nothing. It belongs to one dispatcher and is not safe for concurrent use.
type Clock struct {
	pg    time.Time // the last reading of Postgres's clock
	sent  time.Time // monotonic, before it was asked for
	gains []gain
}

type gain struct {
	at time.Time // Postgres's clock
	by time.Duration
}

// steady is for how long a difference between the clocks may be taken for their running apart.
const steady = 10 * time.Second

// Look records a reading of Postgres's clock that was asked for at sent and had arrived at
// received (both monotonic here). Between this reading and the last at most received minus the
// last one's sent has passed, so more than that on Postgres's clock was gained. Gains within
// 0.1 % of the time passed are not kept, for Margin covers them; but after a long time without a
// look, that much may have been gained in one step.
func (c *Clock) Look(pg, sent, received time.Time) {
	if !c.pg.IsZero() {
		passed := received.Sub(c.sent)
		if by := pg.Sub(c.pg) - passed; by > min(passed, steady)/1000 {
			c.gains = append(c.gains, gain{at: pg, by: by})
		}
	}
	c.pg, c.sent = pg, sent
}

// Gained is how much a window must be widened by at now: what was gained within it. How long ago a gain
// was is told by a clock that has gained more since.
func (c *Clock) Gained(now time.Time, window time.Duration) time.Duration {
	var sum, since time.Duration
	for _, g := range slices.Backward(c.gains) {
		since += g.by
		if g.at.Add(window + since).After(now) {
			sum += g.by
		}
	}
	return sum
}
