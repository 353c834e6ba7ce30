package dispatcher_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

func withBudgets(budgets ...policy.Budget) policy.Policy {
	r := hourly(10)
	r.Budgets = budgets
	return r
}

func budgetRule(name string, units int64, window time.Duration, burst int64, onOutage string) policy.Budget {
	return policy.Budget{Name: name, Rate: limit.Rate{Units: units, Window: window}, Burst: burst, OnOutage: onOutage}
}

// budgets fails the test unless just these are in force.
func (s *system) budgets(when, want string) {
	s.t.Helper()
	const inForce = `SELECT coalesce(string_agg(format('%s %s/%s %s %s', name, rate, extract(epoch FROM window_size)::integer, burst, on_outage), ', '
		ORDER BY name), '') FROM call_budgets`
	if got := one[string](s, inForce); got != want {
		s.t.Errorf("%s %q is in force, want %q", when, got, want)
	}
}

// Budgets are published as limits are: changes are audited, the same rules change nothing, what left the
// configuration goes.
func TestPublishBudgets(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	search, mail := budgetRule("search", 100, time.Second, 20, "open"), budgetRule("mail", 5, time.Minute, 1, "closed")
	s.publish(withBudgets(search, mail))
	s.budgets("at first", "mail 5/60 1 closed, search 100/1 20 open")
	before := one[string](s, `SELECT json_agg(b ORDER BY name)::text FROM call_budgets b`)
	if changes := s.publish(withBudgets(mail, search)); len(changes) > 0 {
		t.Errorf("the same rules changed %q", changes)
	}
	if after := one[string](s, `SELECT json_agg(b ORDER BY name)::text FROM call_budgets b`); after != before {
		t.Errorf("the same rules changed\n%s\nto\n%s", before, after)
	}
	search.OnOutage = "closed"
	changes := s.publish(withBudgets(search))
	if want := []string{"budget search: 100 per 1s, burst 20, on_outage closed", "budget mail: removed"}; !slices.Equal(changes, want) {
		t.Errorf("changes %q, want %q", changes, want)
	}
	s.budgets("at last", "search 100/1 20 closed")
	s.want(`SELECT array_agg(name || ': ' || change ORDER BY id) = '{"mail: 5 per 1m, burst 1, on_outage closed",
		"search: 100 per 1s, burst 20, on_outage open","search: 100 per 1s, burst 20, on_outage closed","mail: removed"}'
		FROM call_audit WHERE what = 'budget'`)
}

func TestBudgetsThatContradictThemselves(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	good := budgetRule("api", 1, time.Second, 1, "open")
	for words, budgets := range map[string][]policy.Budget{
		"given twice": {good, good},
		"empty":       {budgetRule("", 1, time.Second, 1, "open")},
		"rate":        {budgetRule("api", 0, time.Second, 1, "open")},
		"burst":       {budgetRule("api", 1, time.Second, 0, "open")},
		"366d":        {budgetRule("api", 1, limit.MaxWindow, 2, "open")},
		`on_outage is "shut"; it may be closed or open`: {budgetRule("api", 1, time.Second, 1, "shut")},
	} {
		if _, err := policy.Apply(t.Context(), s.pool, withBudgets(budgets...), "tester"); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v: %v, want %q", budgets, err, words)
		}
	}
}
