// Package ledger owns the SQL that starts and closes attempts, for workers and recovery alike. Package verify proves it.
//
// It promises that an attempt starts at most once and closes at most once, whatever is repeated or arrives late: both are a
// compare-and-set on the attempt's own row in call_open. A close writes the ledger row, charges the limits and moves
// the call on in one statement, so no crash leaves one without the others. Locks are taken in one order everywhere:
// call_queues, call_limits, the claims' capacity, call_open, call_queue, call_usage.
package ledger

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// DB runs statements: a pool, a connection or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func queryIDs(ctx context.Context, db DB, sql string, args ...any) ([]int64, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
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

func micros(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	us := ceilMicros(*d)
	return &us
}

// ceilMicros rounds up: a bound on arrival may be too late, never too early.
func ceilMicros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}
