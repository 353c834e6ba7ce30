// Package history notes what limits and queues did, minute by minute, so that plots need no other database.
//
// It reads the ledger's last minute, the flows and the pauses: a row a limit and queue, and none where nothing happened.
package history

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// Note notes the last full minute, by Postgres's clock, unless another dispatcher has. waits is the longest that a due call had to wait
// for the next unit of each limit, as this dispatcher's claims saw it since it noted last; the longest of all dispatchers counts. No
// open attempt is of a batch smaller than openFrom.
func Note(ctx context.Context, pool schema.DB, waits map[string]time.Duration, openFrom int64) error {
	var names []string
	var ms []int32
	for name, wait := range waits {
		names, ms = append(names, name), append(ms, int32(min(math.Ceil(wait.Seconds()*1000), math.MaxInt32)))
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var minute time.Time
		if err := tx.QueryRow(ctx, turnSQL).Scan(&minute); errors.Is(err, pgx.ErrNoRows) {
			_, err = tx.Exec(ctx, longerSQL, names, ms)
			return err
		} else if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, settingsSQL); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, limitsSQL, minute, openFrom, names, ms); err != nil {
			return fmt.Errorf("of limits: %w", err)
		}
		if _, err := tx.Exec(ctx, queuesSQL, minute, openFrom); err != nil {
			return fmt.Errorf("of queues: %w", err)
		}
		return nil
	})
	return ledger.Wrap("note the history", err)
}

// turnSQL returns the minute to note, and has other dispatchers wait for this transaction, and then leave it alone. So no minute is
// noted twice; after the clock was set back, limitsSQL and queuesSQL see to that.
const turnSQL = `
INSERT INTO callq.call_meta AS m (name, at) VALUES ('history', date_trunc('minute', clock_timestamp()) - interval '1 minute')
ON CONFLICT (name) DO UPDATE SET at = excluded.at WHERE m.at IS DISTINCT FROM excluded.at
RETURNING at`

// longerSQL adds the waits to a minute that another dispatcher noted.
const longerSQL = `
UPDATE callq.call_limit_history h SET next_unit = w.ms
FROM unnest($1::text[], $2::integer[]) AS w (name, ms)
WHERE h.minute = (SELECT at FROM callq.call_meta WHERE name = 'history') AND h.limit_name = w.name AND (h.next_unit >= w.ms) IS NOT TRUE`

// The sessions' settings suit statements that read few rows by id.
const settingsSQL = `
SELECT set_config('enable_hashjoin', 'on', true), set_config('enable_mergejoin', 'on', true), set_config('enable_bitmapscan', 'on', true),
    set_config('plan_cache_mode', 'force_custom_plan', true), set_config('jit', 'off', true)`

// waitsSQL is how many calls of each queue are due.
const waitsSQL = `
    SELECT queue, sum(calls) AS due
    FROM (
        SELECT queue, calls FROM callq.call_flows WHERE calls > 0
        UNION ALL
        SELECT queue, calls FROM callq.call_inbox WHERE calls > 0 AND at <= clock_timestamp()
    ) b
    GROUP BY queue`

