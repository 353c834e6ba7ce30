package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// BudgetRule is a budget: a token bucket in Redis, which handlers draw on while they run. Dispatchers only
// publish it.
type BudgetRule struct {
	Name     string
	Rate     limit.Rate // what comes in, evenly
	Burst    int64      // what it holds at most
	OnOutage string     // what a draw does while Redis is away: closed (it waits) or open (it goes through)
}

func (b BudgetRule) String() string {
	return fmt.Sprintf("%s, on_outage %s", budget.Rule{Rate: b.Rate, Burst: b.Burst}, b.OnOutage)
}

// checkBudgets is check for the budgets.
func (r *Rules) checkBudgets() error {
	r.Budgets = slices.Clone(r.Budgets)
	slices.SortStableFunc(r.Budgets, byName)
	for i := range r.Budgets {
		b := &r.Budgets[i]
		if b.Name == "" || i > 0 && r.Budgets[i-1].Name == b.Name {
			return fmt.Errorf("budget %q: the name is empty or given twice", b.Name)
		}
		b.Rate.Window = storable(b.Rate.Window)
		if err := (budget.Rule{Rate: b.Rate, Burst: b.Burst}).Check(); err != nil {
			return fmt.Errorf("budget %q: %w", b.Name, err)
		}
		if b.OnOutage != "closed" && b.OnOutage != "open" {
			return fmt.Errorf("budget %q: on_outage is %q; it may be closed or open", b.Name, b.OnOutage)
		}
	}
	return nil
}

func byName(a, b BudgetRule) int { return strings.Compare(a.Name, b.Name) }

type budgetRow struct {
	Name     string        `db:"name"`
	Rate     int64         `db:"rate"`
	Window   time.Duration `db:"window_size"`
	Burst    int64         `db:"burst"`
	OnOutage string        `db:"on_outage"`
}

// publishBudgets writes the budgets, which nothing but the publishers' lock guards: workers read them as they
// stand, and draw by what they read.
func (p *publication) publishBudgets(ctx context.Context) error {
	rows, err := collect[budgetRow](ctx, p.tx, budgetRowsSQL)
	if err != nil {
		return fmt.Errorf("read budgets: %w", err)
	}
	old := map[string]budgetRow{}
	for _, row := range rows {
		old[row.Name] = row
	}
	for _, b := range p.rules.Budgets {
		was, known := old[b.Name]
		delete(old, b.Name)
		now := budgetRow{b.Name, b.Rate.Units, b.Rate.Window, b.Burst, b.OnOutage}
		if known && was == now {
			continue
		}
		if _, err := p.tx.Exec(ctx, putBudgetSQL, pgx.StrictNamedArgs{
			"name": now.Name, "rate": now.Rate, "window": now.Window, "burst": now.Burst, "on_outage": now.OnOutage, "by": p.by,
		}); err != nil {
			return fmt.Errorf("write budget %q: %w", b.Name, err)
		}
		p.changed("budget", b.Name, b.String())
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if _, err := p.tx.Exec(ctx, dropBudgetSQL, name); err != nil {
			return fmt.Errorf("take budget %q away: %w", name, err)
		}
		p.changed("budget", name, "taken away")
	}
	return nil
}

const budgetRowsSQL = `SELECT name, rate, window_size, burst, on_outage FROM call_budgets`

const putBudgetSQL = `
INSERT INTO call_budgets (name, rate, window_size, burst, on_outage, published_at, published_by)
VALUES (@name, @rate, @window, @burst, @on_outage, clock_timestamp(), @by)
ON CONFLICT (name) DO UPDATE
SET rate = excluded.rate, window_size = excluded.window_size, burst = excluded.burst, on_outage = excluded.on_outage,
    published_at = excluded.published_at, published_by = excluded.published_by`

const dropBudgetSQL = `DELETE FROM call_budgets WHERE name = $1`
