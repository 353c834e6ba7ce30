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

// chunkMost bounds how many calls a transaction locks, so that none takes long.
const chunkMost = 500

// inChunks calls do with the ids, a transaction's worth at a time, and returns what do recorded in known, in the order
// of the ids. If do recorded nothing for some, the error is a [*NotFoundError].
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

// changeLocked locks the calls args[0] and runs sql, which changes them and returns what it did to each. It then runs
// the statement that wake returns, if any, in the same transaction.
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

// Whoever locks several calls locks them in the order of their ids.
const lockCallsSQL = `SELECT id FROM call_queue WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE`
