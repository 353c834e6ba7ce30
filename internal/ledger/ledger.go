// Package ledger owns the SQL that starts and closes attempts, for workers and recovery alike. Package verify proves it.
//
// It promises that an attempt starts at most once and closes at most once, whatever is repeated or arrives late: both are a
// compare-and-set on the attempt's own row in call_open. A close writes the ledger row, charges the limits and moves
// the call on in one statement, so no crash leaves one without the others. Locks are taken in one order everywhere:
// call_queues, call_limits, the claims' capacity, call_open, call_queue, call_usage.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB runs statements: a pool, a connection or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func queryIDs(ctx context.Context, db DB, sql string, args ...any) ([]int64, error) {
	rows, _ := db.Query(ctx, sql, args...) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// column is one field of each row, as statements unnest them.
func column[R, F any](rows []R, of func(R) F) []F {
	fields := make([]F, len(rows))
	for i, r := range rows {
		fields[i] = of(r)
	}
	return fields
}

func nonZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// up rounds up to what Postgres keeps: a bound on arrival may be too late, never too early.
func up(d *time.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	return new((*d + time.Microsecond - 1).Truncate(time.Microsecond))
}

// onFree runs a statement on those entries whose attempts nobody else has locked, nor, with calls, their calls. It returns the
// calls of the others.
func onFree[R any](
	ctx context.Context, db *pgxpool.Pool, calls bool, list []R, id func(R) int64, run func(pgx.Tx, []R) error,
) (busy []int64, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		if busy, err = queryIDs(ctx, tx, busySQL, column(list, id), calls); err != nil {
			return fmt.Errorf("lock what is free: %w", err)
		}
		free := slices.DeleteFunc(slices.Clone(list), func(r R) bool { return slices.Contains(busy, id(r)) })
		if len(free) == 0 {
			return nil
		}
		return run(tx, free)
	})
	return busy, err
}

// busySQL locks the free rows for the transaction, and returns the others.
const busySQL = `
WITH open AS MATERIALIZED (
    SELECT call_id FROM call_open WHERE call_id = ANY($1::bigint[]) ORDER BY call_id FOR UPDATE SKIP LOCKED
), calls AS MATERIALIZED (
    SELECT id FROM call_queue WHERE $2 AND id = ANY($1::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
SELECT DISTINCT a.id
FROM unnest($1::bigint[]) AS a (id)
WHERE a.id NOT IN (SELECT call_id FROM open) AND EXISTS (SELECT FROM call_open o WHERE o.call_id BETWEEN a.id AND a.id)
   OR $2 AND a.id NOT IN (SELECT id FROM calls) AND EXISTS (SELECT FROM call_queue q WHERE q.id BETWEEN a.id AND a.id)`

// ErrBusy: another transaction has locked the row of a call or of its attempt.
var ErrBusy = errors.New("another transaction holds the call's row")

// Busy reports whether a statement gave up waiting for a lock.
func Busy(err error) bool { return hasCode(err, "55P03") } // lock_not_available

// BadData reports whether a statement failed because of a value in one of its rows, which Postgres does not take or which is
// too large for it.
func BadData(err error) bool { return hasCode(err, "22", "54") }

// Spoiled reports whether a statement may succeed without one of its rows, which has bad data, breaks a trigger or constraint
// that somebody added, or is corrupt where it is stored.
func Spoiled(err error) bool { return BadData(err) || hasCode(err, "23", "P0", "XX") }

func hasCode(err error, prefixes ...string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(pg.Code, p) })
}

// Reason is an error's message without Postgres's code, fit for a row that users read.
func Reason(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Message
	}
	return err.Error()
}

// Apart runs a statement on a list. If one entry may have spoiled it, Apart runs it on each half, and so on; an entry that
// fails alone goes to bad. Any other error ends it. run must leave nothing behind where it fails.
func Apart[T any](list []T, run func([]T) error, bad func(T, error)) error {
	if len(list) == 0 {
		return nil
	}
	err := run(list)
	switch half := len(list) / 2; {
	case !Spoiled(err):
		return err
	case half == 0:
		bad(list[0], err)
		return nil
	default:
		if err := Apart(list[:half], run, bad); err != nil {
			return err
		}
		return Apart(list[half:], run, bad)
	}
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
