package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Closing ends an attempt.
type Closing struct {
	CallID    int64
	Attempt   int32
	Token     int64 // that started it; 0: none has
	Unstarted bool  // close it also if nobody has started it
	Unlimited bool  // it is charged to no limit: where it has one after all, it stays open

	Outcome  callqueue.Outcome
	Error    string          // why it failed; goes to the call's error_message too
	Result   json.RawMessage // nil: none
	Requests *int16          // requests that the write gate let through; nil: not seen
	Settled  *int64          // the cost that the handler reported, which limits that count cost charge; nil: the claimed cost
	// Arrival bounds when the request reached the API, as offsets from the start, or from the claim if no start is recorded.
	// Nil: it was provably never sent, so nothing is charged.
	Arrival *limit.Arrival

	// What becomes of the call, unless it has moved on.
	Status callqueue.Status
	Failed bool           // counts in failed_count
	Delay  *time.Duration // until it may be claimed again; nil: run_at stays as it is

	Frees bool // for the caller, who wakes dispatchers that may wait for its end
}

// Close ends attempts: one statement removes each open row, writes its ledger row, charges its limits and moves its call on.
// It returns the ids of those it closed; the others were closed before, or have another token. After an error it is unknown
// which are closed; closing again is safe. It errs if the ledger has attempts of a former call with the same id.
func Close(ctx context.Context, db DB, closings []Closing) ([]int64, error) {
	sql, args := closeStatement(closings, "100ms")
	closed, err := queryIDs(ctx, db, sql, args)
	return closed, Wrap("close attempts", err)
}

// CloseFree is Close for attempts whose rows nobody else has locked. It waits for none; busy is the ids of the calls that it
// skipped. It sets attempts of former calls aside.
func CloseFree(ctx context.Context, db *pgxpool.Pool, closings []Closing) (closed, busy []int64, err error) {
	id := func(c Closing) int64 { return c.CallID }
	busy, err = onFree(ctx, db, true, closings, id, func(tx pgx.Tx, free []Closing) (err error) {
		closed, err = setAsideAndClose(ctx, tx, free, "100ms")
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return closed, busy, nil
}

// closeStatement is what closes, and the closings by column, as asked unnests them. It waits so long for each lock; "0": for ever.
func closeStatement(closings []Closing, wait string) (string, pgx.StrictNamedArgs) {
	sql, unlimited := closeSQL, !slices.ContainsFunc(closings, func(c Closing) bool { return !c.Unlimited })
	if unlimited {
		sql = closeUnlimitedSQL
	}
	arrivals := column(closings, func(c Closing) limit.Arrival { return *cmp.Or(c.Arrival, new(limit.Arrival)) })
	return sql, pgx.StrictNamedArgs{
		"wait":      wait,
		"unlimited": unlimited,
		"ids":       column(closings, func(c Closing) int64 { return c.CallID }),
		"attempts":  column(closings, func(c Closing) int32 { return c.Attempt }),
		"tokens":    column(closings, func(c Closing) *int64 { return nonZero(c.Token) }),
		"unstarted": sparse(closings, func(c Closing) *bool { return nonZero(c.Unstarted) }),
		"outcomes":  column(closings, func(c Closing) string { return string(c.Outcome) }),
		"errors":    sparse(closings, func(c Closing) *string { return nonZero(c.Error) }),
		"results":   sparse(closings, func(c Closing) *string { return nonZero(string(c.Result)) }),
		"requests":  sparse(closings, func(c Closing) *int16 { return c.Requests }),
		"settled":   sparse(closings, func(c Closing) *int64 { return c.Settled }),
		"charged":   column(closings, func(c Closing) bool { return c.Arrival != nil }),
		"by":        sparse(arrivals, func(a limit.Arrival) *time.Duration { return up(a.By) }),
		"written":   column(arrivals, func(a limit.Arrival) *time.Duration { return up(&a.Written) }),
		"end_by":    sparse(arrivals, func(a limit.Arrival) *time.Duration { return up(a.EndBy) }),
		"closed":    column(arrivals, func(a limit.Arrival) *time.Duration { return up(&a.Closed) }),
		"acked":     sparse(arrivals, func(a limit.Arrival) *time.Duration { return up(a.Acked) }),
		"statuses":  column(closings, func(c Closing) string { return string(c.Status) }),
		"failed":    sparse(closings, func(c Closing) *bool { return nonZero(c.Failed) }),
		"delay":     sparse(closings, func(c Closing) *time.Duration { return up(c.Delay) }),
	}
}

// setAsideAndClose makes way in the ledger for attempts whose call's id was used before: call_queue was truncated, or the call
// was deleted and inserted again. Then it closes.
func setAsideAndClose(ctx context.Context, tx pgx.Tx, closings []Closing, wait string) ([]int64, error) {
	if _, err := queryIDs(ctx, tx, setAsideSQL, column(closings, func(c Closing) int64 { return c.CallID })); err != nil {
		return nil, fmt.Errorf("set attempts of former calls aside: %w", err)
	}
	sql, args := closeStatement(closings, wait)
	closed, err := queryIDs(ctx, tx, sql, args)
	return closed, Wrap("close attempts", err)
}

// setAsideSQL numbers the attempts of former calls from 0 down. They stay charged, and no longer belong to the call.
const setAsideSQL = `
WITH former AS (
    SELECT a.call_id, a.attempt, least((SELECT min(attempt) FROM call_attempts WHERE call_id = a.call_id), 1)
        - row_number() OVER (PARTITION BY a.call_id ORDER BY a.attempt DESC) AS becomes
    FROM call_open o JOIN call_attempts a ON a.call_id = ANY (ARRAY[o.call_id]) AND a.attempt >= o.attempt
    WHERE o.call_id = ANY($1::bigint[])
)
UPDATE call_attempts a SET attempt = f.becomes FROM former f WHERE a.call_id = ANY (ARRAY[f.call_id]) AND a.attempt = f.attempt
RETURNING a.call_id`

// Policy is how a queue retries.
type Policy struct {
	MaxAttempts int           // bounds failed_count
	BackoffMin  time.Duration // delay after the first failure; doubles with each
	BackoffMax  time.Duration // the longest delay
}

// How a call q is retried, in SQL, by its queue's row r. Either may be missing: a queue that has left the configuration has
// the defaults.
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
	delay, shift := p.BackoffMax, min(max(n-1, 0), 40)
	if p.BackoffMin < p.BackoffMax>>shift {
		delay = p.BackoffMin << shift
	}
	half := delay / 2
	return half + time.Duration(random(int64(half)+1))
}
