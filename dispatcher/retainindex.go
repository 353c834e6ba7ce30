package dispatcher

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

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

// vacuumWithin is how long VACUUM is waited for in all, and vacuumLook between two looks for its end.
const (
	vacuumWithin = 30 * time.Second
	vacuumLook   = 200 * time.Millisecond
)

// sumUpAnew has the index forget what is gone. It waits for a VACUUM that runs, but never so long at once that an
// automatic one would be cancelled for it, nor in a transaction that would be long. A range that is left out, as
// where retention was cut short or an old snapshot still sees what is gone, keeps what it said until calls are
// removed from it again: a list reads more than it needs to.
func (r ranges) sumUpAnew(ctx context.Context, pool *pgxpool.Pool, within time.Duration) error {
	for pages := range slices.Chunk(slices.Sorted(maps.Keys(r)), rangesMost) {
		for {
			err := findAnew(ctx, pool, pages)
			refused, ok := errors.AsType[*pgconn.PgError](err)
			if !ok || refused.Code != "55P03" { // lock_not_available
				if err != nil {
					return err
				}
				break
			}
			if within -= vacuumLook; within < 0 {
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(vacuumLook):
			}
		}
	}
	return nil
}

func findAnew(ctx context.Context, pool *pgxpool.Pool, pages []int64) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '50ms'`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `SELECT callq_find_anew($1::bigint[])`, pages)
		return err
	})
}
