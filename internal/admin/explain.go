package admin

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/policy"
)

// Why is a call with the reasons for its state.
type Why struct {
	ID      int64            `json:"id"`
	Queue   string           `json:"queue"`
	Task    string           `json:"task"`
	Key     string           `json:"key"`
	Status  callqueue.Status `json:"status"`
	Running bool             `json:"running"`
	At      time.Time        `json:"at"` // Postgres's clock
	Reasons []Reason         `json:"reasons"`
}

// Explain says why a call is in its state: what it waits for, or how it ended.
func Explain(ctx context.Context, pool *pgxpool.Pool, call *callqueue.Record) (Why, error) {
	c := circumstances{call: call}
	err := InSnapshot(ctx, pool, func(tx pgx.Tx) error { return c.read(ctx, tx) })
	if err != nil {
		return Why{}, err
	}
	return Why{call.ID, call.Queue, call.Task, call.Key, call.Status, call.Running, c.now, c.reasons()}, nil
}

// read reads the circumstances of the call by primary keys.
func (c *circumstances) read(ctx context.Context, db pgx.Tx) error {
	var err error
	if c.now, err = begin(ctx, db); err != nil {
		return err
	}
	if c.open, err = collectOne[openRow](ctx, db, "read the open attempt", openSQL, c.call.ID); err != nil {
		return err
	}
	if c.queue, err = collectOne[ruleRow](ctx, db, "read the queue", ruleSQL, c.call.Queue); err != nil {
		return err
	}
	label, limits := "", []string{}
	if c.queue != nil {
		label, limits = c.queue.On, append(limits, c.queue.Limits...)
	}
	c.pauses, err = collect[callPause](ctx, db, "read pauses", callPausesSQL, c.call.Key, c.call.Queue, limits)
	if err != nil {
		return err
	}
	if c.limits, err = readLimitsFor(ctx, db, limits, &c.call.Key); err != nil {
		return err
	}
	workers, err := collectOne[workforce](ctx, db, "read workers", workforceSQL, c.call.Task, label)
	if err != nil {
		return err
	}
	c.workers = *workers
	live, _, err := policy.Dispatchers(ctx, db)
	c.dispatchers = len(live)
	return err
}

const openSQL = `
SELECT attempt, handed_at, start_by, started_at, deadline, pool, worker,
    (SELECT count(*) FROM call_workers w
     WHERE w.pool = o.pool AND callq_alive(w.heartbeat_at)) AS takers,
    (SELECT coalesce(sum(w.slots), 0) FROM call_workers w
     WHERE w.pool = o.pool AND callq_alive(w.heartbeat_at)) AS slots
FROM call_open o
WHERE call_id = $1`

const ruleSQL = `SELECT limits, label, hours FROM call_queues WHERE name = $1`

// The pause of a whole limit is part of the limit's state.
const callPausesSQL = `
SELECT what, name, key, nullif(until, 'infinity') AS until, reason, by
FROM call_pauses
WHERE until > clock_timestamp()
  AND (what = 'queue' AND name = $2 AND key IN ('', $1) OR what = 'limit' AND name = ANY($3) AND key = $1 AND key <> '')
ORDER BY what DESC, name, key`

const workforceSQL = `
WITH handle AS (
    SELECT id, slots, $2::text = '' OR $2 = ANY(labels) AS fits
    FROM call_workers
    WHERE callq_alive(heartbeat_at) AND $1::text = ANY(tasks)
)
SELECT count(*) AS handle, count(*) FILTER (WHERE fits) AS fit, coalesce(sum(slots) FILTER (WHERE fits), 0) AS slots,
    (SELECT count(*) FROM call_open o JOIN handle h ON h.id = o.worker
     WHERE h.fits AND o.started_at IS NOT NULL) AS running
FROM handle`
