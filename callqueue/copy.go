package callqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DuplicateError says which call of a batch has the unique key of another. Nothing was written.
// errors.Is finds [ErrDuplicate] in it.
type DuplicateError struct {
	// Index is the call's place in the slice given to InsertMany.
	Index int
	// ID is the unfinished call that has the key, 0 if it is an earlier call of the same batch.
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

// InsertMany writes all calls or none, by COPY, and returns their ids in the order given. One call
// that is refused refuses all, with an [*InvalidCallError]; so does a duplicate unique key, with a
// [*DuplicateError].
//
// Beyond INSERT on call_queue, the role needs USAGE on its sequence, call_queue_id_seq.
func (c *Client) InsertMany(ctx context.Context, calls []Call) ([]int64, error) {
	return c.insertMany(ctx, c.pool, calls)
}

// InsertManyTx is [Client.InsertMany] in the caller's transaction, under a savepoint: whatever is
// refused leaves the transaction usable.
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
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return c.copyRows(ctx, tx, rows) })
		if err == nil {
			break
		}
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
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

// copyRows writes the rows and sets their ids.
func (c *Client) copyRows(ctx context.Context, tx pgx.Tx, rows []row) error {
	var ids []int64
	var now time.Time
	if err := tx.QueryRow(ctx, reserveSQL, len(rows)).Scan(&ids, &now); err != nil {
		return fmt.Errorf("reserve ids: %w", err)
	}
	order := make([]*row, len(rows))
	for i := range rows {
		rows[i].id = ids[i]
		order[i] = &rows[i]
	}
	// Two batches that took their unique keys in opposite order would deadlock.
	slices.SortStableFunc(order, byUniqueKey)
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"call_queue"}, copyColumns(),
		pgx.CopyFromSlice(len(order), func(i int) ([]any, error) { return order[i].copyValues(now), nil }))
	if err != nil {
		return err
	}
	if slices.ContainsFunc(order, func(r *row) bool { return !r.waits() }) && c.waker.now() {
		_, err = tx.Exec(ctx, wakeSQL)
	}
	return err
}

func byUniqueKey(a, b *row) int {
	switch {
	case a.uniqueKey != nil && b.uniqueKey != nil:
		return cmp.Or(cmp.Compare(*a.uniqueKey, *b.uniqueKey), cmp.Compare(a.queue, b.queue))
	case a.uniqueKey != nil:
		return 1
	case b.uniqueKey != nil:
		return -1
	}
	return 0
}

func copyColumns() []string {
	return []string{
		"id", "queue", "task", "key", "call_data", "cost", "priority",
		"run_at", "expires_at", "unique_key", "max_attempts",
	}
}

func (r *row) copyValues(now time.Time) []any {
	runAt := cmp.Or(r.runAt, &now)
	return []any{
		r.id, r.queue, r.task, r.key, r.data, r.cost, r.priority,
		runAt, r.expiresAt, r.uniqueKey, r.maxAttempts,
	}
}

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

// The ids a COPY is to write, ascending, and the transaction's time, which created_at gets too. The
// identity is GENERATED ALWAYS, but COPY may write it.
const reserveSQL = `
SELECT ARRAY(SELECT nextval(pg_get_serial_sequence('call_queue', 'id')) FROM generate_series(1, $1::integer)), now()`

// Uses call_queue_unique_idx.
const findDuplicateSQL = `
SELECT given.n - 1, call_queue.id
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (queue, unique_key, n)
JOIN call_queue
    ON coalesce(call_queue.queue, 'default') = given.queue AND call_queue.unique_key = given.unique_key
ORDER BY given.n
LIMIT 1`
