package callqueue

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// NotFoundError says which calls do not exist. errors.Is finds [ErrNotFound] in it.
type NotFoundError struct{ IDs []int64 }

func (e *NotFoundError) Error() string { return fmt.Sprintf("%v: %v", ErrNotFound, e.IDs) }

// Unwrap returns [ErrNotFound].
func (e *NotFoundError) Unwrap() error { return ErrNotFound }

// ChangeResult is what [Client.Cancel], [Client.Retry] or [Client.Delete] did to a call.
type ChangeResult struct {
	ID int64 `json:"id"`
	// Changed says that this Cancel ended the call, this Retry made it wait again, or this Delete removed it. If false, its
	// Status or an Open attempt prevented that.
	Changed bool   `json:"changed"`
	Status  Status `json:"status"` // now, or the last that it had
	// Open says that an attempt of the call has not ended. After Cancel, one that has started.
	Open bool `json:"open"`
}

// Cancel ends calls that have not ended. A call that waits is not made. A call that was handed over but has not
// started will not start, and gives back its units. A call that has started may have reached the API, so its attempt
// stays counted. The context of its handler ends within about two seconds, and the call stays cancelled however the
// handler ends.
//
// Cancel returns a ChangeResult for each call that exists, in the order given. If some do not exist, it cancels the
// others and returns a [*NotFoundError]. After any other error it may have cancelled more than it returns; you may
// cancel again.
//
// Beyond SELECT and UPDATE on call_queue, the role needs them and DELETE on call_open, SELECT on
// call_limits, and INSERT on call_attempts and call_inbox.
func (c *Client) Cancel(ctx context.Context, ids ...int64) ([]ChangeResult, error) {
	return change{
		what: "cancel calls", sql: cancelSQL, open: true,
		// It gave units back, or may have held up others that fit.
		wake: wakeFreedSQL, wakes: func(r ChangeResult) bool { return r.Changed && !r.Open },
	}.run(ctx, c, ids)
}

// The calls $1 are locked, and so are the open attempts of the calls $2. An attempt that has not started ends here,
// charged to nothing. One that has started is its worker's to end. A call that
// was claimed before it was locked has an open attempt that is not: it is left to the next turn.
const cancelSQL = `
WITH call AS MATERIALIZED (
    SELECT q.id, q.status, q.status IN ('done', 'failed', 'cancelled') AS ended,
        o.call_id IS NOT NULL AND q.id <> ALL($2::bigint[]) AS claimed,
        o.started_at IS NOT NULL AS open
    FROM call_queue q
    LEFT JOIN call_open o ON o.call_id = q.id
    WHERE q.id = ANY($1::bigint[])
), cancelled AS (
    UPDATE call_queue q
    SET status = 'cancelled', finished_at = clock_timestamp(), unique_key = NULL
    FROM call c
    WHERE q.id = c.id AND NOT c.ended AND NOT c.claimed
    RETURNING q.id
), refunded AS (
    DELETE FROM call_open o
    USING cancelled c
    WHERE o.call_id = c.id AND o.started_at IS NULL
    RETURNING o.call_id, o.attempt, o.cost, o.claimed_at, o.queue, o.task, o.key, o.limits, o.keys
), ledger AS (
    INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
    SELECT call_id, attempt, cost, claimed_at, clock_timestamp(), 'cancelled', queue, task, key, '[]'
    FROM refunded
), freed AS (
    INSERT INTO call_inbox (queue, at, key)
    SELECT queue, clock_timestamp(), key
    FROM (
        SELECT DISTINCT u.key, unnest((SELECT queues FROM call_limits WHERE name = u.name AND per_key)) AS queue
        FROM refunded r
        CROSS JOIN LATERAL unnest(r.limits, r.keys) AS u (name, key)
    ) f
)
SELECT c.id, CASE WHEN done.id IS NULL THEN c.status ELSE 'cancelled' END AS status, done.id IS NOT NULL AS changed, c.open
FROM call c
LEFT JOIN cancelled done ON done.id = c.id
WHERE c.ended OR NOT c.claimed`

// Retry makes calls that failed or were cancelled wait again, as if they were new. Earlier failures no longer count
// towards max_attempts, and an ExpiresAt that has passed is removed. Earlier attempts stay in the ledger and stay
// charged; the next one uses the limits again. The unique key went when the call ended, and does not come back.
//
// Retry leaves other calls alone: those that have not ended, those that are done, and those that were cancelled and
// still run.
//
// Retry returns a ChangeResult for each call that exists, in the order given. If some do not exist, it retries the others
// and returns a [*NotFoundError]. After any other error it may have retried more than it returns.
//
// The role needs SELECT and UPDATE on call_queue, and SELECT on call_open.
func (c *Client) Retry(ctx context.Context, ids ...int64) ([]ChangeResult, error) {
	return c.retry(ctx, ids, StatusFailed, StatusCancelled)
}

// RetryDone is like [Client.Retry], but also makes calls once more that are done.
func (c *Client) RetryDone(ctx context.Context, ids ...int64) ([]ChangeResult, error) {
	return c.retry(ctx, ids, StatusFailed, StatusCancelled, StatusDone)
}

