package dispatcher

import (
	"context"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// expire fails calls whose time has passed before they were claimed.
func (d *Dispatcher) expire(ctx context.Context) (int, error) {
	began := d.cfg.Now()
	whole := !began.Before(d.expiredRest)
	var since *time.Duration
	if !whole {
		since = new(expireBehind)
	}
	n, err := d.expireSome(ctx, since, nil)
	if ledger.Spoiled(err) {
		n, err = d.expireApart(ctx, since)
	}
	if now := d.cfg.Now(); whole && err == nil && n < sweepMost {
		d.expiredRest = now.Add(expireRest * now.Sub(began))
	}
	return n, err
}

// expireSome fails the first that have expired, or of these those that have.
func (d *Dispatcher) expireSome(ctx context.Context, since *time.Duration, ids []int64) (int, error) {
	tag, err := d.cfg.Pool.Exec(ctx, expireSQL, since, sweepMost, d.aside.now(d.cfg.Now()), ids)
	return int(tag.RowsAffected()), err
}

// expireApart is expire where a call's row spoils it: that one is put aside.
func (d *Dispatcher) expireApart(ctx context.Context, since *time.Duration) (int, error) {
	rows, err := d.cfg.Pool.Query(ctx, lateSQL, since, sweepMost, d.aside.now(d.cfg.Now()), nil)
	if err != nil {
		return 0, err
	}
	late, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return 0, err
	}
	expired := 0
	err = ledger.Apart(late, func(ids []int64) error {
		n, err := d.expireSome(ctx, since, ids)
		expired += n
		return err
	}, func(id int64, err error) { d.putAside(ctx, id, err) })
	return expired, err
}

// Calls that ended before they expired stay in the index until they are retired. So a sweep mostly goes
// back a little only; the whole index is gone through at most one part in expireRest of the time.
const (
	expireBehind = 5 * time.Minute
	expireRest   = 1000
)

// lateSQL finds calls that have expired, of those of $4 where it is given, but for those of $3.
const lateSQL = `
SELECT id FROM call_queue
WHERE expires_at <= (SELECT clock_timestamp()) AND expires_at >= coalesce((SELECT clock_timestamp() - $1::interval), '-infinity')
  AND status IN ('new', 'error') AND id <> ALL($3::bigint[]) AND ($4::bigint[] IS NULL OR id = ANY($4))
ORDER BY expires_at
LIMIT $2`

// A queue's name that no index takes in, of a row from before such were refused, is cut: no call of that queue can
// be made.
const expireSQL = `
WITH late AS MATERIALIZED (` + lateSQL + `
FOR UPDATE SKIP LOCKED
)
UPDATE call_queue q
SET status = 'failed', error_message = 'expired: not sent by ' || q.expires_at, unique_key = NULL, queue = ` + cutQueueSQL + `,
    finished_at = clock_timestamp(), failed_at = clock_timestamp()
FROM late
WHERE q.id BETWEEN late.id AND late.id AND q.status IN ('new', 'error')`

const cutQueueSQL = `CASE WHEN octet_length(q.queue) > 255 THEN left(q.queue, 63) ELSE q.queue END`
