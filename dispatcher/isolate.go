package dispatcher

import (
	"context"
	"errors"
	"slices"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// refuseSQL fails calls that can never be made as they are. They get no attempt and use no unit.
const refuseSQL = `
UPDATE call_queue q
SET status = 'failed', error_message = r.reason, unique_key = NULL,
    finished_at = clock_timestamp(), failed_at = clock_timestamp()
FROM unnest(@ids::bigint[], @reasons::text[]) AS r (id, reason)
WHERE q.id BETWEEN r.id AND r.id AND q.status IN ('new', 'error')`

// idsAndReasons are the arguments of refuseSQL and dispatchingSQL.
func idsAndReasons(calls []candidate) pgx.NamedArgs {
	ids, reasons := make([]int64, len(calls)), make([]*string, len(calls))
	for i, c := range calls {
		ids[i], reasons[i] = c.ID, c.Refusal
	}
	return pgx.NamedArgs{"ids": ids, "reasons": reasons}
}

// readEach reads the call_data of unread calls, and refuses those whose data cannot be read.
func readEach(ctx context.Context, tx pgx.Tx, maxData int64, calls []backlog.Call) error {
	var unread []*backlog.Call
	for i := range calls {
		if calls[i].Unread {
			unread = append(unread, &calls[i])
		}
	}
	return ledger.Apart(unread, func(some []*backlog.Call) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return backlog.Read(ctx, tx, maxData, some...) })
	}, func(c *backlog.Call, err error) {
		c.Refusal, c.Unread = new("call_data cannot be read: "+ledger.Reason(err)), false
	})
}

// tryEach finds the calls whose rows cannot be dispatched, and fails them with the reason. It drops those that cannot even be
// failed: they are consumed from their flows, so that they stop no other, and the log has the reason.
func (c *claimer) tryEach(ctx context.Context, tx pgx.Tx, s *selection) error {
	var err error
	s.chosen, err = trial(ctx, tx, s.chosen, dispatchingSQL, func(bad candidate, err error) {
		bad.Refusal = new("cannot be dispatched: " + ledger.Reason(err))
		s.refused = append(s.refused, bad)
	})
	if err != nil {
		return err
	}
	s.refused, err = trial(ctx, tx, s.refused, refuseSQL, func(bad candidate, err error) {
		c.cfg.Logger.ErrorContext(ctx, "call isolated", "call", bad.ID, "why", *bad.Refusal, "err", err)
	})
	return err
}

// trial returns those of the calls to which a statement can be applied, and undoes it. It gives the others to found.
func trial(
	ctx context.Context, tx pgx.Tx, calls []candidate, sql string, found func(candidate, error),
) ([]candidate, error) {
	bad := map[int64]bool{}
	err := ledger.Apart(calls, func(some []candidate) error {
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		_, err = savepoint.Exec(ctx, sql, idsAndReasons(some))
		return errors.Join(err, savepoint.Rollback(ctx))
	}, func(c candidate, err error) {
		bad[c.ID] = true
		found(c, err)
	})
	return slices.DeleteFunc(calls, func(c candidate) bool { return bad[c.ID] }), err
}

// dispatchingSQL does to the calls what openSQL does.
const dispatchingSQL = `
UPDATE call_queue q
SET status = 'dispatched', attempts = q.attempts + 1, dispatched_at = clock_timestamp()
FROM unnest(@ids::bigint[]) AS p (id)
WHERE q.id BETWEEN p.id AND p.id AND q.status IN ('new', 'error')`
