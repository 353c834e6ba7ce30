package backlog

import (
	"context"
	"fmt"

	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// Orphans is what no claim would find, because rows of these tables were removed or written by hand, or a trigger was off.
type Orphans struct {
	Calls int64 `json:"calls"` // that wait and are in no flow and not in the inbox
	Flows int64 `json:"flows"` // that do not add up: their calls may never be reached
}

// FindOrphans reads all calls, in one snapshot.
func FindOrphans(ctx context.Context, pool schema.DB) (found Orphans, err error) {
	err = whole(ctx, pool, "look for calls in no flow", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, orphansSQL).Scan(&found.Calls, &found.Flows)
	})
	return found, err
}

// Repair drops the flows that do not add up and puts all orphans into the inbox, in one transaction. A call that enters a flow
// meanwhile is in the backlog twice, which is harmless.
func Repair(ctx context.Context, pool schema.DB) (repaired Orphans, err error) {
	err = whole(ctx, pool, "repair flows", func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, brokenSQL).Scan(&repaired.Flows)
		if err == nil && repaired.Flows > 0 {
			if _, err = tx.Exec(ctx, lockQueuesSQL); err == nil { // a claim may have changed them meanwhile
				err = tx.QueryRow(ctx, dropBrokenSQL).Scan(&repaired.Flows)
			}
		}
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, inboxOrphansSQL).Scan(&repaired.Calls)
	})
	return repaired, err
}

// whole runs a transaction that reads whole tables, for as long as that takes.
func whole(ctx context.Context, pool schema.DB, what string, run func(tx pgx.Tx) error) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, wholeTablesSQL); err != nil {
			return err
		}
		return run(tx)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// wholeTablesSQL undoes the settings by which callq's connections keep the plans of claims: here every row is read once.
const wholeTablesSQL = `
SELECT set_config('enable_hashjoin', 'on', true), set_config('enable_seqscan', 'on', true),
    set_config('enable_mergejoin', 'on', true), set_config('plan_cache_mode', 'auto', true),
    set_config('statement_timeout', '0', true)`

// notInBacklog is a condition on call_queue q.
const notInBacklog = ` q.status IN ('new', 'error') AND NOT EXISTS (SELECT FROM callq.call_backlog i WHERE i.id = q.id)`

const brokenSQL = `SELECT count(*) FROM callq.call_broken_flows`

const orphansSQL = `
SELECT (SELECT count(*) FROM public.call_queue q WHERE` + notInBacklog + `), (SELECT count(*) FROM callq.call_broken_flows)`

// In byte order, as appliers lock them. A queue that is not in force has no row, and no claims.
const lockQueuesSQL = `SELECT FROM callq.call_queues ORDER BY name COLLATE "C" FOR NO KEY UPDATE`

const dropBrokenSQL = `
WITH broken AS MATERIALIZED (SELECT queue, key, priority, task FROM callq.call_broken_flows), flows AS (
    DELETE FROM callq.call_flows l USING broken b
    WHERE (l.queue, l.key, l.priority, l.task) = (b.queue, b.key, b.priority, b.task)
), segments AS (
    DELETE FROM callq.call_segments w USING broken b
    WHERE (w.queue, w.key, w.priority, w.task) = (b.queue, b.key, b.priority, b.task)
)
SELECT count(*) FROM broken`

const inboxOrphansSQL = `
WITH said AS (
    INSERT INTO callq.call_inbox (queue, at, task, key, priority, calls, ids)
    SELECT queue, run_at, task, key, callq.priority(priority), count(*), array_agg(id)
    FROM callq.call_effective q
    WHERE` + notInBacklog + `
    GROUP BY 1, 2, 3, 4, 5, id >> 16
    RETURNING calls
)
SELECT coalesce(sum(calls), 0) FROM said`
