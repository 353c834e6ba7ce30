// Package maintenance removes what has ended and is old enough, and vacuums the tables that calls
// go through. Every run may be interrupted, and any number may run at once.
package maintenance

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// Retention describes how long ended calls are kept.
type Retention struct {
	Done      time.Duration // default 7 days
	Failed    time.Duration // default 30 days
	Cancelled time.Duration // default 1 day
	History   time.Duration // of what limits and queues did each minute; default 7 days, below 0: none
}

// Purged counts what Purge removed.
type Purged struct {
	Calls    int64  `json:"calls"`
	Attempts int64  `json:"attempts"`
	Results  int64  `json:"results"`               // answers that their queue keeps for a shorter time than the call
	Kept     int64  `json:"kept,omitempty"`        // rows that cannot be removed, as those that another table refers to
	KeptFor  string `json:"kept_reason,omitempty"` // of the last
}

const day = 24 * time.Hour

// Purge removes calls that ended longer ago than keep. Then it removes the attempts in the ledger
// whose call is gone and that no window reaches, the history of minutes, the versions of limits that no attempt refers to, and
// answers that are older than their queue's store_for.
//
// Purge never frees a unit: what a limit has used does not depend on these rows while a window reaches
// them. Each batch is a transaction of its own: what was removed before an error stays so.
//
// It reads all calls and attempts. Who runs it over and over has a [Purger].
func Purge(ctx context.Context, pool schema.DB, keep Retention) (Purged, error) {
	return PurgeAndTell(ctx, pool, keep, nobody)
}

// Progress is told how much of a step is done, and of how much. These are 0 where nothing can be counted.
type Progress func(step string, done, of int64)

func nobody(string, int64, int64) {}

// PurgeAndTell is Purge, and tells its progress. Of calls and attempts that is how many of the ids it has gone through: some may
// have no row any more.
func PurgeAndTell(ctx context.Context, pool schema.DB, keep Retention, tell Progress) (Purged, error) {
	return new(Purger).run(ctx, pool, keep, tell)
}

// purgeHistory removes the minutes that are no longer kept.
func purgeHistory(ctx context.Context, pool schema.DB, keep Retention) error {
	for _, sql := range []string{purgeLimitHistorySQL, purgeQueueHistorySQL} {
		if _, err := pool.Exec(ctx, sql, max(0, cmp.Or(keep.History, 7*day))); err != nil {
			return fmt.Errorf("remove the history: %w", err)
		}
	}
	return nil
}

// purgeResults removes answers, in batches, and tells how many it has removed.
func purgeResults(ctx context.Context, pool schema.DB, results *int64, tell Progress) error {
	for removed := int64(purgeBatch); removed == purgeBatch; *results += removed {
		tell("answers", *results, 0)
		tag, err := pool.Exec(ctx, purgeResultsSQL, purgeBatch)
		if err != nil {
			return fmt.Errorf("purge answers: %w", err)
		}
		removed = tag.RowsAffected()
	}
	return nil
}

// By it an alert sees that retention no longer works, or is no longer run.
const retentionEndedSQL = `
INSERT INTO callq.call_meta AS m (name, at) VALUES ('retention', clock_timestamp())
ON CONFLICT (name) DO UPDATE SET at = greatest(m.at, excluded.at)`

const (
	purgeLimitHistorySQL = `DELETE FROM callq.call_limit_history WHERE minute < clock_timestamp() - $1::interval`
	purgeQueueHistorySQL = `DELETE FROM callq.call_queue_history WHERE minute < clock_timestamp() - $1::interval`
)

// call_attempts_result_idx finds them, each queue's oldest first. The row and its charges stay.
const purgeResultsSQL = `
UPDATE public.call_attempts a SET result = NULL
FROM (
    SELECT o.call_id, o.attempt
    FROM callq.call_queues q
    CROSS JOIN LATERAL (
        SELECT call_id, attempt FROM public.call_attempts
        WHERE ` + oldResult + `
        ORDER BY finished_at LIMIT $1
        FOR UPDATE SKIP LOCKED
    ) o
    WHERE q.store_for > '0'
    LIMIT $1
) old
WHERE a.call_id = ANY (ARRAY[old.call_id]) AND a.attempt = old.attempt`

// oldResult is of an attempt of a queue q that keeps answers for a time of their own.
const oldResult = `result IS NOT NULL AND queue = q.name AND finished_at < statement_timestamp() - q.store_for`

// DryRun counts what Purge would remove, and removes nothing. It reads all calls and attempts, in one snapshot.
//
// Of a call with more than a thousand attempts, Purge leaves some to its next run; DryRun counts them all.
func DryRun(ctx context.Context, pool schema.DB, keep Retention) (p Purged, err error) {
	err = pool.QueryRow(ctx, dryRunSQL, keep.args()).Scan(&p.Calls, &p.Attempts, &p.Results)
	return p, ledger.Wrap("count what to purge", err)
}

// A call that would be removed itself is as good as gone.
const dryRunSQL = `
SELECT (SELECT count(*) FROM public.call_queue q WHERE ` + oldEnough + `),
    (SELECT count(*) FROM public.call_attempts a, (` + reachSQL + `) r WHERE ` + outOfReach + `
     AND NOT EXISTS (SELECT FROM public.call_queue q WHERE q.id = a.call_id AND ` + oldEnough + ` IS NOT TRUE)),
    (SELECT count(*) FROM callq.call_queues q JOIN public.call_attempts ON ` + oldResult + ` WHERE q.store_for > '0')`

// args are the ages, for oldEnough.
func (r Retention) args() pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"done": cmp.Or(r.Done, 7*day), "failed": cmp.Or(r.Failed, 30*day), "cancelled": cmp.Or(r.Cancelled, day),
	}
}

