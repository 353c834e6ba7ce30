package callqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DuplicateError names the call of a batch that has the unique key of another. Nothing was written. errors.Is finds
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
	return c.insert(ctx, schema.Tx(c.pool, tx), call)
}

func (c *Client) insert(ctx context.Context, db querier, call Call) (int64, error) {
	r, err := c.check(0, call)
	if err != nil {
		return 0, err
	}
	sql := insertSQL
	if r.UniqueKey != "" {
		sql = insertUniqueSQL
	}
	// If neither statement returns a row, the other call ended between them.
	for {
		var id int64
		err := db.QueryRow(ctx, sql, pgx.StrictNamedArgs{
			"queue": r.Queue, "task": r.Task, "key": r.Key, "call_data": r.json, "cost": r.Cost, "priority": r.Priority,
			"run_at": r.RunAt, "expires_at": r.ExpiresAt, "unique_key": r.UniqueKey,
			"max_attempts": r.MaxAttempts,
		}).Scan(&id)
		if err == nil {
			return id, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return 0, fmt.Errorf("insert call: %w", refusal(0, err))
		}
		err = findDuplicate(ctx, db, []row{r})
		if duplicate, ok := errors.AsType[*DuplicateError](err); ok {
			return duplicate.ID, ErrDuplicate
		}
		if err != nil {
			return 0, err
		}
	}
}

// Go's zero time, the first moment of year 1, means the default.
const valuesSQL = `
INSERT INTO public.call_queue (queue, task, key, call_data, cost, priority, run_at, expires_at, unique_key, max_attempts)
VALUES (@queue::text, @task::text, @key::text, @call_data::jsonb, @cost::bigint, @priority::smallint,
    coalesce(nullif(@run_at::timestamptz, '0001-01-01Z'), now()), nullif(@expires_at::timestamptz, '0001-01-01Z'),
    nullif(@unique_key::text, ''), nullif(@max_attempts::integer, 0))`

const insertSQL = valuesSQL + `
RETURNING id`

// Returns no row for a duplicate, and does not abort the transaction. Kept apart from insertSQL because a speculative insert
// writes more WAL. Uses call_queue_unique_idx.
const insertUniqueSQL = valuesSQL + `
ON CONFLICT (coalesce(queue, 'default'), unique_key) WHERE unique_key IS NOT NULL DO NOTHING
RETURNING id`

// InsertMany writes all calls or none, and returns their ids in the order given. If one call is invalid it writes none
// and returns an [*InvalidCallError]; for a duplicate unique key, a [*DuplicateError].
func (c *Client) InsertMany(ctx context.Context, calls []Call) ([]int64, error) {
	return c.insertMany(ctx, c.pool, calls)
}

// InsertManyTx is [Client.InsertMany] in your transaction, under a savepoint: the transaction stays usable whatever is refused.
func (c *Client) InsertManyTx(ctx context.Context, tx pgx.Tx, calls []Call) ([]int64, error) {
	return c.insertMany(ctx, schema.Tx(c.pool, tx), calls)
}

func (c *Client) insertMany(ctx context.Context, db querier, calls []Call) (ids []int64, err error) {
	if len(calls) == 0 {
		return nil, nil
	}
	rows, err := c.checkAll(calls)
	if err != nil {
		return nil, err
	}
	// The other call may end before it is read, hence again; not for ever, since a snapshot older than it (REPEATABLE
	// READ) never shows it.
	for turn := 1; ; turn++ {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
			ids, err = c.insertRows(ctx, tx, rows)
			return err
		})
		if err == nil {
			return ids, nil
		}
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
		if ok && pgErr.Code == "40P01" && turn < 10 {
			continue // another batch has inserted the same unique keys in another order: it has them now
		}
		if !ok || pgErr.ConstraintName != "call_queue_unique_idx" || turn == 10 {
			return nil, fmt.Errorf("insert calls: %w", refusal(-1, err))
		}
		if err := findDuplicate(ctx, db, rows); err != nil {
			return nil, err
		}
	}
}

// findDuplicate returns a [*DuplicateError] for the first call whose unique key an unfinished call has; nil: it has ended
// meanwhile.
func findDuplicate(ctx context.Context, db querier, rows []row) error {
	text := func(of func(r row) string) []string { return column(rows, of) }
	duplicate := &DuplicateError{}
	err := db.QueryRow(ctx, findDuplicateSQL, text(func(r row) string { return r.Queue }), text(func(r row) string { return r.Task }),
		text(func(r row) string { return r.Key }), text(func(r row) string { return r.json }), text(func(r row) string { return r.UniqueKey })).Scan(&duplicate.Index, &duplicate.ID)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look up duplicate: %w", err)
	}
	return duplicate
}

