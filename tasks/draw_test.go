package tasks_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/tasks"
)

// A budget that a dispatcher publishes is drawn on by handlers; who is refused may put the call off until it
// would be served.
func TestHandlersDraw(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]tasks.Handler{
		"search": func(ctx context.Context, call *tasks.Call) error {
			err := call.Draw(ctx, "search-api", 2)
			if refused, ok := errors.AsType[*tasks.BudgetError](err); ok {
				return tasks.Snooze(refused.Wait)
			}
			return err
		},
		"other": func(ctx context.Context, call *tasks.Call) error { return call.Draw(ctx, "other-api", 1) },
	})
	b.await(`SELECT count(*) = 1 FROM callq.call_limits`) // the dispatcher's own rules, which have no budgets, are in force
	r := policy.Policy{
		Limits:  []policy.Limit{{Name: "api", Rate: limit.Rate{Units: 100, Window: time.Second}}},
		Queues:  []policy.Queue{queue("default", time.Minute)},
		Budgets: []policy.Budget{{Name: "search-api", Rate: limit.Rate{Units: 1, Window: time.Hour}, Burst: 5, OnOutage: "closed"}},
	}
	if _, err := policy.Apply(t.Context(), b.pool, r, "tester"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		b.insertCall(callqueue.Call{Task: "search"})
	}
	b.await(`SELECT array_agg(status ORDER BY status) = '{done,done,new}' AND bool_and(failed_count = 0)
			AND max(run_at) BETWEEN now() + interval '50 min' AND now() + interval '1 h'
		FROM call_queue WHERE attempts = 1`)
	b.await(`SELECT status IN ('error', 'failed') AND error_message LIKE 'draw 1 of budget "other-api": no such budget is in force: add it %' FROM call_queue WHERE id = $1`,
		b.insertCall(callqueue.Call{Task: "other"}))
	b.verify()
}
