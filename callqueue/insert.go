package callqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// querier is a pool or a transaction.
type querier interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Insert writes a call in one round trip and returns its id. If an unfinished call has the same unique key, Insert
// returns that call's id and [ErrDuplicate].
func (c *Client) Insert(ctx context.Context, call Call) (int64, error) {
	return c.insert(ctx, c.pool, call)
}

// InsertTx is [Client.Insert] in your transaction: the call commits or vanishes with it. The transaction stays usable
// after a duplicate, and after an invalid call unless Postgres refused it (an [InvalidCallError] without a Field).
//
// InsertTx waits while another open transaction holds the same unique key.
func (c *Client) InsertTx(ctx context.Context, tx pgx.Tx, call Call) (int64, error) {
	return c.insert(ctx, tx, call)
}

func (c *Client) insert(ctx context.Context, db querier, call Call) (int64, error) {
	r, err := c.check(0, call)
	if err != nil {
		return 0, err
	}
	sql := insertSQL
	if r.uniqueKey != nil {
		sql = insertUniqueSQL
	}
	// If neither statement returns a row, the other call ended between them.
	for {
		var id int64
		args := r.args(!r.waits() && c.waker.now())
		err := db.QueryRow(ctx, sql, args).Scan(&id, nil)
		if err == nil {
			return id, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return 0, fmt.Errorf("insert call: %w", refusal(0, err))
		}
		err = db.QueryRow(ctx, duplicateSQL, r.queue, *r.uniqueKey).Scan(&id)
		if err == nil {
			return id, ErrDuplicate
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return 0, fmt.Errorf("look up duplicate: %w", err)
		}
	}
}

func (r *row) args(wake bool) pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"queue":        r.queue,
		"task":         r.task,
		"key":          r.key,
		"call_data":    r.data,
		"cost":         r.cost,
		"priority":     r.priority,
		"run_at":       r.runAt,
		"expires_at":   r.expiresAt,
		"unique_key":   r.uniqueKey,
		"max_attempts": r.maxAttempts,
		"wake":         wake,
	}
}

const valuesSQL = `
INSERT INTO call_queue
    (queue, task, key, call_data, cost, priority, run_at, expires_at, unique_key, max_attempts)
VALUES
    (@queue::text, @task::text, @key::text, @call_data::jsonb, @cost::bigint, @priority::smallint,
     coalesce(@run_at::timestamptz, now()), @expires_at::timestamptz, @unique_key::text, @max_attempts::integer)`

const returningSQL = `
RETURNING id, CASE WHEN @wake::boolean THEN pg_notify('` + WakeChannel + `', '') END`

const insertSQL = valuesSQL + returningSQL

// Returns no row for a duplicate, and does not abort the transaction. Kept apart from insertSQL
// because a speculative insert writes more WAL. Uses call_queue_unique_idx.
const insertUniqueSQL = valuesSQL + `
ON CONFLICT (coalesce(queue, 'default'), unique_key) WHERE unique_key IS NOT NULL DO NOTHING` + returningSQL

// Uses call_queue_unique_idx. The key is NULL on a call that has ended.
const duplicateSQL = `
SELECT id FROM call_queue WHERE coalesce(queue, 'default') = $1::text AND unique_key = $2::text`
