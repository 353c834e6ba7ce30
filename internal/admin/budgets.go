package admin

import (
	"context"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// Budget is a budget in force.
type Budget struct {
	Name      string        `json:"name" db:"name"`
	Rate      string        `json:"rate" db:"-"`
	Units     int64         `json:"units" db:"rate"`
	Window    time.Duration `json:"window_ns" db:"window_size"`
	Burst     int64         `json:"burst" db:"burst"`
	OnOutage  string        `json:"on_outage" db:"on_outage"`
	Free      *int64        `json:"free" db:"-"`       // now, as Redis has it; nil: it does not answer
	Waiting   time.Duration `json:"waiting_ns" db:"-"` // until the last of the draws that wait has its units
	ChangedAt time.Time     `json:"changed_at" db:"applied_at"`
	ChangedBy string        `json:"changed_by" db:"applied_by"`

	Unknown string `json:"-" db:"-"` // why Free is
}

// Rule is what Redis is asked by.
func (b Budget) Rule() budget.Rule {
	return budget.Rule{Rate: limit.Rate{Units: b.Units, Window: b.Window}, Burst: b.Burst}
}

// Holds is what is in force, in the words of the audit.
func (b Budget) Holds() string {
	return policy.Budget{Rate: b.Rule().Rate, Burst: b.Burst, OnOutage: b.OnOutage}.String()
}

// ReadBudgets reads the budgets in force.
func ReadBudgets(ctx context.Context, db ledger.DB) ([]Budget, error) {
	budgets, err := collect[Budget](ctx, db, "read budgets", budgetsSQL)
	for i := range budgets {
		budgets[i].Rate = budget.RateString(budgets[i].Rule().Rate)
	}
	return budgets, err
}

const budgetsSQL = `SELECT name, rate, window_size, burst, on_outage, applied_at, applied_by FROM call_budgets ORDER BY name`
