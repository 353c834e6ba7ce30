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
// The claim that met them ends: it has locked them. One whose attempt's row somebody holds comes back in a second.
func (d *Dispatcher) requeued(ctx context.Context, tx pgx.Tx) error {
	if err := tx.Rollback(ctx); err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	rows, err := d.cfg.Pool.Query(ctx, requeuedSQL)
	if err != nil {
		return fmt.Errorf("put back what has an open attempt: %w", err)
	}
	var back, held []int64
	var id int64
	var locked bool
	if _, err := pgx.ForEachRow(rows, []any{&id, &locked}, func() error {
		if locked {
			back = append(back, id)
		} else {
			held = append(held, id)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("put back what has an open attempt: %w", err)
	}
	d.log.WarnContext(ctx, "calls were set to wait though an attempt of theirs is open: they are dispatched again", "calls", back, "held", held)
	return nil
}

// It waits for no row. An attempt that has gone is left alone.
const requeuedSQL = `
WITH astray AS MATERIALIZED (
    SELECT q.id FROM call_open o JOIN call_queue q ON q.id BETWEEN o.call_id AND o.call_id WHERE q.status IN ('new', 'error')
), open AS MATERIALIZED (
    SELECT call_id, attempt FROM call_open WHERE call_id = ANY (ARRAY(SELECT id FROM astray)) ORDER BY call_id FOR UPDATE SKIP LOCKED
), calls AS MATERIALIZED (
    SELECT id FROM call_queue WHERE id = ANY (ARRAY(SELECT id FROM astray)) AND status IN ('new', 'error') ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE call_queue q
SET status = CASE WHEN c.attempt IS NULL THEN q.status ELSE 'dispatched' END,
    attempts = coalesce(c.attempt, q.attempts),
    run_at = CASE WHEN c.attempt IS NULL THEN clock_timestamp() + interval '1 second' ELSE q.run_at END
FROM (SELECT id, (SELECT attempt FROM open WHERE call_id = id) AS attempt FROM calls) c
WHERE q.id BETWEEN c.id AND c.id
RETURNING q.id, c.attempt IS NOT NULL`
