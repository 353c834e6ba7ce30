package callqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// NotFoundError names the calls that do not exist. errors.Is finds [ErrNotFound] in it.
type NotFoundError struct{ IDs []int64 }

func (e *NotFoundError) Error() string { return fmt.Sprintf("%v: %v", ErrNotFound, e.IDs) }

// Unwrap returns [ErrNotFound].
func (e *NotFoundError) Unwrap() error { return ErrNotFound }

// ChangeResult is what [Client.Cancel], [Client.Retry] or [Client.Delete] did to a call. Each returns one for each call that
// exists, in the order given. If some do not exist, it changes the others and returns a [*NotFoundError]. After any other error
// it may have changed more than it returns; you may call it again.
type ChangeResult struct {
	ID int64 `json:"id"`
	// Changed reports that this Cancel ended the call, this Retry made it wait again, or this Delete removed it. If false, its
	// Status or an Open attempt prevented that.
	Changed bool   `json:"changed"`
	Status  Status `json:"status"` // now, or the last that it had
	// Open reports that an attempt of the call has not ended. After Cancel, one that has started.
	Open bool `json:"open"`
	// DuplicateOf is why a Retry left the call alone: this unfinished call of its queue has its unique key by now. Nil: none has.
	DuplicateOf *int64 `json:"duplicate_of,omitempty"`
}

// Cancel ends calls that have not ended. A call that waits is not made. A call that was handed over but has not started will not
// start, and gives back its units. A call that has started may have reached the API, so its attempt stays counted. The context of
// its handler ends within about two seconds, and the call stays cancelled however the handler ends.
//
// Beyond SELECT and UPDATE on call_queue, the role needs them and DELETE on call_open, SELECT on
// call_limits, and INSERT on call_attempts and call_inbox.
func (c *Client) Cancel(ctx context.Context, ids ...int64) ([]ChangeResult, error) {
	return change{what: "cancel calls", sql: cancelSQL, open: true}.run(ctx, c, ids)
}

// The calls $1 are locked, and so are the open attempts of the calls $2. An attempt that has not started ends here,
// charged to nothing. One that has started is its worker's to end. A call whose open attempt is not locked was claimed
// meanwhile: it is left to the next turn.
const cancelSQL = `
WITH call AS MATERIALIZED (
    SELECT q.id, q.status, q.status IN ('done', 'failed', 'cancelled') AS ended,
        o.call_id IS NOT NULL AND q.id <> ALL($2::bigint[]) AS claimed,
        o.started_at IS NOT NULL AS open, NULL::bigint AS duplicate_of
    FROM public.call_queue q
    LEFT JOIN callq.call_open o ON o.call_id = q.id
    WHERE q.id = ANY($1::bigint[])
), changed AS (
    UPDATE public.call_queue q
    SET status = 'cancelled', finished_at = clock_timestamp(), unique_key = NULL, ended_key = q.unique_key
    FROM call c
    WHERE q.id = c.id AND NOT c.ended AND NOT c.claimed
    RETURNING q.id, q.status
), refunded AS (
    DELETE FROM callq.call_open o
    USING changed c
    WHERE o.call_id = c.id AND o.started_at IS NULL
    RETURNING o.call_id, o.attempt, o.cost, o.claimed_at, o.queue, o.task, o.key, o.limits, o.keys
), ledger AS (
    INSERT INTO public.call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
    SELECT call_id, attempt, cost, claimed_at, clock_timestamp(), 'cancelled', queue, task, key, '[]'
    FROM refunded
), freed AS (
    INSERT INTO callq.call_inbox (queue, at, key)
    SELECT queue, clock_timestamp(), key
    FROM (
        SELECT DISTINCT u.key, unnest((SELECT queues FROM callq.call_limits WHERE name = u.name AND per_key)) AS queue
        FROM refunded r
        CROSS JOIN LATERAL unnest(r.limits, r.keys) AS u (name, key)
    ) f
)
SELECT c.id, d.id IS NOT NULL AS changed, coalesce(d.status, c.status) AS status, c.open, c.duplicate_of
FROM call c
LEFT JOIN changed d ON d.id = c.id
WHERE c.ended OR NOT c.claimed`

// Retry makes calls that failed or were cancelled wait again, as if they were new. Earlier failures no longer count
// towards max_attempts, and an ExpiresAt that has passed is removed. Earlier attempts stay in the ledger and stay
// charged; the next one uses the limits again. A call takes its unique key back. Retry leaves other calls alone: those that have not
// ended, are done, or were cancelled and still run, and those whose unique key another call has by now.
//
// The role needs SELECT and UPDATE on call_queue, and SELECT on call_effective and call_open.
func (c *Client) Retry(ctx context.Context, ids ...int64) ([]ChangeResult, error) {
	return c.RetryWith(ctx, RetryOptions{}, ids...)
}

