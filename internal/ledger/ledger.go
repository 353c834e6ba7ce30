// Package ledger owns the SQL that starts and closes attempts, for worker and recovery alike,
// and the proof of it, Verify.
//
// It promises that an attempt is started at most once and closed at most once, whatever is
// repeated or arrives late: both are a compare-and-set on the attempt's own row in call_open.
// Closing writes the ledger row, charges the limits and moves the call on in one statement, so
// that no crash can leave one without the others. Locks are taken in one order everywhere:
// call_queues, call_limits, the claims' room, call_open, call_queue, call_usage.
package ledger

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB runs statements: a pool, a connection or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Settings are what callq's own connections set: plans made for ids, whatever the tables held
// when the plan was made, and times that add up in every zone. The statements help: they say
// q.id BETWEEN x.id AND x.id where they join a table that grows, for with q.id = x.id its index could be
// read as a whole, in order, which costs the same on a table that was empty when it was analyzed; and, a little
// dearer, = ANY (ARRAY[x.id]) where more columns of the key follow. A process that is frozen within a
// transaction must not hold its locks for as long as it is: Postgres ends it then. And what was
// committed is durable, whatever the server is set to: a crash must not forget a start.
func Settings() map[string]string {
	return map[string]string{
		"timezone":          "UTC",
		"client_encoding":   "UTF8", // whatever the database's is
		"plan_cache_mode":   "force_generic_plan",
		"enable_seqscan":    "off",
		"enable_bitmapscan": "off",
		"enable_hashjoin":   "off",
		"enable_mergejoin":  "off",
		"jit":               "off",
		"application_name":  "callq",

		"synchronous_commit":                  "on",
		"idle_in_transaction_session_timeout": "5s",
	}
}

// BadData says whether a statement failed for what one of its rows holds: a value that Postgres does not
// take, or that is larger than it can.
func BadData(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "54"))
}

// Spoiled says whether a statement may have failed for what one of its rows holds: for bad data, for a trigger or a
// constraint that somebody added, or because what is stored is broken. Without that row it may succeed.
func Spoiled(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return BadData(err) || ok && slices.Contains([]string{"23", "P0", "XX"}, pg.Code[:2])
}

// Apart runs a statement on a list, and where one of it may have spoiled that, on its halves, and so on: one that
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

// column returns one value of each row, for a statement that unnests columns.
func column[R, T any](rows []R, of func(R) T) []T {
	list := make([]T, len(rows))
	for i, r := range rows {
		list[i] = of(r)
	}
	return list
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
