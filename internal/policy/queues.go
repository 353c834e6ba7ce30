package policy

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"
)

func (a *application) applyQueues(ctx context.Context, queues []Queue) error {
	rows, err := collect(ctx, a.tx, pgx.RowToStructByName[Queue], queuesSQL)
	if err != nil {
		return fmt.Errorf("read queues: %w", err)
	}
	old := map[string]Queue{}
	for _, row := range rows {
		old[row.Name] = row
	}
	for _, q := range queues {
		was, known := old[q.Name]
		delete(old, q.Name)
		if reflect.DeepEqual(was, q) {
			continue
		}
		if _, err := a.tx.Exec(ctx, putQueueSQL, pgx.StrictStructArgs(q)); err != nil {
			return fmt.Errorf("write queue %q: %w", q.Name, err)
		}
		a.changed("queue", q.Name, q.String())
		a.wake = append(a.wake, q.Name)
		if known && (!slices.Equal(was.Limits, q.Limits) || was.On != q.On || was.Hours != q.Hours) {
			a.recall = append(a.recall, q.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if _, err := a.tx.Exec(ctx, `DELETE FROM call_queues WHERE name = $1`, name); err != nil {
			return fmt.Errorf("remove queue %q: %w", name, err)
		}
		a.changed("queue", name, "removed; its calls wait")
		a.recall = append(a.recall, name)
	}
	return nil
}

const queuesSQL = `
SELECT name, nullif(limits, '{}') AS limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost, hours
FROM call_queues`

const putQueueSQL = `
INSERT INTO call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost, hours)
VALUES (@name, coalesce(@limits::text[], '{}'), @label, @max_attempts, @backoff_min, @backoff_max, @timeout, @on_lost, @hours)
ON CONFLICT (name) DO UPDATE
SET limits = excluded.limits, label = excluded.label, max_attempts = excluded.max_attempts, backoff_min = excluded.backoff_min,
    backoff_max = excluded.backoff_max, timeout = excluded.timeout, on_lost = excluded.on_lost, hours = excluded.hours`

// applyBudgets writes the budgets. Only the appliers' lock guards them: workers draw by what they read.
func (a *application) applyBudgets(ctx context.Context, budgets []Budget) error {
	names := make([]string, len(budgets))
	for i, b := range budgets {
		names[i] = b.Name
		tag, err := a.tx.Exec(ctx, putBudgetSQL, pgx.StrictNamedArgs{
			"name": b.Name, "rate": b.Rate.Units, "window": b.Rate.Window, "burst": b.Burst, "on_outage": b.OnOutage, "by": a.by,
		})
		if err != nil {
			return fmt.Errorf("write budget %q: %w", b.Name, err)
		}
		if tag.RowsAffected() > 0 {
			a.changed("budget", b.Name, b.String())
		}
	}
	gone, err := collect(ctx, a.tx, pgx.RowTo[string], `DELETE FROM call_budgets WHERE name <> ALL($1) RETURNING name`, names)
	if err != nil {
		return fmt.Errorf("remove budgets: %w", err)
	}
	for _, name := range slices.Sorted(slices.Values(gone)) {
		a.changed("budget", name, "removed")
	}
	return nil
}

// putBudgetSQL writes a budget that is new or has changed.
const putBudgetSQL = `
INSERT INTO call_budgets AS b (name, rate, window_size, burst, on_outage, applied_at, applied_by)
VALUES (@name, @rate, @window, @burst, @on_outage, clock_timestamp(), @by)
ON CONFLICT (name) DO UPDATE
SET rate = excluded.rate, window_size = excluded.window_size, burst = excluded.burst, on_outage = excluded.on_outage,
    applied_at = excluded.applied_at, applied_by = excluded.applied_by
WHERE (b.rate, b.window_size, b.burst, b.on_outage)
    IS DISTINCT FROM (excluded.rate, excluded.window_size, excluded.burst, excluded.on_outage)`
