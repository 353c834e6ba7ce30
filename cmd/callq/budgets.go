package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/config"
)

func budgetColumns() []column[admin.Budget] {
	return []column[admin.Budget]{
		{"BUDGET", func(b admin.Budget) string { return b.Name }},
		{"RATE", func(b admin.Budget) string { return b.Rate }},
		{"BURST", func(b admin.Budget) string { return strconv.FormatInt(b.Burst, 10) }},
		{"ON OUTAGE", func(b admin.Budget) string { return b.OnOutage }},
		{"FREE", func(b admin.Budget) string {
			switch {
			case b.Free == nil:
				return "unknown: " + short(b.Unknown)
			case b.Waiting > 0:
				return fmt.Sprintf("%d; draws wait for up to %s", *b.Free, b.Waiting.Round(time.Millisecond))
			}
			return strconv.FormatInt(*b.Free, 10)
		}},
	}
}

// lookAtBudgets asks Redis, which a status without budgets does not need, what is free. Where it does not
// answer that is said of each.
func lookAtBudgets(ctx context.Context, cfg *config.Config, budgets []admin.Budget) {
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
			free, b.Waiting, err = budget.Look(ctx, client, b.Name, b.Rule())
		}
		if err != nil { // the others need not wait for it too
			b.Unknown = oneLine(err.Error())
			continue
		}
		b.Free = &free
	}
}
