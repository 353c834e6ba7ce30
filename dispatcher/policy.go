package dispatcher

import (
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
)

// The parts of a [Config], under names that other modules can use.
type (
	// Policy is the limits, queues and budgets to apply.
	Policy = policy.Policy
	// Limit bounds how many calls of its queues reach the API.
	Limit = policy.Limit
	// Queue says which limits its calls use, and how they are retried.
	Queue = policy.Queue
	// Budget is a token bucket in Redis that handlers draw on while they run.
	Budget = policy.Budget
	// Retention says how long ended calls are kept.
	Retention = maintenance.Retention
	// Rate is how many units a limit or budget allows. Make one with [ParseRate] or [ParseRateOf], or write
	// Rate{Units: 50} for 50 at once.
	Rate = limit.Rate
	// Algorithm says which arrivals a rate allows.
	Algorithm = limit.Algorithm
	// Anchor says from which step on an open attempt's request can be bounded.
	Anchor = limit.Anchor
)

// The algorithms and anchors.
const (
	SlidingWindow = limit.SlidingWindow
	FixedWindow   = limit.FixedWindow
	TokenBucket   = limit.TokenBucket
	LeakyBucket   = limit.LeakyBucket

	AnchorStart  = limit.AnchorStart
	AnchorFinish = limit.AnchorFinish
)

// ParseRate reads a sliding window's rate as people write it, such as 100/1h, 5/s or "100 per 1h".
func ParseRate(text string) (Rate, error) { return limit.ParseRate(text) }

// ParseRateOf reads the rate of any algorithm. burst is a token bucket's; timezone, an IANA name, a fixed window's.
func ParseRateOf(text string, algorithm Algorithm, burst int64, timezone string) (Rate, error) {
	return limit.Parse(text, algorithm, burst, timezone)
}