// A call's unique key is unique in the queue that routes take it to. Rows are looked at one after another, up to the first that has a
// duplicate. Uses call_queue_unique_idx. The key is NULL on a call that has ended.
const findDuplicateSQL = `
WITH ruled AS MATERIALIZED (SELECT public.callq_queue_of(NULL, NULL, NULL, NULL) IS NOT NULL AS ever)
SELECT given.n - 1, other.id
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS given (queue, task, key, data, unique_key, n)
CROSS JOIN LATERAL (
    SELECT CASE WHEN (SELECT ever FROM ruled) THEN public.callq_queue_of(given.queue, given.task, given.key, given.data::jsonb)
        ELSE given.queue END AS queue
    WHERE given.unique_key <> ''
    OFFSET 0
) to_be
CROSS JOIN LATERAL (
    SELECT q.id FROM public.call_queue q WHERE coalesce(q.queue, 'default') = to_be.queue AND q.unique_key = given.unique_key LIMIT 1
) other
LIMIT 1`

func (c *Client) checkAll(calls []Call) ([]row, error) {
	seen := map[[2]string]bool{} // queue and unique key
	rows := make([]row, len(calls))
	for i, call := range calls {
		r, err := c.check(i, call)
		if err != nil {
			return nil, err
		}
		if name := [2]string{r.Queue, r.UniqueKey}; r.UniqueKey != "" {
			if seen[name] {
				return nil, &DuplicateError{Index: i}
			}
			seen[name] = true
		}
		rows[i] = r
	}
	return rows, nil
}

// statementRows and statementBytes bound what one statement of a batch writes: Postgres takes no more than 1 GB at once.
const (
	statementRows  = 10_000
	statementBytes = 16 << 20
)

func (c *Client) insertRows(ctx context.Context, tx pgx.Tx, rows []row) (ids []int64, err error) {
	for rest := rows; len(rest) > 0; {
		n, bytes := 0, 0
		for ; n < len(rest) && n < statementRows && bytes < statementBytes; n++ {
			bytes += len(rest[n].json)
		}
		some := rest[:n]
		inserted, _ := tx.Query(ctx, insertManySQL, pgx.StrictNamedArgs{
			"queues":       column(some, func(r row) string { return r.Queue }),
			"tasks":        column(some, func(r row) string { return r.Task }),
			"keys":         column(some, func(r row) string { return r.Key }),
			"data":         column(some, func(r row) string { return r.json }),
			"costs":        column(some, func(r row) int64 { return r.Cost }),
			"priorities":   column(some, func(r row) int { return *r.Priority }),
			"run_ats":      column(some, func(r row) time.Time { return r.RunAt }),
			"expires_ats":  column(some, func(r row) time.Time { return r.ExpiresAt }),
			"unique_keys":  column(some, func(r row) string { return r.UniqueKey }),
			"max_attempts": column(some, func(r row) int { return r.MaxAttempts }),
		})
		more, err := pgx.CollectRows(inserted, pgx.RowTo[int64])
		if err != nil {
			return nil, err
		}
		ids, rest = append(ids, more...), rest[n:]
	}
	return ids, nil
}

func column[T any](rows []row, of func(row) T) []T {
	list := make([]T, len(rows))
	for i, r := range rows {
		list[i] = of(r)
	}
	return list
}

// The ids come in the order in which unnest gives the rows.
const insertManySQL = `
INSERT INTO public.call_queue (queue, task, key, call_data, cost, priority, run_at, expires_at, unique_key, max_attempts)
SELECT queue, task, key, call_data::jsonb, cost, priority, coalesce(nullif(run_at, '0001-01-01Z'), now()),
    nullif(expires_at, '0001-01-01Z'), nullif(unique_key, ''), nullif(max_attempts, 0)
FROM unnest(@queues::text[], @tasks::text[], @keys::text[], @data::text[], @costs::bigint[], @priorities::smallint[],
        @run_ats::timestamptz[], @expires_ats::timestamptz[], @unique_keys::text[], @max_attempts::integer[])
    AS c (queue, task, key, call_data, cost, priority, run_at, expires_at, unique_key, max_attempts)
RETURNING id`