// RetryDone is like [Client.Retry], but also makes calls once more that are done.
func (c *Client) RetryDone(ctx context.Context, ids ...int64) ([]ChangeResult, error) {
	return c.RetryWith(ctx, RetryOptions{Done: true}, ids...)
}

// RetryOptions say how calls are made again.
type RetryOptions struct {
	Done bool // calls that are done too
	// NewKey gives each call another Idempotency-Key, as one that is inserted now has. It is for an API that answers a key as it
	// did the first time. A request that may have been carried out is then carried out twice.
	NewKey bool
}

// RetryWith is like [Client.Retry], with options.
func (c *Client) RetryWith(ctx context.Context, o RetryOptions, ids ...int64) ([]ChangeResult, error) {
	of := []Status{StatusFailed, StatusCancelled}
	if o.Done {
		of = append(of, StatusDone)
	}
	return change{what: "retry calls", sql: retrySQL, args: []any{of, o.NewKey}}.run(ctx, c, ids)
}

// The calls $1 are locked, so no claim opens an attempt of them. An attempt that is being closed counts as open: its
// closing waits for the call's lock.
// Of those that had the same unique key, the first takes it back.
const retrySQL = `
WITH ended AS MATERIALIZED (
    SELECT q.id, q.status, q.queue, q.ended_key, EXISTS (SELECT FROM callq.call_open o WHERE o.call_id = q.id) AS open
    FROM callq.call_effective q
    WHERE q.id = ANY($1::bigint[])
), call AS MATERIALIZED (
    SELECT id, status, open, fit, CASE WHEN fit AND ended_key IS NOT NULL THEN coalesce(
        (SELECT u.id FROM callq.call_effective u WHERE u.queue = e.queue AND u.unique_key = e.ended_key),
        nullif(min(id) FILTER (WHERE fit) OVER (PARTITION BY queue, ended_key), id)) END AS duplicate_of
    FROM (SELECT *, NOT open AND status = ANY($2::text[]) AS fit FROM ended) e
), changed AS (
    UPDATE public.call_queue q
    SET status = 'new', failed_count = 0, retried_after = q.attempts, run_at = clock_timestamp(), error_message = NULL,
        finished_at = NULL, failed_at = NULL, unique_key = q.ended_key, ended_key = NULL,
        expires_at = CASE WHEN q.expires_at > clock_timestamp() THEN q.expires_at END,
        created_at = CASE WHEN $3 THEN clock_timestamp() ELSE q.created_at END -- the Idempotency-Key is made of it
    FROM call c
    WHERE q.id = c.id AND c.fit AND c.duplicate_of IS NULL
    RETURNING q.id, q.status
)
SELECT c.id, d.id IS NOT NULL AS changed, coalesce(d.status, c.status) AS status, c.open, c.duplicate_of
FROM call c
LEFT JOIN changed d ON d.id = c.id`

// RunNow makes calls due that wait for later: for their RunAt, or for a retry. What holds up others that are due holds them up
// too. RunNow leaves other calls alone.
//
// The role needs SELECT and UPDATE on call_queue.
func (c *Client) RunNow(ctx context.Context, ids ...int64) ([]ChangeResult, error) {
	return change{what: "run calls now", sql: runNowSQL}.run(ctx, c, ids)
}

// The calls $1 are locked.
const runNowSQL = `
WITH call AS MATERIALIZED (
    SELECT q.id, q.status, q.run_at > clock_timestamp() AND q.status IN ('new', 'error') AS fit,
        EXISTS (SELECT FROM callq.call_open o WHERE o.call_id = q.id) AS open, NULL::bigint AS duplicate_of
    FROM public.call_queue q
    WHERE q.id = ANY($1::bigint[])
), changed AS (
    UPDATE public.call_queue q
    SET run_at = clock_timestamp()
    FROM call c
    WHERE q.id = c.id AND c.fit
    RETURNING q.id
)
SELECT c.id, d.id IS NOT NULL AS changed, c.status, c.open, c.duplicate_of
FROM call c
LEFT JOIN changed d ON d.id = c.id`

