// Package ledger owns the SQL that starts and closes attempts, for workers and recovery alike. Package verify proves it.
//
// It promises that an attempt starts at most once and closes at most once, whatever is repeated or arrives late: both are a
// compare-and-set on the attempt's own row in call_open. A close writes the ledger row, charges the limits and moves
// the call on in one statement, so no crash leaves one without the others. Locks are acquired in one order everywhere:
// call_queues, call_limits, the claims' capacity, call_open, call_queue, call_usage.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Settings are what callq's own connections set.
//
// Statements find rows by id, whatever the tables held when the plan was made. So plans are generic, and may only
// use nested loops over index scans. Four forms in the statements help, and mean the same everywhere:
//
//   - q.id BETWEEN x.id AND x.id joins a table that grows. With q.id = x.id Postgres may scan the whole index in order: on a
//     table that was empty when it was analyzed, that seems to cost as little.
//   - q.id = ANY (ARRAY[x.id]) does the same where the index has more columns; it costs a little more.
//   - q.id = ANY (ARRAY(SELECT x.id ...)) finds the rows of a large batch. For each row of x, BETWEEN seems to find a part of the table.
//     Where that has 20,000,000 rows, and x seems to have thousands, to read all of it seems to cost less.
//   - OFFSET 0 keeps a subquery apart from the statement around it. The subquery is then planned by its own conditions, and
//     runs once for each outer row.
//
// Times add up alike in every zone. Postgres ends a transaction whose process is frozen, for it holds locks. What is committed
// is durable, whatever the server's default: a crash must not forget a start.
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

// Connect returns a pool made from another's configuration, whose sessions have [Settings], without which calls take ten times
// as long, and which has at least so many connections; or the pool, if it has all of it. A pooler in transaction mode passes
// no settings on but the encoding: there the role must have them. end closes a pool that Connect made.
func Connect(ctx context.Context, pool *pgxpool.Pool, names schema.Names, atLeast int32) (db schema.DB, end func(), err error) {
	config := pool.Config() // a copy
	params, wanted := config.ConnConfig.RuntimeParams, Settings()
	if params["application_name"] != "" {
		delete(wanted, "application_name")
	}
	if config.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		wanted = map[string]string{"client_encoding": wanted["client_encoding"]}
	}
	maps.DeleteFunc(wanted, func(name, value string) bool { return params[name] == value })
	if len(wanted) == 0 && config.MaxConns >= atLeast {
		return names.In(pool), func() {}, nil
	}
	maps.Copy(params, wanted)
	config.MaxConns = max(config.MaxConns, atLeast)
	own, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	return names.In(own), func() {
		closed := make(chan struct{})
		go func() { own.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(2 * time.Second): // a silent Postgres may hold connections
		}
	}, nil
}

// DB runs statements: a pool, a connection or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Beginner is a DB that can begin a transaction, or within one, a savepoint.
type Beginner interface {
	DB
	Begin(ctx context.Context) (pgx.Tx, error)
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

// sparse is a column that is NULL in most rows; nil where it is in all.
func sparse[R, F any](rows []R, of func(R) *F) []*F {
	fields := column(rows, of)
	for _, f := range fields {
		if f != nil {
			return fields
		}
	}
	return nil
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

// onFree runs a statement on those entries whose attempts no other transaction has locked, nor, with calls, their calls. It returns the
// calls of the others.
func onFree[R any](
	ctx context.Context, db schema.DB, calls bool, list []R, id func(R) int64, run func(pgx.Tx, []R) error,
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
    SELECT call_id FROM callq.call_open WHERE call_id = ANY($1::bigint[]) ORDER BY call_id FOR UPDATE SKIP LOCKED
), calls AS MATERIALIZED (SELECT id FROM public.call_queue WHERE $2 AND id = ANY($1::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
SELECT DISTINCT a.id
FROM unnest($1::bigint[]) AS a (id)
WHERE a.id NOT IN (SELECT call_id FROM open) AND EXISTS (SELECT FROM callq.call_open o WHERE o.call_id BETWEEN a.id AND a.id)
   OR $2 AND a.id NOT IN (SELECT id FROM calls) AND EXISTS (SELECT FROM public.call_queue q WHERE q.id BETWEEN a.id AND a.id)`

// ErrBusy: another transaction has locked the row of a call or of its attempt. Try again, apart from others.
var ErrBusy = errors.New("another transaction holds the call's row")

// Busy reports whether a statement gave up waiting for a lock.
func Busy(err error) bool { return hasCode(err, "55P03") } // lock_not_available

// BadData reports whether a statement failed because of a value in one of its rows, which Postgres does not take, which is too
// large for it, or which is corrupt where it is stored.
func BadData(err error) bool { return hasCode(err, "22", "54", "XX001") }

// Spoiled reports whether a statement may succeed without one of its rows, which has bad data, or breaks a trigger or constraint
// that somebody added.
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

// Wrap adds to an error what was being done; nil stays nil.
func Wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