func (c *Client) retry(ctx context.Context, ids []int64, of ...Status) ([]ChangeResult, error) {
	return change{
		what: "retry calls", sql: retrySQL, args: []any{of},
		wake: wakeSQL, wakes: func(r ChangeResult) bool { return r.Changed },
	}.run(ctx, c, ids)
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
SELECT c.id, r.id IS NOT NULL AS changed, CASE WHEN r.id IS NULL THEN c.status ELSE 'new' END AS status, c.open
FROM call c
LEFT JOIN retried r ON r.id = c.id`

// Delete removes calls that have ended or wait; a call that waited is not made. It leaves alone calls that are
// dispatched, or were cancelled and still run: cancel them first, and let them end. Deleting frees no units: the ledger
// keeps the attempts for as long as a limit may count them.
//
// Delete returns a ChangeResult for each call that existed, in the order given. If some did not exist, it deletes the
// others and returns a [*NotFoundError]. After any other error it may have deleted more than it returns.
//
// The role needs SELECT, UPDATE and DELETE on call_queue, and SELECT on call_open.
func (c *Client) Delete(ctx context.Context, ids ...int64) ([]ChangeResult, error) {
	return change{
		what: "delete calls", sql: deleteSQL,
		// It may have held up others that fit.
		wake: wakeFreedSQL, wakes: func(r ChangeResult) bool { return r.Changed && !r.Status.Final() },
	}.run(ctx, c, ids)
}

// The calls $1 are locked, so no claim opens an attempt of them. Open attempts and the ledger do not change.
const deleteSQL = `
WITH call AS MATERIALIZED (
    SELECT q.id, q.status, EXISTS (SELECT FROM call_open o WHERE o.call_id = q.id) AS open
    FROM call_queue q
    WHERE q.id = ANY($1::bigint[])
), deleted AS (
    DELETE FROM call_queue q
    USING call c
    WHERE q.id = c.id AND NOT c.open AND c.status <> 'dispatched'
    RETURNING q.id
)
SELECT c.id, d.id IS NOT NULL AS changed, c.status, c.open
FROM call c
LEFT JOIN deleted d ON d.id = c.id`

// change is what is done to calls.
type change struct {
	what  string                  // for errors
	open  bool                    // open attempts are locked before their calls, as whatever closes them does
	sql   string                  // changes the calls $1, which are locked, and returns a ChangeResult of each
	args  []any                   // $2, …; with open, the last is which calls have an open attempt
	wakes func(ChangeResult) bool // whether wake is sent
	wake  string
}

// mostLocked bounds how many calls a transaction locks, so that none takes long.
const mostLocked = 500

// run changes calls, some in each transaction, and returns what was done, in the order of the ids. If some calls do not exist,
// the error is a [*NotFoundError].
func (ch change) run(ctx context.Context, c *Client, ids []int64) ([]ChangeResult, error) {
	var asked, missing []int64 // each once
	known := make(map[int64]*ChangeResult, len(ids))
	for _, id := range ids {
		if _, twice := known[id]; !twice {
			asked, known[id] = append(asked, id), nil
		}
	}
	var failure error
	for some := range slices.Chunk(asked, mostLocked) {
		for len(some) > 0 && failure == nil {
			some, failure = ch.turn(ctx, c, some, known)
		}
	}
	list := make([]ChangeResult, 0, len(asked))
	for _, id := range asked {
		if done := known[id]; done != nil {
			list = append(list, *done)
		} else {
			missing = append(missing, id)
		}
	}
	switch {
	case failure != nil:
		return list, fmt.Errorf("%s: %w", ch.what, failure)
	case len(missing) > 0:
		return list, &NotFoundError{missing}
	}
	return list, nil
}

// turn changes calls in one transaction and notes in known what was done. It returns the calls that sql left to another turn.
func (ch change) turn(ctx context.Context, c *Client, ids []int64, known map[int64]*ChangeResult) (again []int64, err error) {
	var found []ChangeResult
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
		if found, err = pgx.CollectRows(rows, pgx.RowToStructByName[ChangeResult]); err != nil {
			return err
		}
		if slices.ContainsFunc(found, ch.wakes) {
			_, err = tx.Exec(ctx, ch.wake)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range found {
		known[found[i].ID] = &found[i]
	}
	return slices.DeleteFunc(again, func(id int64) bool { return known[id] != nil }), nil
}

// Whoever locks several calls, or several open attempts, locks them in the order of their ids.
const (
	lockOpenSQL  = `SELECT call_id FROM call_open WHERE call_id = ANY($1::bigint[]) ORDER BY call_id FOR UPDATE`
	lockCallsSQL = `SELECT id FROM call_queue WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE`
)

// lock returns the ids of those that are there, once it has their locks.
func lock(ctx context.Context, tx pgx.Tx, sql string, ids []int64) ([]int64, error) {
	rows, _ := tx.Query(ctx, sql, ids)
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}