// oldEnough is of a call q, or NULL. One with an open attempt stays: it was cancelled while it ran.
const (
	oldEnough = `(q.finished_at < clock_timestamp() - ` + keptFor + `
      AND NOT EXISTS (SELECT 1 FROM callq.call_open o WHERE o.call_id BETWEEN q.id AND q.id))`
	keptFor = `CASE q.status
            WHEN 'done' THEN @done::interval WHEN 'failed' THEN @failed::interval WHEN 'cancelled' THEN @cancelled::interval END`
)

// outOfReach is of an attempt a that no window needs: reachSQL, as r, has how far they go back. Twice the
// longest window leaves room for one that is raised.
const (
	reachSQL   = `SELECT 2 * coalesce(max(window_size), '0') + interval '10 minutes' AS back FROM callq.call_limits`
	outOfReach = `NOT EXISTS (SELECT 1 FROM callq.call_open o WHERE o.call_id BETWEEN a.call_id AND a.call_id)
      AND coalesce(a.arrived_by, a.finished_at) < clock_timestamp() - r.back`
)

// Vacuum runs a plain VACUUM (ANALYZE) of the tables that calls go through. It blocks nothing.
func Vacuum(ctx context.Context, pool schema.DB) error { return VacuumAndTell(ctx, pool, nobody) }

// VacuumAndTell is Vacuum, and tells which table it vacuums, and how many it has.
func VacuumAndTell(ctx context.Context, pool schema.DB, tell Progress) error {
	rows, _ := pool.Query(ctx, fmt.Sprintf(vacuumForbiddenSQL, strings.Join(busyTables, "'), ('")))
	forbidden, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("see what may be vacuumed: %w", err)
	}
	if len(forbidden) > 0 {
		return fmt.Errorf("this role may not vacuum %s: vacuum as their owner, or, from Postgres 17 on, grant it MAINTAIN "+
			"(`callq migrate roles`)", strings.Join(forbidden, ", "))
	}
	return vacuum(ctx, pool, "VACUUM (ANALYZE)", busyTables, tell)
}

// busyTables are those that calls go through, as SQL names them.
var busyTables = []string{
	"public.call_queue", "callq.call_inbox", "callq.call_flows", "callq.call_segments", "callq.call_open", "public.call_attempts", "callq.call_usage",
}

// Postgres passes over a table that a role may not vacuum with no more than a warning.
const vacuumForbiddenSQL = `
SELECT c.oid::regclass::text
FROM (VALUES ('%s')) AS t (name)
JOIN pg_class c ON c.oid = to_regclass(t.name)
WHERE NOT ` + mayVacuumSQL + `
ORDER BY c.relname`

const mayVacuumSQL = `(
    pg_has_role(c.relowner, 'USAGE')
    OR (SELECT pg_has_role(d.datdba, 'USAGE') FROM pg_database d WHERE d.datname = current_database())
    OR CASE WHEN current_setting('server_version_num')::integer >= 170000
       THEN has_table_privilege(c.oid, 'MAINTAIN') ELSE false END)`

func vacuum(ctx context.Context, db ledger.DB, statement string, tables []string, tell Progress) error {
	for i, table := range tables {
		_, name, _ := strings.Cut(table, ".")
		tell(name, int64(i), int64(len(tables)))
		if _, err := db.Exec(ctx, statement+" "+table); err != nil {
			return fmt.Errorf("%s %s: %w", statement, table, err)
		}
	}
	return nil
}

// VacuumFull rewrites tables one after the other, and so returns their unused space to the disk. Postgres locks each table
// against everything meanwhile. VacuumFull waits at most 5 seconds for a lock, because everything behind it waits too.
func VacuumFull(ctx context.Context, pool schema.DB, tables []string, tell Progress) error {
	pooled, err := schema.Acquire(ctx, pool)
	if err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	conn := pooled.Hijack() // its lock_timeout ends with it
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SET lock_timeout = '5s'"); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	return vacuum(ctx, conn, "VACUUM (FULL, ANALYZE)", tables, tell)
}

// Analyze has Postgres collect new statistics on the tables that calls go through.
func Analyze(ctx context.Context, pool schema.DB, tell Progress) error {
	return vacuum(ctx, pool, "ANALYZE", busyTables, tell)
}

// VacuumNeeded vacuums the tables that need it before autovacuum, which checks once a minute:
// call_open and call_usage change entirely within seconds. It skips tables that another session vacuums. It collects no statistics:
// that costs ten times as much, has every session plan anew, and the plans do not go by them (ledger.Settings).
func VacuumNeeded(ctx context.Context, pool schema.DB) error {
	rows, _ := pool.Query(ctx, vacuumNeededSQL)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("see what needs a vacuum: %w", err)
	}
	return vacuum(ctx, pool, "VACUUM (SKIP_LOCKED)", tables, nobody)
}

// A table that was vacuumed within the last minute is left alone: what is dead there, an old
// snapshot may still see. So is one that this role may not vacuum.
const vacuumNeededSQL = `
SELECT c.oid::regclass::text
FROM (VALUES ('callq.call_open', 2000, 1.0), ('callq.call_usage', 2000, 0.5), ('public.call_queue', 20000, 0.1),
    ('callq.call_inbox', 2000, 0.5), ('callq.call_flows', 2000, 0.5), ('callq.call_segments', 2000, 0.5)) AS t (name, least, share)
JOIN pg_class c ON c.oid = to_regclass(t.name)
JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE s.n_dead_tup > t.least + t.share * s.n_live_tup
  AND coalesce(greatest(s.last_vacuum, s.last_autovacuum), '-infinity') < clock_timestamp() - interval '1 minute'
  AND ` + mayVacuumSQL + `
ORDER BY c.relname`
