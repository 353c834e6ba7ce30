package recovery

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// clean removes what no window needs any more: usage, clock gains, and rows of workers and dispatchers that are long gone. A
// longer window is counted anew from the ledger. Then it removes what Asynq archived or holds for workers that died, and the
// Asynq queues of pools without a worker or an attempt.
func (r *Recoverer) clean(ctx context.Context, v View) (int, error) {
	if r.Now().Before(r.cleanAfter) {
		return 0, nil
	}
	r.cleanAfter = r.Now().Add(cleanEvery)
	var batch pgx.Batch
	batch.Queue(cleanUsageSQL, v.Gained)
	batch.Queue(cleanGainsSQL, v.Gained)
	batch.Queue(cleanWorkersSQL)
	batch.Queue(cleanDispatchersSQL)
	if err := r.Pool.SendBatch(ctx, &batch).Close(); err != nil {
		return 0, err
	}
	if !r.Sender.Reachable(ctx) {
		return 0, nil
	}
	rows, err := r.Pool.Query(ctx, poolsSQL)
	if err != nil {
		return 0, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	return r.Sender.Tidy(ctx, names)
}

const poolsSQL = `SELECT pool FROM call_workers UNION SELECT pool FROM call_open`

const cleanUsageSQL = `
DELETE FROM call_usage u
USING call_limits l
WHERE u.limit_name = ANY (ARRAY[l.name])
  AND u.bucket < clock_timestamp() - 2 * l.window_size - interval '1 minute' - $1::interval`

// No window reaches back further, not even one that is made twice as long. verify asks for steps back.
const cleanGainsSQL = `
DELETE FROM call_clock_gains
WHERE at < clock_timestamp() - 2 * (SELECT coalesce(max(window_size), '0') FROM call_limits) - $1::interval
    - CASE WHEN by > '0' THEN interval '1 day' ELSE interval '1 year' END`

const cleanWorkersSQL = `DELETE FROM call_workers WHERE heartbeat_at < clock_timestamp() - interval '1 day'`

// A heartbeat that lies ahead is older than the clock's last step back. A live dispatcher's row is back at its next one.
const cleanDispatchersSQL = `
DELETE FROM call_dispatchers
WHERE heartbeat_at NOT BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute'`
