package dispatcher

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ranges are those of call_queue_find_idx that calls were removed from, by their first page.
type ranges map[int64]struct{}

func (r ranges) add(pages []int64) {
	for _, page := range pages {
		r[page] = struct{}{}
	}
}

// rangesMost are summed up anew in one transaction: 8 MB of calls.
const rangesMost = 64

// sumUpAnew has the index forget what is gone. It stands back where VACUUM runs, which would be cancelled if
// it were waited for. A range that is left out, as where retention was cut short or an old snapshot still sees what is
// gone, keeps what it said until calls are removed from it again: a list reads more than it needs to.
func (r ranges) sumUpAnew(ctx context.Context, pool *pgxpool.Pool) error {
	for pages := range slices.Chunk(slices.Sorted(maps.Keys(r)), rangesMost) {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '100ms'`); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `SELECT callq_find_anew($1::bigint[])`, pages)
			return err
		})
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "55P03" { // lock_not_available
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
