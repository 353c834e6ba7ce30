package callqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DuplicateError says which call of a batch has the unique key of another. Nothing was written. errors.Is finds
// [ErrDuplicate] in it.
type DuplicateError struct {
	// Index is the call's index in the slice given to InsertMany.
	Index int
	// ID is the unfinished call that has the key, or 0 if that is an earlier call of the same batch.
	ID int64
}

func (e *DuplicateError) Error() string {
	if e.ID == 0 {
		return fmt.Sprintf("index %d: an earlier call of the batch has the same unique key", e.Index)
	}
	return fmt.Sprintf("index %d: %v: %d", e.Index, ErrDuplicate, e.ID)
}

// Unwrap returns [ErrDuplicate].
func (e *DuplicateError) Unwrap() error { return ErrDuplicate }

// InsertMany writes all calls or none, and returns their ids in the order given. If one call is invalid it writes none
// and returns an [*InvalidCallError]; for a duplicate unique key, a [*DuplicateError].
func (c *Client) InsertMany(ctx context.Context, calls []Call) ([]int64, error) {
	return c.insertMany(ctx, c.pool, calls)
}

// InsertManyTx is [Client.InsertMany] in your transaction, under a savepoint: the transaction stays usable whatever is
// refused.
func (c *Client) InsertManyTx(ctx context.Context, tx pgx.Tx, calls []Call) ([]int64, error) {
	return c.insertMany(ctx, tx, calls)
}

func (c *Client) insertMany(ctx context.Context, db querier, calls []Call) ([]int64, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	rows, err := c.checkAll(calls)
	if err != nil {
		return nil, err
	}
	// The other call may end before it is looked up, hence again; not for ever, since a snapshot
	// older than it (REPEATABLE READ) never shows it.
	for turn := 1; ; turn++ {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return c.insertRows(ctx, tx, rows) })
		if err == nil {
			break
		}
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
		if ok && pgErr.Code == "40P01" && turn < 10 {
			continue // another batch has taken the same unique keys in another order: it has them now
		}
		if !ok || pgErr.ConstraintName != "call_queue_unique_idx" || turn == 10 {
			return nil, fmt.Errorf("insert calls: %w", refusal(-1, err))
		}
		duplicate, err := findDuplicate(ctx, db, rows)
		if err != nil {
			return nil, fmt.Errorf("look up duplicate: %w", err)
		}
		if duplicate != nil {
			return nil, duplicate
		}
	}
	ids := make([]int64, len(rows))
	for i := range rows {
		ids[i] = rows[i].id
	}
	return ids, nil
}

func (c *Client) checkAll(calls []Call) ([]row, error) {
	type name struct{ queue, key string }
	seen := make(map[name]bool)
	rows := make([]row, len(calls))
	for i, call := range calls {
		r, err := c.check(i, call)
		if err != nil {
			return nil, err
		}
		if r.uniqueKey != nil {
			n := name{r.queue, *r.uniqueKey}
			if seen[n] {
				return nil, &DuplicateError{Index: i}
			}
			seen[n] = true
		}
		rows[i] = r
	}
	return rows, nil
}

// chunkRows and chunkBytes bound what one statement of a batch writes: Postgres takes no more than 1 GB at once.
const (
	chunkRows  = 10_000
	chunkBytes = 16 << 20
)

// insertRows writes the rows and sets their ids.
func (c *Client) insertRows(ctx context.Context, tx pgx.Tx, rows []row) error {
	for rest := rows; len(rest) > 0; {
		var some columns
		for len(rest) > 0 && len(some.rows) < chunkRows && some.bytes < chunkBytes {
			some.add(&rest[0])
			rest = rest[1:]
		}
		if err := some.insert(ctx, tx); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(rows, func(r row) bool { return !r.waits() }) && c.waker.now() {
		_, err := tx.Exec(ctx, wakeSQL)
		return err
	}
	return nil
}

// columns are rows by column, as insertManySQL unnests them.
type columns struct {
	rows                      []*row
	queues, tasks, keys, data []string
	costs                     []int64
	priorities                []int
	runAts, expiresAts        []*time.Time
	uniqueKeys                []*string
	maxAttempts               []*int
	bytes                     int
}

func (c *columns) add(r *row) {
	c.rows, c.bytes = append(c.rows, r), c.bytes+len(r.data)
	c.queues, c.tasks, c.keys, c.data = append(c.queues, r.queue), append(c.tasks, r.task), append(c.keys, r.key), append(c.data, r.data)
	c.costs, c.priorities = append(c.costs, r.cost), append(c.priorities, r.priority)
	c.runAts, c.expiresAts = append(c.runAts, r.runAt), append(c.expiresAts, r.expiresAt)
	c.uniqueKeys, c.maxAttempts = append(c.uniqueKeys, r.uniqueKey), append(c.maxAttempts, r.maxAttempts)
}

func (c *columns) insert(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, insertManySQL, c.queues, c.tasks, c.keys, c.data, c.costs, c.priorities, c.runAts, c.expiresAts, c.uniqueKeys, c.maxAttempts)
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for i, id := range ids {
		c.rows[i].id = id
	}
	return err
}

// The ids come in the order in which unnest gives the rows.
const insertManySQL = `
INSERT INTO call_queue (queue, task, key, call_data, cost, priority, run_at, expires_at, unique_key, max_attempts)
SELECT queue, task, key, call_data::jsonb, cost, priority, coalesce(run_at, now()), expires_at, unique_key, max_attempts
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::smallint[], $7::timestamptz[], $8::timestamptz[], $9::text[],
    $10::integer[]) AS c (queue, task, key, call_data, cost, priority, run_at, expires_at, unique_key, max_attempts)
RETURNING id`

// findDuplicate returns the first call of the batch whose unique key an unfinished call has, or nil.
func findDuplicate(ctx context.Context, db querier, rows []row) (*DuplicateError, error) {
	queues := make([]string, len(rows))
	keys := make([]*string, len(rows))
	for i := range rows {
		queues[i], keys[i] = rows[i].queue, rows[i].uniqueKey
	}
	var d DuplicateError
	err := db.QueryRow(ctx, findDuplicateSQL, queues, keys).Scan(&d.Index, &d.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &d, nil
}

// Uses call_queue_unique_idx.
const findDuplicateSQL = `
SELECT given.n - 1, call_queue.id
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (queue, unique_key, n)
JOIN call_queue
    ON coalesce(call_queue.queue, 'default') = given.queue AND call_queue.unique_key = given.unique_key
ORDER BY given.n
LIMIT 1`
