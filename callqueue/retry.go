package callqueue

import (
	"context"
	"slices"
)

// Retrial is what [Client.Retry] did to a call.
type Retrial struct {
	ID int64 `json:"id"`
	// Retried says that this Retry made the call wait again. If false, its Status or an Open attempt prevented that.
	Retried bool   `json:"retried"`
	Status  Status `json:"status"`
	Open    bool   `json:"open"`
}

// Retry makes calls that failed or were cancelled wait again, as if they were new. Earlier failures no longer count
// towards max_attempts, and an ExpiresAt that has passed is removed. Earlier attempts stay in the ledger and stay
// charged; the next one uses the limits again. The unique key went when the call ended, and does not come back.
//
// Retry leaves other calls alone: those that have not ended, those that are done, and those that were cancelled and
// still run.
//
// Retry returns a Retrial for each call that exists, in the order given. If some do not exist, it retries the others
// and returns a [*NotFoundError]. After any other error it may have retried more than it returns.
//
// The role needs SELECT and UPDATE on call_queue, and SELECT on call_open.
func (c *Client) Retry(ctx context.Context, ids ...int64) ([]Retrial, error) {
	return c.retry(ctx, ids, StatusFailed, StatusCancelled)
}

// RetryDone is like [Client.Retry], but also makes calls once more that are done.
func (c *Client) RetryDone(ctx context.Context, ids ...int64) ([]Retrial, error) {
	return c.retry(ctx, ids, StatusFailed, StatusCancelled, StatusDone)
}

func (c *Client) retry(ctx context.Context, ids []int64, of ...Status) ([]Retrial, error) {
	return inChunks("retry calls", ids, func(some []int64, known map[int64]Retrial) error {
		found, err := changeLocked(ctx, c, retrySQL, []any{some, of}, func(found []Retrial) string {
			if slices.ContainsFunc(found, func(r Retrial) bool { return r.Retried }) && c.waker.now() {
				return wakeSQL
			}
			return ""
		})
		for _, r := range found {
			known[r.ID] = r
		}
		return err
	})
}

// The calls $1 are locked, so no claim opens an attempt of them. An attempt that is being closed counts as open: its
// closing waits for the call's lock.
const retrySQL = `
WITH call AS MATERIALIZED (
    SELECT q.id, q.status, EXISTS (SELECT FROM call_open o WHERE o.call_id = q.id) AS open
    FROM call_queue q
    WHERE q.id = ANY($1::bigint[])
), retried AS (
    UPDATE call_queue q
    SET status = 'new', failed_count = 0, retried_after = q.attempts, run_at = clock_timestamp(), error_message = NULL,
        finished_at = NULL, failed_at = NULL,
        expires_at = CASE WHEN q.expires_at > clock_timestamp() THEN q.expires_at END
    FROM call c
    WHERE q.id = c.id AND NOT c.open AND c.status = ANY($2::text[])
    RETURNING q.id
)
SELECT c.id, r.id IS NOT NULL AS retried, CASE WHEN r.id IS NULL THEN c.status ELSE 'new' END AS status, c.open
FROM call c
LEFT JOIN retried r ON r.id = c.id`