// Delete removes calls that have ended or wait; a call that waited is not made. It leaves alone calls that are
// dispatched, or were cancelled and still run: cancel them first, and let them end. Deleting frees no units: the ledger
// keeps the attempts for as long as a limit may count them.
//
// The role needs SELECT, UPDATE and DELETE on call_queue, and SELECT on call_open.
func (c *Client) Delete(ctx context.Context, ids ...int64) ([]ChangeResult, error) {
	return change{what: "delete calls", sql: deleteSQL}.run(ctx, c, ids)
}

// The calls $1 are locked, so no claim opens an attempt of them. Open attempts and the ledger do not change.
const deleteSQL = `
WITH call AS MATERIALIZED (
    SELECT q.id, q.status, EXISTS (SELECT FROM callq.call_open o WHERE o.call_id = q.id) AS open, NULL::bigint AS duplicate_of
    FROM public.call_queue q
    WHERE q.id = ANY($1::bigint[])
), changed AS (
    DELETE FROM public.call_queue q
    USING call c
    WHERE q.id = c.id AND NOT c.open AND c.status <> 'dispatched'
    RETURNING q.id, q.status
)
SELECT c.id, d.id IS NOT NULL AS changed, coalesce(d.status, c.status) AS status, c.open, c.duplicate_of
FROM call c
LEFT JOIN changed d ON d.id = c.id`

// change is what is done to calls.
type change struct {
	what string // for errors
	open bool   // open attempts are locked before their calls, as whatever closes them does
	sql  string // changes the calls $1, which are locked, and returns a ChangeResult of each
	args []any  // $2, …; with open, the last is which calls have an open attempt
}

// mostLocked bounds how many calls a transaction locks, so that none takes long.
const mostLocked = 500

// run changes calls, some in each transaction.
func (ch change) run(ctx context.Context, c *Client, ids []int64) ([]ChangeResult, error) {
	done := make(map[int64]*ChangeResult, len(ids))
	var failure error
	turns := 0
	for some := range slices.Chunk(slices.Compact(slices.Sorted(slices.Values(ids))), mostLocked) {
		for len(some) > 0 && failure == nil {
			some, failure = ch.turn(ctx, c, some, done)
			if pgErr, ok := errors.AsType[*pgconn.PgError](failure); ok && pgErr.ConstraintName == "call_queue_unique_idx" && turns < 10 {
				turns, failure = turns+1, nil // somebody has just inserted a call with the unique key of one: now it is seen
			}
		}
	}
	list, missing := make([]ChangeResult, 0, len(done)), []int64(nil)
	for _, id := range ids {
		switch result, asked := done[id]; {
		case result != nil:
			list = append(list, *result)
		case !asked:
			missing = append(missing, id)
		}
		done[id] = nil // each id once
	}
	switch {
	case failure != nil:
		return list, fmt.Errorf("%s: %w", ch.what, failure)
	case len(missing) > 0:
		return list, &NotFoundError{missing}
	}
	return list, nil
}

// turn changes calls in one transaction and notes what was done. It returns the calls that sql left to another turn.
func (ch change) turn(ctx context.Context, c *Client, ids []int64, done map[int64]*ChangeResult) (again []int64, err error) {
	var found []*ChangeResult
	// Each statement must see what was committed while it waited for the locks of the one before.
	err = pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		args := append([]any{ids}, ch.args...)
		if ch.open {
			open, err := lock(ctx, tx, lockOpenSQL, ids)
			if err != nil {
				return err
			}
			args = append(args, open)
		}
		if again, err = lock(ctx, tx, lockCallsSQL, ids); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, ch.sql, args...)
		if found, err = pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[ChangeResult]); err != nil {
			return err
		}
		if slices.ContainsFunc(found, func(r *ChangeResult) bool { return r.Changed }) {
			_, err = tx.Exec(ctx, wakeFreedSQL) // units came free, or what held others up is gone, or it waits again
		}
		return err
	})
	if err != nil {
		return ids, err
	}
	for _, result := range found {
		done[result.ID] = result
	}
	return slices.DeleteFunc(again, func(id int64) bool { return done[id] != nil }), nil
}

// To lock several calls, or several open attempts, lock them in the order of their ids.
const (
	lockOpenSQL  = `SELECT call_id FROM callq.call_open WHERE call_id = ANY($1::bigint[]) ORDER BY call_id FOR UPDATE`
	lockCallsSQL = `SELECT id FROM public.call_queue WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE`
)

// lock returns the ids of those that are there, once it has their locks.
func lock(ctx context.Context, tx pgx.Tx, sql string, ids []int64) ([]int64, error) {
	rows, _ := tx.Query(ctx, sql, ids)
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}
