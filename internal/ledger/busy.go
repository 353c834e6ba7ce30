package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Busy says whether a statement gave up since somebody else held one of its rows: an open transaction.
func Busy(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "55P03" // lock_not_available
}

// Reason is what Postgres said of an error, without the code: fit for a row that users read.
func Reason(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Message
	}
	return err.Error()
}

// ErrBusy says that somebody else holds the row of a call or of its attempt.
var ErrBusy = errors.New("another transaction holds the call's row")

// Transactor begins transactions: a pool or a connection.
type Transactor interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// CloseFree is Close for attempts whose rows nobody else holds. It waits for none; busy are the ids of the calls
// that it left.
func CloseFree(ctx context.Context, db Transactor, closings []Closing) (closed, busy []int64, err error) {
	ids := column(closings, func(c Closing) int64 { return c.CallID })
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		if busy, err = queryIDs(ctx, tx, busySQL, ids); err != nil {
			return fmt.Errorf("lock what is free: %w", err)
		}
		free := slices.DeleteFunc(slices.Clone(closings), func(c Closing) bool { return slices.Contains(busy, c.CallID) })
		if len(free) > 0 {
			closed, err = Close(ctx, tx, free)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return closed, busy, nil
}

// StartFree is Start for attempts whose rows nobody else holds. It waits for none: the answers of the others are Busy.
func StartFree(ctx context.Context, db Transactor, worker string, requests []StartRequest) (answers []StartAnswer, err error) {
	ids := column(requests, func(r StartRequest) int64 { return r.CallID })
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		busy, err := queryIDs(ctx, tx, busyOpenSQL, ids)
		if err != nil {
			return fmt.Errorf("lock what is free: %w", err)
		}
		held := func(r StartRequest) bool { return slices.Contains(busy, r.CallID) }
		started, err := Start(ctx, tx, worker, slices.DeleteFunc(slices.Clone(requests), held))
		for _, r := range requests {
			switch {
			case err != nil:
			case held(r):
				answers = append(answers, StartAnswer{CallID: r.CallID, Token: r.Token, Busy: true})
			default:
				answers, started = append(answers, started[0]), started[1:]
			}
		}
		return err
	})
	return answers, err
}

const busyOpenSQL = `
WITH open AS MATERIALIZED (
    SELECT call_id FROM call_open WHERE call_id = ANY($1::bigint[]) ORDER BY call_id FOR NO KEY UPDATE SKIP LOCKED
)
SELECT DISTINCT a.id
FROM unnest($1::bigint[]) AS a (id)
WHERE a.id NOT IN (SELECT call_id FROM open) AND EXISTS (SELECT FROM call_open o WHERE o.call_id BETWEEN a.id AND a.id)`

// busySQL locks the rows that are free, for the transaction, and returns the others.
const busySQL = `
WITH open AS MATERIALIZED (
    SELECT call_id FROM call_open WHERE call_id = ANY($1::bigint[]) ORDER BY call_id FOR UPDATE SKIP LOCKED
), calls AS MATERIALIZED (
    SELECT id FROM call_queue WHERE id = ANY($1::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
SELECT DISTINCT a.id
FROM unnest($1::bigint[]) AS a (id)
WHERE a.id NOT IN (SELECT call_id FROM open) AND EXISTS (SELECT FROM call_open o WHERE o.call_id BETWEEN a.id AND a.id)
   OR a.id NOT IN (SELECT id FROM calls) AND EXISTS (SELECT FROM call_queue q WHERE q.id BETWEEN a.id AND a.id)`
