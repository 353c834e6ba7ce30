package recovery

import (
	"context"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// expire fails calls whose time has passed before they were claimed.
func (r *Recoverer) expire(ctx context.Context, _ View) (int, error) {
	began := r.Now()
	whole := !began.Before(r.expireAfter)
	var since *time.Duration
	if !whole {
		since = new(expireBehind)
	}
	n, err := r.expireSome(ctx, since, nil)
	if ledger.Spoiled(err) {
		n, err = r.expireApart(ctx, since)
	}
	if now := r.Now(); whole && err == nil && n < passSize {
		r.expireAfter = now.Add(expireRest * now.Sub(began))
	}
	return n, err
}

// expireSome fails the first that have expired, or of these those that have.
func (r *Recoverer) expireSome(ctx context.Context, since *time.Duration, ids []int64) (int, error) {
	tag, err := r.Pool.Exec(ctx, expireSQL, since, passSize, r.isolated.at(r.Now()), ids)
	return int(tag.RowsAffected()), err
}

// expireApart is expire if a call's row spoils it: that one is isolated.
func (r *Recoverer) expireApart(ctx context.Context, since *time.Duration) (int, error) {
	rows, err := r.Pool.Query(ctx, lateSQL, since, passSize, r.isolated.at(r.Now()), nil)
	if err != nil {
		return 0, err
	}
	late, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return 0, err
	}
	expired := 0
	err = ledger.Apart(late, func(ids []int64) error {
		n, err := r.expireSome(ctx, since, ids)
		expired += n
		return err
	}, func(id int64, err error) { r.isolate(ctx, id, err) })
	return expired, err
}

// Calls that ended before they expired stay in the index until retention removes them. So a pass mostly goes back only a
// little. It goes through the whole index for at most one part in expireRest of the time.
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

// A queue name that is too long for an index, from before such were refused, is cut: no call of that queue can be made.
const expireSQL = `
WITH late AS MATERIALIZED (` + lateSQL + `
FOR UPDATE SKIP LOCKED
)
UPDATE call_queue q
SET status = 'failed', error_message = 'expired: not sent by ' || q.expires_at, unique_key = NULL, queue = ` + ledger.CutQueueSQL + `,
    finished_at = clock_timestamp(), failed_at = clock_timestamp()
FROM late
WHERE q.id BETWEEN late.id AND late.id AND q.status IN ('new', 'error')`

const expiredCountSQL = `
SELECT count(*) FROM call_queue WHERE expires_at <= (SELECT clock_timestamp()) AND status IN ('new', 'error')`