// limitsSQL: what started in the minute has ended since or is open.
const limitsSQL = `
INSERT INTO callq.call_limit_history (limit_name, minute, used, capacity, waiting, refused, next_unit, closed)
WITH waits AS (` + waitsSQL + `
), sent AS (
    SELECT name, sum(units) AS units, sum(refused) AS refused
    FROM (
        SELECT c."limit" AS name, c.cost AS units, (a.outcome = 'refused')::int AS refused
        FROM public.call_attempts a CROSS JOIN LATERAL jsonb_to_recordset(a.charged) AS c ("limit" text, cost bigint)
        WHERE a.finished_at >= $1 AND a.started_at >= $1 AND a.started_at < $1::timestamptz + interval '1 minute'
        UNION ALL
        SELECT u.name, u.cost, 0
        FROM callq.call_open o CROSS JOIN LATERAL unnest(o.limits, o.costs) AS u (name, cost)
        WHERE o.batch >= $2 AND o.started_at >= $1 AND o.started_at < $1::timestamptz + interval '1 minute'
    ) s
    GROUP BY name
), running AS (
    SELECT u.name, sum(u.cost) AS units
    FROM callq.call_open o CROSS JOIN LATERAL unnest(o.limits, o.costs) AS u (name, cost)
    WHERE o.batch >= $2
    GROUP BY 1
), ` + shutSQL + `
SELECT l.name, $1, least(coalesce(CASE l.window_size WHEN '0' THEN r.units ELSE s.units END, 0), 2147483647),
    CASE l.window_size WHEN '0' THEN l.rate
        ELSE l.rate * 60 / extract(epoch FROM CASE WHEN l.shape ? 'burst' THEN (l.shape ->> 'period')::interval ELSE l.window_size END) END,
    nullif(w.due, 0), nullif(s.refused, 0), u.ms, h.causes
FROM callq.call_limits l
LEFT JOIN sent s USING (name)
LEFT JOIN running r USING (name)
LEFT JOIN shut h USING (name)
LEFT JOIN unnest($3::text[], $4::integer[]) AS u (name, ms) USING (name)
LEFT JOIN LATERAL (SELECT least(coalesce(sum(due), 0), 2147483647) AS due FROM waits WHERE queue = ANY (l.queues)) w ON true
WHERE l.queues <> '{}' AND (s.units > 0 OR r.units > 0 OR w.due > 0 OR h.causes IS NOT NULL)
  AND NOT EXISTS (SELECT FROM callq.call_limit_history WHERE minute = $1)`

// queuesSQL: of very many attempts, percentiles are those of a thousand. A call that has had another attempt no longer says when its
// first could be made.
const queuesSQL = `
INSERT INTO callq.call_queue_history (queue, minute, due, started, done, errors, wait_p50, wait_p95, run_p50, run_p95)
WITH waits AS (` + waitsSQL + `
), ended AS MATERIALIZED (
    SELECT queue, call_id, attempt, outcome, started_at, finished_at,
        started_at >= $1 AND started_at < $1::timestamptz + interval '1 minute' AS began,
        finished_at < $1::timestamptz + interval '1 minute' AS over,
        row_number() OVER (PARTITION BY queue) <= 1000 AS picked
    FROM public.call_attempts
    WHERE finished_at >= $1
), did AS (
    SELECT queue, count(*) FILTER (WHERE began) AS started, count(*) FILTER (WHERE over AND outcome = 'done') AS done,
        count(*) FILTER (WHERE over AND outcome IN ('error', 'permanent', 'lost')) AS errors,
        percentile_cont('{0.5,0.95}'::float8[]) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - started_at) * 1000)
            FILTER (WHERE picked AND started_at IS NOT NULL) AS runs
    FROM ended
    GROUP BY queue
), waited AS (
    SELECT e.queue, percentile_cont('{0.5,0.95}'::float8[]) WITHIN GROUP (
        ORDER BY greatest(0, extract(epoch FROM e.started_at - greatest(q.run_at, q.created_at))) * 1000) AS waits
    FROM ended e JOIN public.call_queue q ON q.id = e.call_id
    WHERE e.picked AND e.began AND e.attempt = 1 AND q.attempts = 1 AND isfinite(q.run_at)
    GROUP BY e.queue
), running AS (
    SELECT queue, count(*) AS started FROM callq.call_open
    WHERE batch >= $2 AND started_at >= $1 AND started_at < $1::timestamptz + interval '1 minute'
    GROUP BY queue
)
SELECT queue, $1, least(coalesce(w.due, 0), 2147483647), coalesce(d.started, 0) + coalesce(r.started, 0), coalesce(d.done, 0), coalesce(d.errors, 0),
    v.waits[1], v.waits[2], d.runs[1], d.runs[2]
FROM waits w
FULL JOIN did d USING (queue)
FULL JOIN waited v USING (queue)
FULL JOIN running r USING (queue)
WHERE (w.due > 0 OR d.started > 0 OR r.started > 0 OR d.done > 0 OR d.errors > 0)
  AND NOT EXISTS (SELECT FROM callq.call_queue_history WHERE minute = $1)`
