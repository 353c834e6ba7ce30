package dispatcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// errRequeued: somebody had a call wait again, by hand, that has an open attempt. No other can be opened, nor
// any of those that would be claimed with it.
var errRequeued = errors.New("a call has an open attempt and waits all the same")

// requeued has such calls be dispatched again, as they are: what becomes of them their attempts will say.
// The claim that met them ends: it has locked them.
func (d *Dispatcher) requeued(ctx context.Context, tx pgx.Tx) error {
	if err := tx.Rollback(ctx); err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	rows, err := d.cfg.Pool.Query(ctx, requeuedSQL)
	if err != nil {
		return fmt.Errorf("put back what has an open attempt: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("put back what has an open attempt: %w", err)
	}
	d.log.WarnContext(ctx, "calls were set to wait though an attempt of theirs is open: they are dispatched again", "calls", ids)
	return nil
}

// The open attempts are locked before their calls, as whatever closes them does: one that has gone is left alone.
const requeuedSQL = `
WITH open AS MATERIALIZED (
    SELECT call_id, attempt
    FROM call_open
    WHERE call_id = ANY (ARRAY(
        SELECT o.call_id FROM call_open o JOIN call_queue q ON q.id BETWEEN o.call_id AND o.call_id WHERE q.status IN ('new', 'error')))
    ORDER BY call_id
    FOR UPDATE
)
UPDATE call_queue q
SET status = 'dispatched', attempts = o.attempt
FROM open o
WHERE q.id BETWEEN o.call_id AND o.call_id AND q.status IN ('new', 'error')
RETURNING q.id`
