package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/backlog"
)

// What would stay as it is, were nobody to look.

const sweepFix = "callq maintain sweep"

// overdue are open attempts that a sweeper should have closed: dispatchers do so at each tick.
func overdue(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	var started, unstarted, long int64
	if err := pool.QueryRow(ctx, overdueSQL).Scan(&started, &unstarted, &long); err != nil {
		return nil, err
	}
	var found []Finding
	fix := "start a dispatcher (callq serve, callq dispatch), or " + sweepFix + " once; if dispatchers live, see their logs"
	if started > 0 {
		what := fmt.Sprintf("%d attempts are past their deadline and still open: their workers were lost", started)
		found = append(found, one(Problem, what, fix)...)
	}
	if long > 0 {
		what := fmt.Sprintf("%d handlers run for longer than their queue's timeout, and hold their slots and units: they do not return "+
			"though their contexts have ended", long)
		found = append(found, one(Problem, what, "have them return when ctx ends, raise the queue's timeout, or restart their workers: callq calls list --status dispatched")...)
	}
	if unstarted > 0 {
		what := fmt.Sprintf("%d attempts were handed over, not started in time, and still hold their units", unstarted)
		found = append(found, one(Problem, what, fix)...)
	}
	return found, nil
}

const overdueSQL = `
SELECT count(*) FILTER (WHERE started_at IS NOT NULL AND deadline < clock_timestamp() - interval '10 seconds'),
    count(*) FILTER (WHERE started_at IS NULL AND start_by < clock_timestamp() - interval '10 seconds'
        AND EXISTS (SELECT FROM call_workers WHERE callq_alive(heartbeat_at))),
    count(*) FILTER (WHERE task <> 'http' AND deadline > clock_timestamp() AND started_at < clock_timestamp() - interval '10 seconds'
        - (SELECT timeout FROM call_queues q WHERE q.name = o.queue))
FROM call_open o`

func orphans(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	a, err := backlog.FindOrphans(ctx, pool, lookMost)
	if err != nil {
		return nil, err
	}
	var found []Finding
	if a.Calls > 0 {
		found = append(found, one(Problem, fmt.Sprintf("%d calls wait and are in no flow, so no claim finds them",
			a.Calls), sweepFix)...)
	}
	if a.Flows > 0 {
		found = append(found, one(Problem, fmt.Sprintf("%d flows do not add up, so some of their calls may not be found",
			a.Flows), sweepFix)...)
	}
	return found, nil
}

// withoutAttempt finds calls that are dispatched and have no open attempt: somebody removed it. What it used
// of its limits is forgotten, and whether it was sent nobody knows; so nothing mends that by itself.
func withoutAttempt(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	var ids []string
	var n int64
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, boundSQL, lookMost.Milliseconds()); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, withoutAttemptSQL).Scan(&n, &ids)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil || n == 0 {
		return nil, err
	}
	list := strings.Join(ids, ", ")
	return one(Problem, fmt.Sprintf("%d calls are dispatched without an open attempt, so nothing will end them: %s",
		n, list),
		"to make them (again): UPDATE call_queue SET status = 'new' WHERE id IN ("+list+"); to give them up: "+
			"SET status = 'failed', failed_at = now(), finished_at = now(), unique_key = NULL"), nil
}

const boundSQL = `SELECT set_config('statement_timeout', $1::bigint::text, true)`

const withoutAttemptSQL = `
SELECT count(*), (array_agg(id::text ORDER BY id))[:10]
FROM call_queue q
WHERE status = 'dispatched' AND NOT EXISTS (SELECT FROM call_open o WHERE o.call_id = q.id)`
