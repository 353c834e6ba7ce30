package ledger

import (
	"time"

	"github.com/callq/callq/callqueue"
)

// Policy is how a queue retries.
type Policy struct {
	MaxAttempts int           // bounds failed_count
	BackoffMin  time.Duration // delay after the first failure; doubles with each
	BackoffMax  time.Duration // the longest delay
}

// How a call q is retried, in SQL, by its queue's row r. Either may be missing: a queue that has left the configuration keeps the
// configuration's defaults for what is under way.
const (
	PolicySQL = `
    coalesce(q.max_attempts, r.max_attempts, 3) AS max_attempts,
    coalesce(r.backoff_min, '10 seconds') AS backoff_min,
    coalesce(r.backoff_max, '15 minutes') AS backoff_max`
	TimeoutSQL = `coalesce(r.timeout, interval '30 seconds')`
	OnLostSQL  = `coalesce(r.on_lost, 'retry')`
)

// Next is a call's status after a failure that may be retried, and for StatusError the delay. failedCount includes that
// failure. random draws from [0, n).
func (p Policy) Next(failedCount int, random func(n int64) int64) (callqueue.Status, time.Duration) {
	if failedCount >= p.MaxAttempts {
		return callqueue.StatusFailed, 0
	}
	return callqueue.StatusError, p.Backoff(failedCount, random)
}

// Backoff is the delay after the n-th failure. It grows from BackoffMin to BackoffMax, with equal jitter (half fixed, half
// random), so that calls that failed together do not return together. Source: M. Brooker, "Exponential Backoff And Jitter",
// AWS Architecture Blog, 2015.
func (p Policy) Backoff(n int, random func(n int64) int64) time.Duration {
	delay := p.BackoffMax
	if shift := n - 1; shift < 40 && p.BackoffMin < p.BackoffMax>>max(shift, 0) {
		delay = p.BackoffMin << max(shift, 0)
	}
	half := delay / 2
	if half <= 0 {
		return delay
	}
	return half + time.Duration(random(int64(half)+1))
}
