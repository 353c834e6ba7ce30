package callqueue

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// NotFoundError says which calls there are not. errors.Is finds [ErrNotFound] in it.
type NotFoundError struct {
	IDs []int64
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("%v: %v", ErrNotFound, e.IDs) }

// Unwrap returns [ErrNotFound].
func (e *NotFoundError) Unwrap() error { return ErrNotFound }

// chunkMost is how many calls a transaction locks, so that none takes long.
const chunkMost = 500

// inChunks lets do loose on the ids, a transaction's worth at a time, and gives back what it noted of
// each call in known, in the order of the ids. The error is a [*NotFoundError] where it noted nothing.
func inChunks[T any](what string, ids []int64, do func(some []int64, known map[int64]T) error) ([]T, error) {
	asked, known := unique(ids), make(map[int64]T, len(ids))
	var failure error
	for some := range slices.Chunk(asked, chunkMost) {
		if failure = do(some, known); failure != nil {
			break
		}
	}
	list := make([]T, 0, len(known))
	var missing []int64
	for _, id := range asked {
		if found, ok := known[id]; ok {
			list = append(list, found)
		} else {
			missing = append(missing, id)
		}
	}
	switch {
	case failure != nil:
		return list, fmt.Errorf("%s: %w", what, failure)
	case len(missing) > 0:
		return list, &NotFoundError{missing}
	}
	return list, nil
}

func unique(ids []int64) []int64 {
	seen := make(map[int64]bool, len(ids))
	var list []int64
	for _, id := range ids {
		if !seen[id] {
			list, seen[id] = append(list, id), true
		}
	}
	return list
}

// changeLocked locks calls and runs sql on them ($1), which changes them and says what it did of each. What
// wake makes of that goes to the dispatchers with the commit; "" is nothing.
func changeLocked[T any](ctx context.Context, c *Client, sql string, args []any, wake func([]T) string) ([]T, error) {
	var found []T
	// What was committed while the locks were waited for must be seen once they are held.
	err := pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockCallsSQL, args[0]); err != nil {
			return fmt.Errorf("lock calls: %w", err)
		}
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		if found, err = pgx.CollectRows(rows, pgx.RowToStructByName[T]); err != nil {
			return err
		}
		if say := wake(found); say != "" {
			_, err = tx.Exec(ctx, say)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Calls are locked in the order of their ids by whoever locks several.
const lockCallsSQL = `SELECT id FROM call_queue WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE`
