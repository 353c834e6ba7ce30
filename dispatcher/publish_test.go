package dispatcher_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

func TestPublishVersions(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	begun := one[time.Time](s, `SELECT clock_timestamp()`)
	s.publish(rules(sliding("api", 10, time.Minute)))
	s.publish(rules(sliding("api", 12, time.Minute)))
	s.publish(rules()) // taken away
	s.publish(rules(sliding("api", 5, time.Hour)))
	s.publish(rules(sliding("api", 5, time.Hour)))
	s.want(`SELECT array_agg(version ORDER BY version) = '{1,2,3,4}'
		AND array_agg(coalesce(rate, 0) ORDER BY version) = '{10,12,0,5}'
		AND array_agg(coalesce(window_size, '0') ORDER BY version) = '{1 min,1 min,1 min,1 h}'
		AND array_agg(effective_from ORDER BY version) = array_agg(effective_from ORDER BY effective_from)
		AND count(DISTINCT effective_from) = 4
		AND min(effective_from) > $1 AND max(effective_from) < clock_timestamp()
		AND bool_and(applied_by <> '') FROM callq.call_limit_versions`, begun)
	s.want(`SELECT version = 4 AND rate = 5 AND queues = '{default}' AND complete_since IS NULL FROM callq.call_limits`)
	s.want(`SELECT limits = '{api}' FROM callq.call_queues`)
}

// Whose Retry-After closes a limit, and for how long, is in force at once, and no reason to recall.
func TestPublishRetryAfter(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 10, time.Minute))
	s.publish(r)
	s.want(`SELECT hosts = '{}' AND retry_after = '1 hour' FROM callq.call_limits`)
	r.Limits[0].Hosts, r.Limits[0].RetryAfter = []string{"b", "a"}, new(time.Duration(0))
	if changes := s.publish(r); len(changes) != 1 || !strings.Contains(changes[0], "hosts a and b, retry_after off") {
		t.Errorf("changes %q", changes)
	}
	s.want(`SELECT version = 2 AND hosts = '{a,b}' AND retry_after = '0' FROM callq.call_limits`)
	s.set(5, time.Minute)
	s.want(`SELECT version = 3 AND hosts = '{a,b}' AND retry_after = '0' FROM callq.call_limits`)
	if changes := s.publish(r); len(changes) > 0 {
		t.Errorf("published again: %q", changes)
	}
}

// Whatever changes of a limit or queue, the audit shows it.
func TestPublishSaysWhatChanged(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	before := rules(sliding("api", 10, time.Minute))
	s.publish(before)
	after := rules(sliding("api", 10, time.Minute))
	after.Limits[0].Anchor, after.Limits[0].Slack, after.Limits[0].SendWithin = limit.AnchorFinish, 7*time.Second, 3*time.Second
	q := &after.Queues[0]
	q.On, q.BackoffMin, q.BackoffMax, q.OnLost, q.MaxAttempts = "ip-a", 11*time.Second, 12*time.Second, "fail", 7
	s.publish(after)
	s.want(`SELECT max_attempts = 7 FROM callq.call_queues`)
	for what, said := range map[string][]string{
		"limit": {"anchor finish", "slack 7s", "send_within 3s"}, "queue": {"on ip-a", "backoff 11s..12s", "on_lost fail"},
	} {
		change := one[string](s, `SELECT change FROM callq.call_audit WHERE what = $1 ORDER BY id DESC LIMIT 1`, what)
		for _, text := range said {
			if !strings.Contains(change, text) {
				t.Errorf("the audit says of the %s %q, and nothing of %q", what, change, text)
			}
		}
	}
}

// What was claimed and has not started is recalled when the rate falls, what has started counts.
//
//callq:guarantee 1 7
func TestPublishLowered(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.calls("default", 40)
	s.once(rules(sliding("api", 10, time.Hour)))
	s.start(time.Hour, 1, 2, 3, 4)
	s.publish(rules(sliding("api", 11, time.Hour)))
	s.want(`SELECT count(*) = 10 FROM callq.call_open`) // a higher rate recalls nothing
	lower := rules(sliding("api", 6, time.Hour))
	if changes := s.publish(lower); !slices.Contains(changes, "6 unstarted attempts recalled") {
		t.Errorf("changes %q, want six recalled", changes)
	}
	s.want(`SELECT count(*) = 4 AND count(started_at) = 4 FROM callq.call_open`)
	s.want(`SELECT count(*) = 6 FROM call_attempts WHERE outcome = 'not_sent' AND charged = '[]'`)
	s.want(`SELECT count(*) = 36 AND max(failed_count) = 0 FROM call_queue WHERE status = 'new'`)
	s.once(lower)
	s.want(`SELECT count(*) = 6 FROM callq.call_open`)
	s.publish(rules(sliding("api", 3, time.Hour)))
	s.once(rules(sliding("api", 3, time.Hour)))
	s.want(`SELECT count(*) = 4 FROM callq.call_open`)
	s.verify()
}

// A start that is under way while the rate is lowered belongs to the former rate.
//
//callq:guarantee 7 12
func TestPublishLoweredDuringStarts(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.calls("default", 4)
	s.once(rules(sliding("api", 4, time.Hour)))
	tx := s.hold()
	if _, err := ledger.Start(t.Context(), tx, "w", s.requests([]int64{1}, time.Minute)); err != nil {
		t.Fatal(err)
	}
	var published sync.WaitGroup
	published.Go(func() { s.publish(rules(sliding("api", 1, time.Hour))) })
	s.eventually(waitingSQL, 1)
	s.start(time.Hour, 2, 3)
	s.release(tx)
	published.Wait()
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{1,2,3}' FROM callq.call_open`) // the fourth was recalled
	s.verify()
}

// Limits fall and rise while eight dispatchers claim and workers start and end attempts: at no
// start is any version of the limit exceeded.
//
//callq:guarantee 7
func TestPublishRace(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	s.calls("default", 3000)
	api := func(units int64) policy.Policy { return rules(sliding("api", units, time.Second)) }
	s.publish(api(40))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	stop, ended := make(chan struct{}), sync.WaitGroup{}
	for range 8 {
		d := s.another(policy.Policy{})
		ended.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := d.Tick(ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2 {
		ended.Go(func() { s.work(stop) })
	}
	for i := range 16 {
		s.eventually(`SELECT count(*) >= $1 FROM call_attempts WHERE outcome = 'done'`, 8*(i+1))
		next := api([]int64{40, 7, 25, 12}[i%4])
		next.Queues[0].MaxAttempts += i % 2
		begun := time.Now()
		s.publish(next)
		if took := time.Since(begun); took > time.Minute { // starved, it would wait for ever
			t.Errorf("publishing waited %s for claims", took)
		}
	}
	close(stop)
	ended.Wait()
	s.verify()
}

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
		ORDER BY name), '') FROM callq.call_budgets`
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
	before := one[string](s, `SELECT json_agg(b ORDER BY name)::text FROM callq.call_budgets b`)
	if changes := s.publish(withBudgets(mail, search)); len(changes) > 0 {
		t.Errorf("the same rules changed %q", changes)
	}
	if after := one[string](s, `SELECT json_agg(b ORDER BY name)::text FROM callq.call_budgets b`); after != before {
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
		FROM callq.call_audit WHERE what = 'budget'`)
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
