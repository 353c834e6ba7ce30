package callqueue

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Cancellation is what [Client.Cancel] did to a call.
type Cancellation struct {
	ID int64 `json:"id"`
	// Cancelled says that this Cancel ended the call. If false, it had ended before: see Status.
	Cancelled bool   `json:"cancelled"`
	Status    Status `json:"status"`
	// Running says that an attempt of the call had started and had not ended.
	Running bool `json:"running"`
}

// Cancel ends calls that have not ended. A call that waits is not made. A call that was handed over but has not
// started will not start, and gives back its units. A call that has started may have reached the API, so its attempt
// stays counted. The context of its handler ends within about two seconds, and the call stays cancelled however the
// handler ends.
//
// Cancel returns a Cancellation for each call that exists, in the order given. If some do not exist, it cancels the
// others and returns a [*NotFoundError]. After any other error it may have cancelled more than it returns; you may
// cancel again.
//
// Beyond SELECT and UPDATE on call_queue, the role needs them and DELETE on call_open, SELECT on
// call_limits, and INSERT on call_attempts and call_inbox.
func (c *Client) Cancel(ctx context.Context, ids ...int64) ([]Cancellation, error) {
	return inChunks("cancel calls", ids, func(some []int64, known map[int64]Cancellation) (err error) {
		// A call that was claimed while its lock was waited for is left to the next turn.
		for len(some) > 0 && err == nil {
			some, err = c.cancelSome(ctx, some, known)
		}
		return err
	})
}

// cancelSome cancels calls in one transaction and records them in known. It returns the ids to ask for again.
func (c *Client) cancelSome(ctx context.Context, ids []int64, known map[int64]Cancellation) ([]int64, error) {
	var found []cancelled
	// Each statement must see what was committed while it waited for the locks of the one before.
	err := pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, lockOpenSQL, ids)
		if err != nil {
			return err
		}
		open, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return fmt.Errorf("lock open attempts: %w", err)
		}
		if _, err := tx.Exec(ctx, lockCallsSQL, ids); err != nil {
			return fmt.Errorf("lock calls: %w", err)
		}
		if rows, err = tx.Query(ctx, cancelSQL, ids, open); err != nil {
			return err
		}
		if found, err = pgx.CollectRows(rows, pgx.RowToStructByName[cancelled]); err != nil {
			return err
		}
		// It gave units back, or may have held up others that fit.
		if slices.ContainsFunc(found, func(f cancelled) bool { return f.Cancelled && !f.Running }) {
			_, err = tx.Exec(ctx, wakeFreedSQL)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var again []int64
	for _, f := range found {
		if f.Claimed {
			again = append(again, f.ID)
			continue
		}
		known[f.ID] = Cancellation{f.ID, f.Cancelled, f.Status, f.Running}
	}
	return again, nil
}

// cancelled is a call as cancelSQL left it.
type cancelled struct {
	ID        int64  `db:"id"`
	Status    Status `db:"status"`
	Cancelled bool   `db:"cancelled"`
	Running   bool   `db:"running"`
	Claimed   bool   `db:"claimed"` // it has an open attempt that is not locked: nothing was done
}

// Open attempts are locked before their calls, as whatever closes them does.
const lockOpenSQL = `SELECT call_id FROM call_open WHERE call_id = ANY($1::bigint[]) ORDER BY call_id FOR UPDATE`

// The calls $1 are locked, and so are the open attempts of the calls $2. An attempt that has not started ends here,
// charged to nothing. One that has started is its worker's to end.
const cancelSQL = `
WITH call AS MATERIALIZED (
    SELECT q.id, q.status, q.status IN ('done', 'failed', 'cancelled') AS ended,
        o.call_id IS NOT NULL AND q.id <> ALL($2::bigint[]) AS claimed,
        o.started_at IS NOT NULL AS running
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
SELECT c.id, CASE WHEN done.id IS NULL THEN c.status ELSE 'cancelled' END AS status, done.id IS NOT NULL AS cancelled,
    c.running, c.claimed AND NOT c.ended AS claimed
FROM call c
LEFT JOIN cancelled done ON done.id = c.id`
