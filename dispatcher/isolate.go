package dispatcher

import (
	"context"
	"slices"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pools"
	"github.com/jackc/pgx/v5"
)

// refuse fails calls that can never be made as they are. They get no attempt and use no unit.
func (b *batch) refuse(writes *pgx.Batch) {
	if len(b.refused) == 0 {
		return
	}
	sql, args := refusing(b.refused)
	writes.Queue(sql, args...)
}

func refusing(calls []candidate) (sql string, args []any) {
	ids, reasons := make([]int64, len(calls)), make([]string, len(calls))
	for i, c := range calls {
		ids[i], reasons[i] = c.ID, *c.Refusal
	}
	return refuseSQL, []any{ids, reasons}
}

const refuseSQL = `
UPDATE call_queue q
SET status = 'failed', error_message = r.reason, unique_key = NULL, queue = ` + ledger.CutQueueSQL + `,
    finished_at = clock_timestamp(), failed_at = clock_timestamp()
FROM unnest($1::bigint[], $2::text[]) AS r (id, reason)
WHERE q.id BETWEEN r.id AND r.id AND q.status IN ('new', 'error')`

// tried runs part under a savepoint. It undoes part if that fails or is only a trial.
func tried(ctx context.Context, tx pgx.Tx, trial bool, part func(pgx.Tx) error) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if err := part(inner); err != nil || trial {
		if undone := inner.Rollback(ctx); undone != nil {
			return undone
		}
		return err
	}
	return inner.Commit(ctx)
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
		return tried(ctx, tx, false, func(tx pgx.Tx) error { return backlog.Read(ctx, tx, maxData, some...) })
	}, func(c *backlog.Call, err error) {
		c.Refusal, c.Unread = new("call_data cannot be read: "+ledger.Reason(err)), false
	})
}

// tryEach finds the calls whose rows cannot be dispatched, and fails them with the reason. It drops calls whose rows cannot even be
// failed: they are consumed from their flows, so that they stop no other, and the log has the reason.
func (c *claimer) tryEach(ctx context.Context, tx pgx.Tx, s *selection) error {
	log := c.cfg.Logger
	try := func(statement func([]candidate) (string, []any)) func([]candidate) error {
		return func(some []candidate) error {
			return tried(ctx, tx, true, func(tx pgx.Tx) error {
				sql, args := statement(some)
				_, err := tx.Exec(ctx, sql, args...)
				return err
			})
		}
	}
	bad := map[int64]bool{}
	if err := ledger.Apart(s.chosen, try(dispatching), func(c candidate, err error) {
		bad[c.ID] = true
		c.Refusal = new("cannot be dispatched: " + ledger.Reason(err))
		s.refused = append(s.refused, c)
	}); err != nil {
		return err
	}
	good := s.chosen[:0:0]
	var to []*pools.Pool
	for i, call := range s.chosen {
		if !bad[call.ID] {
			good, to = append(good, call), append(to, s.to[i])
		}
	}
	s.chosen, s.to = good, to
	clear(bad)
	if err := ledger.Apart(s.refused, try(refusing), func(c candidate, err error) {
		bad[c.ID] = true
		log.ErrorContext(ctx, "call isolated", "call", c.ID, "why", *c.Refusal, "err", err)
	}); err != nil {
		return err
	}
	s.refused = slices.DeleteFunc(s.refused, func(c candidate) bool { return bad[c.ID] })
	return nil
}

func dispatching(calls []candidate) (string, []any) {
	ids := make([]int64, len(calls))
	for i, c := range calls {
		ids[i] = c.ID
	}
	return dispatchingSQL, []any{ids}
}

// dispatchingSQL does to the calls what openSQL does.
const dispatchingSQL = `
UPDATE call_queue q
SET status = 'dispatched', attempts = q.attempts + 1, dispatched_at = clock_timestamp()
FROM unnest($1::bigint[]) AS p (id)
WHERE q.id BETWEEN p.id AND p.id AND q.status IN ('new', 'error')`
