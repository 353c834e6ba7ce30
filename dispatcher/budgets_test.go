package dispatcher_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
)

func withBudgets(budgets ...dispatcher.BudgetRule) dispatcher.Rules {
	r := hourly(10)
	r.Budgets = budgets
	return r
}

func budgetRule(name string, units int64, window time.Duration, burst int64, onOutage string) dispatcher.BudgetRule {
	return dispatcher.BudgetRule{Name: name, Rate: limit.Rate{Units: units, Window: window}, Burst: burst, OnOutage: onOutage}
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
	if want := []string{"budget search: 100 per 1s, burst 20, on_outage closed", "budget mail: taken away"}; !slices.Equal(changes, want) {
		t.Errorf("changes %q, want %q", changes, want)
	}
	s.budgets("at last", "search 100/1 20 closed")
	s.want(`SELECT array_agg(name || ': ' || change ORDER BY id) = '{"mail: 5 per 1m, burst 1, on_outage closed",
		"search: 100 per 1s, burst 20, on_outage open","search: 100 per 1s, burst 20, on_outage closed","mail: taken away"}'
		FROM call_audit WHERE what = 'budget'`)
}

// While live processes publish different budgets the stricter hold, for as long as each lives.
func TestStricterBudgetsHold(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	first := s.joined(withBudgets(budgetRule("api", 100, time.Second, 5, "open"), budgetRule("own", 1, time.Second, 1, "open")))
	second := s.joined(withBudgets(budgetRule("api", 60, time.Minute, 20, "closed")))
	s.budgets("beside the stricter", "api 60/60 5 closed, own 1/1 1 open")
	live, err := dispatcher.Live(t.Context(), s.pool)
	if err != nil {
		t.Fatal(err)
	}
	differ := dispatcher.BudgetDifferences(live)
	if len(differ["api"]) != 2 || differ["api"][1].Rule != "60 per 1m, burst 20, on_outage closed" || len(differ["own"]) != 2 || len(differ) != 2 {
		t.Errorf("they differ in %+v", differ)
	}
	second.Leave(t.Context())
	s.tick(first)
	s.budgets("without the stricter", "api 100/1 5 open, own 1/1 1 open")
	first.Leave(t.Context())
	s.tick(s.another(dispatcher.Rules{}))
	s.budgets("after the last", "api 100/1 5 open, own 1/1 1 open")
}

func TestBudgetsThatContradictThemselves(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	good := budgetRule("api", 1, time.Second, 1, "open")
	for words, budgets := range map[string][]dispatcher.BudgetRule{
		"given twice": {good, good},
		"empty":       {budgetRule("", 1, time.Second, 1, "open")},
		"rate":        {budgetRule("api", 0, time.Second, 1, "open")},
		"burst":       {budgetRule("api", 1, time.Second, 0, "open")},
		"366d":        {budgetRule("api", 1, limit.MaxWindow, 2, "open")},
		`on_outage is "shut"; it may be closed or open`: {budgetRule("api", 1, time.Second, 1, "shut")},
	} {
		if _, err := dispatcher.Publish(t.Context(), s.pool, withBudgets(budgets...)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v: %v, want %q", budgets, err, words)
		}
	}
}

// Whatever order they come in, what is in force lets through in no time more than each of them.
func TestStrictestBudgetImpliesEach(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var all []dispatcher.Published
		for range 2 + rng.IntN(3) {
			b := budgetRule("api", 1+rng.Int64N(6), time.Duration(1+rng.Int64N(6))*time.Second, 1+rng.Int64N(6), []string{"open", "closed"}[rng.IntN(2)])
			all = append(all, dispatcher.Published{Rules: withBudgets(b)})
		}
		got := dispatcher.StrictestBudgets(all)
		slices.Reverse(all)
		if again := dispatcher.StrictestBudgets(all); len(got) != 1 || !slices.Equal(got, again) {
			t.Fatalf("seed %d: of %v it is %v, the other way round %v", seed, all, got, again)
		}
		holds, anyRate, anyBurst := got[0], false, false
		for _, p := range all {
			b := p.Rules.Budgets[0]
			if holds.Rate.Units*int64(b.Rate.Window) > b.Rate.Units*int64(holds.Rate.Window) || holds.Burst > b.Burst ||
				holds.OnOutage == "open" && b.OnOutage == "closed" {
				t.Errorf("seed %d: %v does not imply %v", seed, holds, b)
			}
			anyRate, anyBurst = anyRate || holds.Rate == b.Rate, anyBurst || holds.Burst == b.Burst
		}
		if !anyRate || !anyBurst {
			t.Errorf("seed %d: nobody publishes %v", seed, holds)
		}
	}
}
