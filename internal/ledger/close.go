package ledger

import (
	"context"
	"encoding/json"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Closing ends an attempt.
type Closing struct {
	CallID  int64
	Attempt int32
	// Token is the one that started it. Unstarted closes it also if nobody has started it; with Token 0, only then.
	Token     int64
	Unstarted bool

	Outcome  callqueue.Outcome
	Error    string          // why it failed; goes to the call's error_message too
	Result   json.RawMessage // nil: none
	Requests *int16          // requests that the write gate let through; nil: not seen
	// Settled is the cost that the handler reported. Limits that count cost charge it instead of the claimed cost, if they
	// charge anything; nil: the claimed cost.
	Settled *int64
	// Arrival bounds when the request reached the API, as offsets from the start, or from the claim if no start is recorded.
	// Nil: it was provably never sent, so nothing is charged.
	Arrival *limit.Arrival

	// What becomes of the call, unless it has moved on.
	Status callqueue.Status
	Failed bool           // counts in failed_count
	Delay  *time.Duration // until it may be claimed again; nil: run_at stays as it is

	// For the caller, who wakes the dispatchers: Close does not.
	Frees bool // they may wait for its end
	Saves bool // it is charged less than it claimed
}

// Close ends attempts. One statement removes each open row, writes its ledger row, charges its limits and moves its call on.
// Close returns the ids of those it closed. The others were closed before, or have another token: that is an answer, not an
// error. After an error it is unknown which are closed; closing again is safe. It errs if the ledger has attempts of a former
// call with the same id: CloseFree does not.
func Close(ctx context.Context, db DB, closings []Closing) ([]int64, error) {
	return closeWaiting(ctx, db, "100ms", closings)
}

// closeWaiting is Close that waits so long for each lock; "0" is for ever.
func closeWaiting(ctx context.Context, db DB, wait string, closings []Closing) ([]int64, error) {
	closed, err := queryIDs(ctx, db, closeSQL, closeArgs(closings, wait))
	return closed, wrap("close attempts", err)
}

// CloseFree is Close for attempts whose rows nobody else has locked. It waits for none; busy is the ids of the calls
// that it skipped. It sets attempts of former calls aside.
func CloseFree(ctx context.Context, db *pgxpool.Pool, closings []Closing) (closed, busy []int64, err error) {
	id := func(c Closing) int64 { return c.CallID }
	busy, err = onFree(ctx, db, true, closings, id, func(tx pgx.Tx, free []Closing) (err error) {
		if err := setAside(ctx, tx, free); err != nil {
			return err
		}
		closed, err = Close(ctx, tx, free)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return closed, busy, nil
}

// closeArgs is the closings by column, as asked unnests them.
func closeArgs(closings []Closing, wait string) pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"wait":      wait,
		"ids":       column(closings, func(c Closing) int64 { return c.CallID }),
		"attempts":  column(closings, func(c Closing) int32 { return c.Attempt }),
		"tokens":    column(closings, func(c Closing) *int64 { return nonZero(c.Token) }),
		"unstarted": column(closings, func(c Closing) bool { return c.Unstarted }),
		"outcomes":  column(closings, func(c Closing) string { return string(c.Outcome) }),
		"errors":    column(closings, func(c Closing) *string { return nonZero(c.Error) }),
		"results":   column(closings, func(c Closing) *string { return nonZero(string(c.Result)) }),
		"requests":  column(closings, func(c Closing) *int16 { return c.Requests }),
		"settled":   column(closings, func(c Closing) *int64 { return c.Settled }),
		"charged":   column(closings, func(c Closing) bool { return c.Arrival != nil }),
		"by":        column(closings, func(c Closing) *int64 { return micros(c.arrival().By) }),
		"written":   column(closings, func(c Closing) int64 { return ceilMicros(c.arrival().Written) }),
		"end_by":    column(closings, func(c Closing) *int64 { return micros(c.arrival().EndBy) }),
		"closed":    column(closings, func(c Closing) int64 { return ceilMicros(c.arrival().Closed) }),
		"acked":     column(closings, func(c Closing) *int64 { return micros(c.arrival().Acked) }),
		"statuses":  column(closings, func(c Closing) string { return string(c.Status) }),
		"failed":    column(closings, func(c Closing) bool { return c.Failed }),
		"delay":     column(closings, func(c Closing) *int64 { return micros(c.Delay) }),
	}
}

func (c Closing) arrival() limit.Arrival {
	if c.Arrival == nil {
		return limit.Arrival{}
	}
	return *c.Arrival
}

// setAside makes way in the ledger for attempts whose call's id was used before: someone truncated call_queue and restarted its
// ids, or deleted a call and inserted it again.
func setAside(ctx context.Context, tx pgx.Tx, closings []Closing) error {
	_, err := queryIDs(ctx, tx, setAsideSQL, column(closings, func(c Closing) int64 { return c.CallID }))
	return wrap("set attempts of former calls aside", err)
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
