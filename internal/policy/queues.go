package policy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// queueRow is a queue's row as it stands.
type queueRow struct {
	Name        string        `db:"name"`
	Limits      []string      `db:"limits"`
	On          string        `db:"label"`
	MaxAttempts int           `db:"max_attempts"`
	BackoffMin  time.Duration `db:"backoff_min"`
	BackoffMax  time.Duration `db:"backoff_max"`
	Timeout     time.Duration `db:"timeout"`
	OnLost      string        `db:"on_lost"`
	Hours       []string      `db:"hours"`
}

// applyQueues writes the queues in name order and before any limit, as a claim locks them.
func (a *application) applyQueues(ctx context.Context, queues []Queue, rows []queueRow) error {
	old := map[string]queueRow{}
	for _, row := range rows {
		old[row.Name] = row
	}
	for _, q := range queues {
		row, known := old[q.Name]
		delete(old, q.Name)
		if known && row.equal(q) {
			continue
		}
		if _, err := a.tx.Exec(ctx, putQueueSQL, pgx.StrictNamedArgs{
			"name": q.Name, "limits": append([]string{}, q.Limits...), "on": q.On, "max_attempts": q.MaxAttempts,
			"backoff_min": q.BackoffMin, "backoff_max": q.BackoffMax, "timeout": q.Timeout,
			"on_lost": q.OnLost, "hours": append([]string{}, q.Hours...),
		}); err != nil {
			return fmt.Errorf("write queue %q: %w", q.Name, err)
		}
		a.changed("queue", q.Name, q.String())
		a.wake = append(a.wake, q.Name)
		if known && (!slices.Equal(row.Limits, q.Limits) || row.On != q.On || !slices.Equal(row.Hours, q.Hours)) {
			a.recall = append(a.recall, q.Name)
		}
	}
	for _, row := range rows {
		if _, gone := old[row.Name]; !gone {
			continue
		}
		if _, err := a.tx.Exec(ctx, dropQueueSQL, row.Name); err != nil {
			return fmt.Errorf("remove queue %q: %w", row.Name, err)
		}
		a.changed("queue", row.Name, "removed; its calls wait")
		a.recall = append(a.recall, row.Name)
	}
	return nil
}

func (row queueRow) equal(q Queue) bool {
	return slices.Equal(row.Limits, q.Limits) && row.On == q.On && row.MaxAttempts == q.MaxAttempts && row.Timeout == q.Timeout &&
		row.BackoffMin == q.BackoffMin && row.BackoffMax == q.BackoffMax && row.OnLost == q.OnLost && slices.Equal(row.Hours, q.Hours)
}

const putQueueSQL = `
INSERT INTO call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost, hours)
VALUES (@name, @limits, @on, @max_attempts, @backoff_min, @backoff_max, @timeout, @on_lost, @hours)
ON CONFLICT (name) DO UPDATE
SET limits = excluded.limits, label = excluded.label, max_attempts = excluded.max_attempts,
    backoff_min = excluded.backoff_min, backoff_max = excluded.backoff_max, timeout = excluded.timeout, on_lost = excluded.on_lost,
    hours = excluded.hours`

const dropQueueSQL = `DELETE FROM call_queues WHERE name = $1`

const queueRowsSQL = `
SELECT name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost, hours FROM call_queues ORDER BY name`
