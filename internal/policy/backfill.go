package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Backfill opens limits that are closed because their usage is not known yet: new ones, and those that got a longer
// window, another queue or another form. It counts what their queues sent before from the ledger, once every attempt has
// closed that is not charged to the limit as it is now. Windows reach back further by gained, what Postgres's clock ever gained.
func Backfill(ctx context.Context, pool schema.DB, gained time.Duration) (opened int, err error) {
	names, err := collect(ctx, pool, pgx.RowTo[string], UncountedSQL)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		done, err := backfill(ctx, pool, name, gained)
		if err != nil {
			return opened, fmt.Errorf("count what %q has used: %w", name, err)
		}
		if done {
			opened++
		}
	}
	return opened, nil
}

// UncountedSQL names the limits that Backfill counts. Some may have to stay closed.
const UncountedSQL = `SELECT name FROM callq.call_limits WHERE complete_since IS NULL AND cardinality(queues) > 0 ORDER BY name`

// backfill replaces the limit's usage by the ledger's, in one snapshot. An attempt that closes meanwhile is in
// neither, or charges the limit afterwards.
func backfill(ctx context.Context, pool schema.DB, name string, gained time.Duration) (bool, error) {
	open := false
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, mayOpenSQL, name).Scan(&open); err != nil || !open {
			return err
		}
		var batch pgx.Batch
		batch.Queue(`DELETE FROM callq.call_usage WHERE limit_name = $1`, name)
		batch.Queue(countUsageSQL, name, gained)
		batch.Queue(openLimitSQL, name)
		return tx.SendBatch(ctx, &batch).Close()
	})
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if errors.Is(err, pgx.ErrNoRows) || ok && (pg.Code == "40001" || pg.Code == "40P01") {
		return false, nil // another dispatcher opened it, or usage moved: the next tick tries again
	}
	return open && err == nil, err
}

// Every open attempt of the limit's queues must be charged to the limit as it counts now, or close first. Else claims
// would find it neither open nor charged.
const mayOpenSQL = `
SELECT NOT EXISTS (
        SELECT 1 FROM callq.call_open o
        WHERE (o.queue = ANY(l.queues) OR o.limits @> ARRAY[l.name]) AND NOT EXISTS (
            SELECT 1 FROM unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
            WHERE u.name = l.name AND u.key = CASE WHEN l.per_key THEN o.key ELSE '' END
              AND u.cost = CASE WHEN l.count_cost THEN o.cost ELSE 1 END))
FROM callq.call_limits l
WHERE l.name = $1 AND l.complete_since IS NULL
FOR NO KEY UPDATE`

// Attempts that were charged to the limit count until then; others of its queues count until the bound in the ledger.
// The limit as it is now decides with which key, and whether by cost. Shard 0 belongs to no connection. Nothing in the
// ledger still runs, so a concurrency limit begins with no usage, but for requests that are in doubt (ledger.Prove). Those
// that were not charged to the limit count for arrive_within.
const countUsageSQL = `
INSERT INTO callq.call_usage (limit_name, key, bucket, shard, used)
SELECT l.name, CASE WHEN l.per_key THEN a.key ELSE '' END,
    CASE WHEN c.until = ` + limit.UnknownSQL + ` THEN c.until ELSE date_bin(l.bucket_width, coalesce(c.until, ` + arrivedBySQL + `), 'epoch') + l.bucket_width END, 0,
    sum(CASE WHEN l.count_cost THEN coalesce(a.settled, a.cost) ELSE 1 END)
FROM callq.call_limits l
JOIN public.call_attempts a ON a.arrived_by > clock_timestamp() - l.window_size * 1.01 - $2::interval
LEFT JOIN LATERAL (
    SELECT r.until
    FROM jsonb_to_recordset(a.charged) AS r ("limit" text, until timestamptz)
    WHERE r."limit" = l.name
) c ON true
WHERE l.name = $1 AND (l.window_size > '0' OR c.until = ` + limit.UnknownSQL + `) AND (a.queue = ANY(l.queues) OR c.until IS NOT NULL)
GROUP BY 1, 2, 3`

// arrivedBySQL is until when an attempt a counts for a limit l that it was not charged to.
const arrivedBySQL = `CASE WHEN a.arrived_by < ` + limit.UnknownSQL + ` THEN a.arrived_by ELSE a.finished_at + l.arrive_within END`

// Retention marks up to where it may have cut the ledger: what it removed had arrived by then.
const openLimitSQL = `
UPDATE callq.call_limits
SET complete_since = clock_timestamp(), known_at = NULL,
    missing_until = greatest(missing_until, (SELECT at FROM callq.call_meta WHERE name = 'ledger'))
WHERE name = $1`
