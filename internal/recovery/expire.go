package recovery

import (
	"context"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// expire fails calls whose time has passed before they were claimed. One that errs is isolated.
func (r *Recoverer) expire(ctx context.Context, _ View) (n int, err error) {
	began := r.Now()
	whole := !began.Before(r.expireAfter)
	var since *time.Duration
	if !whole {
		since = new(expireBehind)
	}
	rows, _ := r.Pool.Query(ctx, lateSQL, since, passSize, r.leftAlone())
	late, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return 0, err
	}
	err = ledger.Apart(late, func(ids []int64) error {
		tag, err := r.Pool.Exec(ctx, expireSQL, ids)
		n += int(tag.RowsAffected())
		return err
	}, func(id int64, err error) { r.isolate(ctx, id, err) })
	if now := r.Now(); whole && err == nil && len(late) < passSize {
		r.expireAfter = now.Add(expireRest * now.Sub(began))
	}
	return n, err
}

// Calls that ended before they expired stay in the index until retention removes them. So a pass mostly goes back only a
// little. It goes through the whole index for at most one part in expireRest of the time.
const (
	expireBehind = 5 * time.Minute
	expireRest   = 1000
)

// lateSQL finds calls that have expired, except those of $3. It locks them, for a moment, to leave out what others hold.
const lateSQL = `
SELECT id FROM public.call_queue
WHERE expires_at <= (SELECT clock_timestamp()) AND expires_at >= coalesce((SELECT clock_timestamp() - $1::interval), '-infinity')
  AND status IN ('new', 'error') AND id <> ALL($3::bigint[])
ORDER BY expires_at
LIMIT $2
FOR UPDATE SKIP LOCKED`

const expireSQL = `
WITH late AS MATERIALIZED (
    SELECT id, status, expires_at FROM public.call_queue WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE SKIP LOCKED
)
UPDATE public.call_queue q
SET status = 'failed', error_message = 'expired: not sent by ' || q.expires_at, unique_key = NULL, ended_key = unique_key,
    finished_at = clock_timestamp(), failed_at = clock_timestamp()
FROM late
WHERE q.id BETWEEN late.id AND late.id AND late.status IN ('new', 'error') AND late.expires_at <= clock_timestamp()`

const expiredCountSQL = `
SELECT count(*) FROM public.call_queue WHERE expires_at <= (SELECT clock_timestamp()) AND status IN ('new', 'error')`
