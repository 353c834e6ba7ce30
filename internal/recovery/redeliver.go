package recovery

import (
	"context"
	"slices"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pools"
	"github.com/jackc/pgx/v5"
)

// handed is a message whose attempts have waited too long for a start.
type handed struct {
	Pool         string  `db:"pool"`
	Task         string  `db:"task"`
	On           string  `db:"label"`
	Epoch        string  `db:"epoch"`
	Batch        int64   `db:"batch"`
	MessageNo    int32   `db:"message_no"`
	Redeliveries int32   `db:"redeliveries"`
	CallIDs      []int64 `db:"call_ids"`
	Attempts     []int32 `db:"attempts"`
}

// redeliver hands over again what Redis no longer has. The message gets a new id, because the old one may yet turn up. The
// attempts stay the same: a second delivery is harmless. If their pool is gone, they go to another. Runs go back instead (closeUnstarted).
func (r *Recoverer) redeliver(ctx context.Context, v View) (sent int, err error) {
	late, err := r.undelivered(ctx, v)
	if err != nil {
		return 0, err
	}
	var again []handoff.Message
	for _, h := range late {
		message, err := r.readdress(ctx, h)
		if ledger.Busy(err) {
			continue // a later pass comes back to it
		}
		if err != nil {
			return 0, err
		}
		if len(message.Attempts) > 0 { // else another dispatcher was first, or they have started
			again = append(again, message)
			sent += len(message.Attempts)
		}
	}
	return sent, r.Sender.Send(ctx, again...)
}

func (r *Recoverer) countUndelivered(ctx context.Context, v View) (n int64, err error) {
	late, err := r.undelivered(ctx, v)
	for _, h := range late {
		n += int64(len(h.CallIDs))
	}
	return n, err
}

// undelivered are the messages that must be sent again, each with the pool to send it to.
func (r *Recoverer) undelivered(ctx context.Context, v View) ([]handed, error) {
	rows, _ := r.Pool.Query(ctx, handedSQL, v.OpenFrom, redeliverAge)
	late, err := pgx.CollectRows(rows, pgx.RowToStructByName[handed])
	if err != nil || len(late) == 0 {
		return nil, err
	}
	var all *pools.Pools
	var asks pgx.Batch
	new(pools.Reader).Ask(&asks, v.OpenFrom, time.Time{}, &all)
	if err := r.Pool.SendBatch(ctx, &asks).Close(); err != nil {
		return nil, err
	}
	var gone []handed
	inRedis := map[string][]string{} // by pool: the ids of the messages there
	for _, h := range late {
		to := all.On(h.On).For(h.Task, h.Pool)
		if to == h.Pool && inRedis[to] == nil {
			if inRedis[to], err = r.Sender.Pending(ctx, to); err != nil {
				return nil, err
			}
		}
		if to != h.Pool || !slices.Contains(inRedis[to], handoff.ID(h.Epoch, h.Batch, h.MessageNo, h.Redeliveries)) {
			h.Pool = to
			gone = append(gone, h)
		}
	}
	return gone, nil
}

const handedSQL = `
SELECT o.pool, o.task, coalesce(q.label, '') AS label, o.epoch, o.batch, o.message_no, o.redeliveries,
    array_agg(o.call_id) AS call_ids, array_agg(o.attempt) AS attempts
FROM callq.call_open o LEFT JOIN callq.call_queues q ON q.name = o.queue
WHERE o.batch >= $1 AND o.started_at IS NULL AND o.handed_at < clock_timestamp() - $2::interval
  AND o.epoch = (SELECT callq.epoch()) AND o.rooms IS NULL
GROUP BY 1, 2, 3, 4, 5, 6, 7
ORDER BY min(o.handed_at)`

// readdress takes the next redeliveries number, before the message is sent: should the sending fail, a
// later pass does not find the new number in Redis.
func (r *Recoverer) readdress(ctx context.Context, h handed) (handoff.Message, error) {
	rows, _ := r.Pool.Query(ctx, readdressSQL, pgx.StrictNamedArgs{
		"ids": h.CallIDs, "attempts": h.Attempts, "batch": h.Batch, "redeliveries": h.Redeliveries, "pool": h.Pool,
		"wait": limit.AheadMost,
	})
	refs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[handoff.Ref])
	id := handoff.ID(h.Epoch, h.Batch, h.MessageNo, h.Redeliveries+1)
	return handoff.Message{Pool: h.Pool, ID: id, Task: h.Task, Attempts: refs}, err
}

// Each attempt waits as long as any may have to: if Postgres's clock was set forward, it seems to have been handed over long ago.
//
// IS NOT DISTINCT FROM keeps call_open_batch_idx out of the plan: the rows are found by their ids.
const readdressSQL = `
WITH locked AS MATERIALIZED (
    SELECT call_id FROM callq.call_open
    WHERE call_id = ANY(@ids) AND (SELECT set_config('lock_timeout', '100ms', true)) = '100ms'
    ORDER BY call_id FOR UPDATE
)
UPDATE callq.call_open o
SET redeliveries = o.redeliveries + 1, handed_at = clock_timestamp(), pool = @pool
FROM locked l, unnest(@ids::bigint[], @attempts::int[]) AS a (call_id, attempt)
WHERE o.call_id BETWEEN l.call_id AND l.call_id AND a.call_id = l.call_id AND o.attempt = a.attempt
  AND o.batch IS NOT DISTINCT FROM @batch AND o.redeliveries = @redeliveries AND o.started_at IS NULL
RETURNING o.call_id, o.attempt, @wait::interval`
