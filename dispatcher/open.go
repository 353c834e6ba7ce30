package dispatcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// openLimits opens limits that are shut because their usage is not yet known: new ones, and those
// that were given a longer window, another queue or another form. What their queues sent before is
// counted from the ledger, once every attempt has closed that is not charged to the limit as it is now.
func (d *Dispatcher) openLimits(ctx context.Context) (int, error) {
	rows, err := d.cfg.Pool.Query(ctx, shutLimitsSQL)
	if err != nil {
		return 0, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	opened := 0
	for _, name := range names {
		done, err := d.openLimit(ctx, name)
		if err != nil {
			return opened, fmt.Errorf("count what %q has used: %w", name, err)
		}
		if done {
			opened++
		}
	}
	return opened, nil
}

const shutLimitsSQL = `SELECT name FROM call_limits WHERE complete_since IS NULL AND cardinality(queues) > 0 ORDER BY name`

// openLimit replaces the limit's usage by what the ledger says, in one snapshot: an attempt that
// closes meanwhile is in neither or charges it afterwards.
func (d *Dispatcher) openLimit(ctx context.Context, name string) (bool, error) {
	gained := d.gains.All() // ever: where the clock was set forward, windows reach back further
	open := false
	err := pgx.BeginTxFunc(ctx, d.cfg.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, mayOpenSQL, name).Scan(&open); err != nil || !open {
			return err
		}
		if _, err := tx.Exec(ctx, forgetUsageSQL, name); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, countUsageSQL, name, gained); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, openLimitSQL, name)
		return err
	})
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if errors.Is(err, pgx.ErrNoRows) || ok && (pg.Code == "40001" || pg.Code == "40P01") {
		return false, nil // another dispatcher opened it, or usage moved: the next tick tries again
	}
	return open && err == nil, err
}

// What is open must be charged to the limit as the limit counts now, or close before: claims would not
// find it, neither open nor charged.
const mayOpenSQL = `
SELECT NOT EXISTS (
        SELECT 1 FROM call_open o
        WHERE (o.queue = ANY(l.queues) OR o.limits @> ARRAY[l.name]) AND NOT EXISTS (
            SELECT 1 FROM unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
            WHERE u.name = l.name AND u.key = CASE WHEN l.per_key THEN o.key ELSE '' END
              AND u.cost = CASE WHEN l.count_cost THEN o.cost ELSE 1 END))
FROM call_limits l
WHERE l.name = $1 AND l.complete_since IS NULL
FOR NO KEY UPDATE`

const forgetUsageSQL = `DELETE FROM call_usage WHERE limit_name = $1`

// Attempts that were charged to the limit count until then, those of its queues that were not until
// the bound in the ledger; with which key, and whether by what they cost, the limit says now. Shard 0 is no
// connection's.
// Nothing in the ledger still runs, so a concurrency limit begins with none.
const countUsageSQL = `
INSERT INTO call_usage (limit_name, key, bucket, shard, used)
SELECT l.name, CASE WHEN l.per_key THEN a.key ELSE '' END,
    date_bin(coalesce(l.bucket_width, l.window_size / 200), coalesce(c.until, a.arrived_by), 'epoch') + coalesce(l.bucket_width, l.window_size / 200),
    0, sum(CASE WHEN l.count_cost THEN coalesce(a.settled, a.cost) ELSE 1 END)
FROM call_limits l
JOIN call_attempts a ON a.arrived_by > clock_timestamp() - l.window_size * 1.01 - $2::interval
LEFT JOIN LATERAL (
    SELECT r.until
    FROM jsonb_to_recordset(a.charged) AS r ("limit" text, until timestamptz)
    WHERE r."limit" = l.name
) c ON true
WHERE l.name = $1 AND l.window_size > '0' AND (a.queue = ANY(l.queues) OR c.until IS NOT NULL)
GROUP BY 1, 2, 3`

// Retention marks up to where it may have cut the ledger: what is missing from it had arrived by then.
const openLimitSQL = `
UPDATE call_limits
SET complete_since = clock_timestamp(), known_at = NULL,
    missing_until = greatest(missing_until, (SELECT at FROM call_marks WHERE name = 'ledger'))
WHERE name = $1`
