package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/callq/callq/cmd/callq/config"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

// budgetRow is a budget in force.
type budgetRow struct {
	Name      string        `json:"name" db:"name"`
	Rate      string        `json:"rate" db:"-"`
	Units     int64         `json:"units" db:"rate"`
	Window    time.Duration `json:"window_ns" db:"window_size"`
	Burst     int64         `json:"burst" db:"burst"`
	OnOutage  string        `json:"on_outage" db:"on_outage"`
	Free      *int64        `json:"free" db:"-"`       // now, as Redis has it; nil: it does not answer
	Waiting   time.Duration `json:"waiting_ns" db:"-"` // until the last of the draws that wait has its units
	ChangedAt time.Time     `json:"changed_at" db:"published_at"`
	ChangedBy string        `json:"changed_by" db:"published_by"`
	// Wanted is what each live process publishes, where they differ: then the stricter holds.
	Wanted []dispatcher.Want `json:"wanted" db:"-"`

	unknown string // why Free is
}

func (b budgetRow) rule() budget.Rule {
	return budget.Rule{Rate: limit.Rate{Units: b.Units, Window: b.Window}, Burst: b.Burst}
}

// holds is what is in force, in the words of what processes want.
func (b budgetRow) holds() string {
	return dispatcher.BudgetRule{Rate: b.rule().Rate, Burst: b.Burst, OnOutage: b.OnOutage}.String()
}

func budgetColumns() []column[budgetRow] {
	return []column[budgetRow]{
		{"BUDGET", func(b budgetRow) string { return b.Name }},
		{"RATE", func(b budgetRow) string { return b.Rate }},
		{"BURST", func(b budgetRow) string { return strconv.FormatInt(b.Burst, 10) }},
		{"ON OUTAGE", func(b budgetRow) string { return b.OnOutage }},
		{"FREE", func(b budgetRow) string {
			switch {
			case b.Free == nil:
				return "unknown: " + short(b.unknown)
			case b.Waiting > 0:
				return fmt.Sprintf("%d; draws wait for up to %s", *b.Free, b.Waiting.Round(time.Millisecond))
			}
			return strconv.FormatInt(*b.Free, 10)
		}},
	}
}

func readBudgets(ctx context.Context, db ledger.DB) ([]budgetRow, error) {
	budgets, err := collect[budgetRow](ctx, db, "read budgets", budgetsSQL)
	if err != nil || len(budgets) == 0 {
		return budgets, err
	}
	live, err := dispatcher.Live(ctx, db)
	if err != nil {
		return nil, err
	}
	wanted := dispatcher.BudgetDifferences(live)
	for i := range budgets {
		b := &budgets[i]
		b.Wanted = wanted[b.Name]
		b.Rate = budget.RateString(b.rule().Rate)
		inUTC(&b.ChangedAt)
	}
	return budgets, nil
}

const budgetsSQL = `SELECT name, rate, window_size, burst, on_outage, published_at, published_by FROM call_budgets ORDER BY name`

// lookAtBudgets asks Redis, which a status without budgets does not need, what is free. Where it does not
// answer that is said of each.
func lookAtBudgets(ctx context.Context, cfg *config.Config, budgets []budgetRow) {
	if len(budgets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	client, err := openRedis(cfg, slog.New(slog.DiscardHandler))
	if err == nil {
		defer client.Close()
	}
	for i := range budgets {
		b := &budgets[i]
		var free int64
		if err == nil {
			free, b.Waiting, err = budget.Look(ctx, client, b.Name, b.rule())
		}
		if err != nil { // the others need not wait for it too
			b.unknown = oneLine(err.Error())
			continue
		}
		b.Free = &free
	}
}
