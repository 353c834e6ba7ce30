package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

type budgetRow struct {
	Name     string        `db:"name"`
	Rate     int64         `db:"rate"`
	Window   time.Duration `db:"window_size"`
	Burst    int64         `db:"burst"`
	OnOutage string        `db:"on_outage"`
}

// applyBudgets writes the budgets. Only the appliers' lock guards them: workers draw by what they read.
func (a *application) applyBudgets(ctx context.Context, budgets []Budget) error {
	rows, err := collect[budgetRow](ctx, a.tx, budgetRowsSQL)
	if err != nil {
		return fmt.Errorf("read budgets: %w", err)
	}
	old := map[string]budgetRow{}
	for _, row := range rows {
		old[row.Name] = row
	}
	for _, b := range budgets {
		was, known := old[b.Name]
		delete(old, b.Name)
		now := budgetRow{b.Name, b.Rate.Units, b.Rate.Window, b.Burst, b.OnOutage}
		if known && was == now {
			continue
		}
		if _, err := a.tx.Exec(ctx, putBudgetSQL, pgx.StrictNamedArgs{
			"name": now.Name, "rate": now.Rate, "window": now.Window, "burst": now.Burst, "on_outage": now.OnOutage, "by": a.by,
		}); err != nil {
			return fmt.Errorf("write budget %q: %w", b.Name, err)
		}
		a.changed("budget", b.Name, b.String())
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if _, err := a.tx.Exec(ctx, dropBudgetSQL, name); err != nil {
			return fmt.Errorf("remove budget %q: %w", name, err)
		}
		a.changed("budget", name, "removed")
	}
	return nil
}

const budgetRowsSQL = `SELECT name, rate, window_size, burst, on_outage FROM call_budgets`

const putBudgetSQL = `
INSERT INTO call_budgets (name, rate, window_size, burst, on_outage, applied_at, applied_by)
VALUES (@name, @rate, @window, @burst, @on_outage, clock_timestamp(), @by)
ON CONFLICT (name) DO UPDATE
SET rate = excluded.rate, window_size = excluded.window_size, burst = excluded.burst, on_outage = excluded.on_outage,
    applied_at = excluded.applied_at, applied_by = excluded.applied_by`

const dropBudgetSQL = `DELETE FROM call_budgets WHERE name = $1`
