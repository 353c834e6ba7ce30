package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/policy"
)

// Which processes are alive, whether they agree, and which calls none of them takes.

const workersSQL = `
SELECT CASE live WHEN 0 THEN 'problem' ELSE 'ok' END AS level,
    CASE live WHEN 0 THEN 'no worker is alive: nothing is sent'
    ELSE format('%s live, %s of %s slots in use', live, (SELECT count(*) FROM call_open WHERE started_at IS NOT NULL), slots) END AS what,
    CASE live WHEN 0 THEN 'callq serve, or callq work' ELSE '' END AS fix
FROM (SELECT count(*) AS live, sum(slots) AS slots FROM call_workers WHERE callq_alive(heartbeat_at)) w`

const dispatchersSQL = `
SELECT CASE live WHEN 0 THEN 'problem' ELSE 'ok' END AS level,
    CASE live WHEN 0 THEN 'no dispatcher is alive: nothing is claimed' ELSE format('%s live', live) END AS what,
    CASE live WHEN 0 THEN 'callq serve, or callq dispatch (or callq dispatch --once each minute, from cron)' ELSE '' END AS fix
FROM (SELECT count(*) AS live FROM call_dispatchers WHERE callq_alive(heartbeat_at)) d`

// otherPolicy finds live dispatchers whose file differs from the policy in force.
func otherPolicy(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	_, others, err := policy.Dispatchers(ctx, pool)
	if err != nil || len(others) == 0 {
		return nil, err
	}
	applied, err := policy.Effective(ctx, pool)
	if err != nil {
		return nil, err
	}
	return one(Problem,
		fmt.Sprintf("live dispatchers have another configuration than the one in force, which %s: %s", applied, strings.Join(others, ", ")),
		"give them the newer file, or put theirs in force: callq config apply, or SIGHUP"), nil
}

// httpDiffers finds live workers that do not agree on what the task http may do. The worker that gets a call decides.
func httpDiffers(ctx context.Context, pool *pgxpool.Pool) (found []Finding, err error) {
	wants, err := admin.HTTPDifferences(ctx, pool)
	for _, key := range slices.Sorted(maps.Keys(wants)) {
		var said []string
		for _, w := range wants[key] {
			said = append(said, strings.Join(w.By, ", ")+" says: "+w.Rule)
		}
		what := fmt.Sprintf("live workers differ on http_task.%s (a call goes where any of them may send it, and back unsent "+
			"from one that may not): %s", key, strings.Join(said, "; "))
		found = append(found, one(Problem, what,
			"give them the same http_task, or Config.HTTP, and send each SIGHUP, or restart those with the old one")...)
	}
	return found, err
}

// Tasks of waiting calls that no live worker handles, or none that carries their queue's label.
var tasksSQL = `
WITH` + backlog.WaitingSQL(backlog.WithoutWorker) + `
SELECT 'problem' AS level,
    format('no live worker %shandles task %s: %s calls wait',
        CASE WHEN label <> '' THEN 'that carries the label ' || label || ' ' ELSE '' END, task, waiting) AS what,
    CASE WHEN label <> '' THEN 'start one with worker.labels: [' || label || ']'
    WHEN task = 'http' THEN 'callq work'
    ELSE 'start a worker whose program has w.Handle("' || task || '", …), or cancel them: callq calls cancel' END AS fix
FROM (
    SELECT left(w.task, 160) AS task, coalesce(q.label, '') AS label, sum(w.calls)::bigint AS waiting
    FROM waiting w
    LEFT JOIN call_queues q ON q.name = w.queue
    WHERE w.calls > 0 AND w.task IS NOT NULL
    GROUP BY 1, 2
    ORDER BY 3 DESC
    LIMIT 10
) t
ORDER BY waiting DESC`

// Calls that are not yet due count too: nobody would notice until they are.
var queuesSQL = `
WITH` + backlog.WaitingSQL(`NOT EXISTS (SELECT FROM call_queues q WHERE q.name = t.queue)`) + `
SELECT 'problem' AS level, format('%s calls wait in queue %s, which is not in force', sum(calls), left(queue, 160)) AS what,
    'add it under queues in the configuration, and send the processes SIGHUP' AS fix
FROM waiting
WHERE calls > 0 AND queue IS NOT NULL
GROUP BY queue
ORDER BY sum(calls) DESC
LIMIT 10`
