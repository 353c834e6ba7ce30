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

// Who lives: workers, dispatchers, and whether they agree.

func workers(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	var live, slots, running int64
	if err := pool.QueryRow(ctx, workersSQL).Scan(&live, &slots, &running); err != nil {
		return nil, err
	}
	if live == 0 {
		return one(Problem, "no worker lives: nothing is sent", "callq serve, or callq work"), nil
	}
	return one(OK, fmt.Sprintf("%d live, %d of %d slots in use", live, running, slots), ""), nil
}

const workersSQL = `
SELECT count(*), coalesce(sum(slots), 0), (SELECT count(*) FROM call_open WHERE started_at IS NOT NULL)
FROM call_workers WHERE callq_alive(heartbeat_at)`

func dispatchers(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	live, err := policy.Dispatchers(ctx, pool)
	if err != nil {
		return nil, err
	}
	if len(live) == 0 {
		return one(Problem, "no dispatcher lives: nothing is claimed",
			"callq serve, or callq dispatch (or callq dispatch --once each minute, from cron)"), nil
	}
	return one(OK, fmt.Sprintf("%d live", len(live)), ""), nil
}

// otherPolicy finds live dispatchers whose file is another than what is in force.
func otherPolicy(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	live, err := policy.Dispatchers(ctx, pool)
	if err != nil {
		return nil, err
	}
	others := policy.OnOtherPolicy(live)
	if len(others) == 0 {
		return nil, nil
	}
	applied, err := policy.Effective(ctx, pool)
	if err != nil {
		return nil, err
	}
	return one(Problem,
		fmt.Sprintf("live dispatchers have another configuration than the one in force, which %s: %s", applied, strings.Join(others, ", ")),
		"give them the newer file, or put theirs in force: callq config apply, or SIGHUP"), nil
}

// httpDiffers finds live workers that do not agree on what the task http may do: it is the worker that a call comes
// to which decides.
func httpDiffers(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	wants, err := admin.HTTPDifferences(ctx, pool)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, key := range slices.Sorted(maps.Keys(wants)) {
		found = append(found, Finding{
			Level: Problem,
			What: fmt.Sprintf("live workers differ on http_task.%s (a call goes where any of them may send it, and back unsent from one that may not): %s",
				key, wanted(wants[key])),
			Fix: "give them the same http_task, or Config.HTTP, and send each SIGHUP, or restart those with the old one",
		})
	}
	return found, nil
}

func wanted(wants []admin.Want) string {
	var said []string
	for _, w := range wants {
		said = append(said, strings.Join(w.By, ", ")+" says: "+w.Rule)
	}
	return strings.Join(said, "; ")
}

type unhandledRow struct {
	Task    string `db:"task"`
	Label   string `db:"label"`
	Waiting int64  `db:"waiting"`
}

// unhandled are tasks of waiting calls that no live worker handles, or none that carries their queue's label.
func unhandled(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	rows, err := collect[unhandledRow](ctx, pool, unhandledSQL)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range rows {
		what := fmt.Sprintf("no live worker handles task %s: %d calls wait", short(r.Task), r.Waiting)
		f := Finding{
			Level: Problem, What: what,
			Fix: fmt.Sprintf("start a worker whose program has w.Handle(%q, …), or cancel them: callq calls cancel", short(r.Task)),
		}
		if r.Task == "http" {
			f.Fix = "callq work"
		}
		if r.Label != "" {
			f.What = fmt.Sprintf("no live worker that carries the label %s handles task %s: %d calls wait",
				r.Label, short(r.Task), r.Waiting)
			f.Fix = "start one with worker.labels: [" + r.Label + "]"
		}
		found = append(found, f)
	}
	return found, nil
}

var unhandledSQL = `
WITH` + backlog.WaitingSQL(backlog.WithoutWorker) + `
SELECT w.task, coalesce(q.label, '') AS label, sum(w.calls)::bigint AS waiting
FROM waiting w
LEFT JOIN call_queues q ON q.name = w.queue
WHERE w.calls > 0 AND w.task IS NOT NULL
GROUP BY 1, 2
ORDER BY 3 DESC
LIMIT 10`

type waitingRow struct {
	Queue   string `db:"queue"`
	Waiting int64  `db:"waiting"`
}

func unknownQueues(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	rows, err := collect[waitingRow](ctx, pool, unknownQueuesSQL)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range rows {
		found = append(found, Finding{
			Level: Problem, What: fmt.Sprintf("%d calls wait in queue %s, which is not in force", r.Waiting, short(r.Queue)),
			Fix: "add it under queues in the configuration, and send the processes SIGHUP",
		})
	}
	return found, nil
}

// Also of what waits to be due: nobody would notice until then.
var unknownQueuesSQL = `
WITH` + backlog.WaitingSQL(`NOT EXISTS (SELECT FROM call_queues q WHERE q.name = t.queue)`) + `
SELECT queue, sum(calls)::bigint AS waiting
FROM waiting
WHERE calls > 0 AND queue IS NOT NULL
GROUP BY 1
ORDER BY 2 DESC
LIMIT 10`
