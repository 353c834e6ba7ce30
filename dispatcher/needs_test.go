package dispatcher_test

import (
	"cmp"
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/redistest"
	"github.com/callq/callq/tasks"
)

// needing is a policy whose queue default needs units of a budget of 10 per hour, burst 10.
func needing(units int64, changes ...func(*policy.Budget)) policy.Policy {
	b := policy.Budget{Name: "search", Rate: limit.Rate{Units: 10, Window: time.Hour}, Burst: 10, OnOutage: "closed"}
	for _, change := range changes {
		change(&b)
	}
	q := queue("default")
	q.Needs = map[string]int64{"search": units}
	return policy.Policy{Queues: []policy.Queue{q}, Budgets: []policy.Budget{b}}
}

func search(p policy.Policy, key string, n int64) budget.Units {
	b := p.Budgets[0]
	return budget.Units{Name: b.Name, Rule: budget.Rule{Rate: b.Rate, Burst: b.Burst, Shape: b.BudgetShape}, Key: key, N: n}
}

// draw draws units as an attempt of a call would; 0: as somebody else.
func (s *system) draw(u budget.Units, call int64) {
	s.t.Helper()
	owner := ""
	if call > 0 {
		owner = budget.Owner(s.broker().Database(), call)
	}
	if g, err := budget.Draw(s.t.Context(), s.redis, owner, 0, u); err != nil || !g.Drawn {
		s.t.Fatalf("%+v, %v", g, err)
	}
}

func (s *system) state(u budget.Units, free, promised int64) {
	s.t.Helper()
	if got, err := budget.Peek(s.t.Context(), s.redis, u); err != nil || got[0].Free != free || got[0].Promised != promised {
		s.t.Errorf("%+v (%v), want %d free and %d promised", got, err, free, promised)
	}
}

func (s *system) areOpen(want int64) {
	s.t.Helper()
	if got := one[int64](s, `SELECT count(*) FROM callq.call_open`); got != want {
		s.t.Errorf("%d attempts are open, want %d", got, want)
	}
}

// Of a queue that needs a budget, no more calls are claimed than its units are for, less those promised to calls that have not
// drawn them yet.
func TestNeedsBoundClaims(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := needing(3)
	s.alive(100)
	s.calls("default", 20)
	s.once(p)
	d, u := s.dispatcher(p), search(p, "", 3)
	s.areOpen(3)
	s.state(u, 10, 9)
	s.draw(u, one[int64](s, `SELECT min(call_id) FROM callq.call_open`)) // its own
	s.state(u, 7, 6)
	s.tick(d)
	s.areOpen(3)
	s.start(time.Minute)
	s.finish() // two of the attempts did not draw, and no worker says so
	s.tick(s.dispatcher(p))
	s.areOpen(2)
	s.state(u, 7, 6)
}

// A queue without units costs no claim: not at a tick, nor when calls arrive.
func TestNeedsWithoutUnitsCostNoClaim(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := needing(3)
	s.alive(100)
	s.calls("default", 5)
	s.publish(p)
	d, u := s.dispatcher(p), search(p, "", 8)
	s.draw(u, 0)
	for range 3 {
		s.tick(d)
		s.poll(d)
	}
	s.areOpen(0)
	s.want(`SELECT pg_sequence_last_value('callq.call_batch_seq') IS NULL`)
	s.redis.Del(t.Context(), "callq:budget:{search}")
	s.tick(d)
	s.areOpen(3)
}

// While all units are promised, and drawn by nobody, there is nothing to claim until one can come free: after a draw, or an end.
func TestNeedsThatArePromisedCostNoClaim(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*policy.Budget){
		"token bucket":   func(*policy.Budget) {},
		"sliding window": func(b *policy.Budget) { b.Burst, b.Algorithm = 1, limit.SlidingWindow },
		"fixed window": func(b *policy.Budget) {
			b.Burst, b.Algorithm, b.Period, b.Rate.Window = 1, limit.FixedWindow, "12mo", 366*24*time.Hour
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			p := needing(5, change)
			s.alive(100)
			s.calls("default", 9)
			s.publish(p)
			d := s.dispatcher(p)
			s.tick(d)
			s.areOpen(2)
			claims := one[int64](s, `SELECT last_value FROM callq.call_batch_seq`)
			for range 5 {
				s.poll(d)
			}
			if n := one[int64](s, `SELECT last_value FROM callq.call_batch_seq`) - claims; n > 1 {
				t.Errorf("%d claims for nothing", n)
			}
			s.redis.Del(t.Context(), search(p, "", 0).Promised()) // they ended, and workers tell
			d.Freed()
			s.poll(d)
			s.areOpen(4)
		})
	}
}

// What a crash leaves promised is given to others.
func TestNeedsRepairPromises(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := needing(5)
	s.alive(100)
	s.publish(p)
	u := search(p, "", 5)
	s.redis.HSet(t.Context(), u.Promised(), budget.Owner(s.broker().Database(), 77), 9)
	s.redis.HSet(t.Context(), u.Promised(), budget.Owner("another", 77), 1)
	s.calls("default", 5)
	s.tick(s.dispatcher(p))
	s.areOpen(1)
	s.state(u, 10, 6)
}

// Keys have budgets of their own: one that lacks units holds up no other.
func TestNeedsPerKey(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := needing(5, func(b *policy.Budget) { b.PerKey = true })
	s.alive(100)
	s.publish(p)
	s.exec(`INSERT INTO call_queue (key) SELECT k FROM unnest('{a,b,c}'::text[]) k, generate_series(1, 4)`)
	s.draw(search(p, "a", 8), 0)
	s.draw(search(p, "b", 3), 0)
	d := s.dispatcher(p)
	s.tick(d)
	s.tick(d)
	s.want(`SELECT array_agg(key ORDER BY key) = '{b,c,c}' FROM callq.call_open`)
	s.state(search(p, "c", 5), 10, 10)
}

// A claim that meets keys whose budgets were not read leaves them to the next.
func TestNeedsOfManyKeys(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := needing(5, func(b *policy.Budget) { b.PerKey = true })
	s.alive(100)
	s.publish(p)
	s.exec(`INSERT INTO call_queue (key) SELECT 'k' || k FROM generate_series(1, 9) k, generate_series(1, 3)`)
	d := s.dispatcher(p, func(c *dispatcher.Config) { c.Flows = 2 })
	for range 30 {
		s.poll(d)
	}
	s.want(`SELECT count(*) = 18 AND count(DISTINCT key) = 9 FROM callq.call_open`)
}

// Handlers that draw what their queue needs are hardly ever turned away, and use all of the rate.
func TestNeedsSpareRuns(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	const calls, draws, rate = 200, 3, 100
	p := needing(draws, func(b *policy.Budget) { b.Rate, b.Burst = limit.Rate{Units: rate, Window: time.Second / 2}, rate })
	s.publish(p)
	w := s.tasks(100, nil)
	w.Handle("search", func(ctx context.Context, call *tasks.Call) error {
		for range draws {
			if wait, err := call.TryDraw(ctx, "search", 1); err != nil || wait > 0 {
				return errors.Join(err, tasks.Snooze(wait))
			}
		}
		return nil
	})
	s.exec(`INSERT INTO call_queue (task) SELECT 'search' FROM generate_series(1, $1)`, calls)
	began := time.Now()
	s.run(w.Run)
	s.run(s.dispatcher(p).Run)
	s.eventually(`SELECT count(*) = $1 FROM call_queue WHERE status = 'done'`, calls)
	took, runs := time.Since(began), one[int64](s, `SELECT count(*) FROM call_attempts`)
	t.Logf("%d calls of %d draws: %d runs, %.2f a call, in %s; at the rate %s", calls, draws, runs, float64(runs)/calls, took,
		time.Duration(calls*draws-rate)*time.Second/2/rate)
	if runs > calls*11/10 {
		t.Errorf("%d runs of %d calls", runs, calls)
	}
	if n := s.redis.Exists(t.Context(), search(p, "", 1).Promised()).Val(); n != 0 {
		t.Error("something is promised still")
	}
}

// While the budgets' Redis is away, nothing is claimed, or with on_outage open as if there were no need.
func TestNeedsWithoutRedis(t *testing.T) {
	t.Parallel()
	for onOutage, want := range map[string]int64{"closed": 0, "open": 5} {
		t.Run(onOutage, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			server, err := local.StartRedis(context.Background(), local.Redis{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = server.Stop() }()
			options, err := redis.ParseURL(server.URL())
			if err != nil {
				t.Fatal(err)
			}
			options.MaxRetries, options.ContextTimeoutEnabled = -1, true
			client := redis.NewClient(options)
			defer client.Close()
			p := needing(3, func(b *policy.Budget) { b.OnOutage = onOutage })
			s.alive(100)
			s.calls("default", 5)
			s.publish(p)
			d := s.dispatcher(p, func(c *dispatcher.Config) { c.Budgets = client })
			server.Kill()
			for range 3 {
				s.tick(d)
			}
			s.areOpen(want)
			s.want(`SELECT $1 = 5 OR pg_sequence_last_value('callq.call_batch_seq') IS NULL`, want)
		})
	}
}

// A budget with which something is wrong that does not pass holds up its queue, even if it is open, and no other.
func TestNeedsOfABudgetThatIsRefused(t *testing.T) {
	t.Parallel()
	for what, harm := range map[string]func(*system){
		"another's key": func(s *system) { s.redis.LPush(t.Context(), "callq:budget:{search}", "x") },
		"no row":        func(s *system) { s.exec(`DELETE FROM callq.call_budgets`) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			p := needing(3, func(b *policy.Budget) { b.OnOutage = "open" })
			p.Queues = append(p.Queues, queue("other"))
			s.alive(100)
			s.calls("default", 5)
			s.calls("other", 5)
			s.publish(p)
			harm(s)
			d := s.dispatcher(p)
			for range 2 {
				s.tick(d)
			}
			s.want(`SELECT array_agg(DISTINCT queue) = '{other}' AND count(*) = 5 FROM callq.call_open`)
		})
	}
}

// While Redis is gone under load, draws on a closed budget stop, those on an open one go through and are counted, and no call is
// lost. REDIS_GONE says for how long (1s).
//
//callq:guarantee 19
func TestRedisGoneUnderLoad(t *testing.T) {
	t.Parallel()
	gone, err := time.ParseDuration(cmp.Or(os.Getenv("REDIS_GONE"), "1s"))
	if err != nil {
		t.Fatal(err)
	}
	s := newSystem(t)
	server, client := redistest.Start(t, nil, redis.Options{MaxRetries: -1, ContextTimeoutEnabled: true})
	s.redis = client
	p := policy.Policy{Queues: []policy.Queue{queue("default")}}
	p.Queues[0].Timeout = time.Minute
	for _, name := range []string{"closed", "open"} {
		p.Budgets = append(p.Budgets, policy.Budget{Name: name, Rate: limit.Rate{Units: 1000, Window: time.Second}, Burst: 10, OnOutage: name})
	}
	s.publish(p)
	counts := prometheus.NewRegistry()
	w, err := tasks.New(tasks.Config{Pool: s.pool, Redis: client, Concurrency: 60, Logger: s.log, Metrics: counts})
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[string]*atomic.Int64{"closed": {}, "open": {}}
	more := func(name string) int64 { return drawn[name].Load() }
	var healed atomic.Bool
	for name, n := range drawn {
		w.Handle(name, func(ctx context.Context, call *tasks.Call) error {
			for draws := 0; draws < 100 || !healed.Load(); draws++ {
				if err := call.Draw(ctx, name, 1); err != nil {
					return err
				}
				n.Add(1)
				time.Sleep(time.Millisecond) // its request
			}
			return nil
		})
	}
	s.exec(`INSERT INTO call_queue (task) SELECT t FROM generate_series(1, 20), unnest('{closed,open}'::text[]) t`)
	s.run(w.Run)
	s.run(s.dispatcher(p).Run)
	awaits := func(what string, so func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !so(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("still not: %s", what)
			}
		}
	}
	awaits("both draw", func() bool { return more("closed") > 100 && more("open") > 100 })
	server.Kill()
	killed := time.Now()
	awaits("open draws without Redis", func() bool { return total(t, counts, "callq_budget_uncounted_units_total") > 2000 })
	closed, open := more("closed"), more("open") // what was granted before was to be used within 20 ms, and is by now
	awaits("it was gone for so long", func() bool { return time.Since(killed) > gone })
	if n := more("closed") - closed; n > 0 {
		t.Errorf("%d draws on a closed budget went through without Redis", n)
	}
	passed := more("open") - open
	if err := server.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	healed.Store(true)
	s.eventually(`SELECT count(*) = 40 FROM call_queue WHERE status = 'done'`)
	units, uncounted := total(t, counts, "callq_budget_units_total"), total(t, counts, "callq_budget_uncounted_units_total")
	t.Logf("in %s without Redis %d draws on the open budget went through, and none on the closed one; %.0f counted and %.0f not",
		gone, passed, units, uncounted)
	if sum := more("closed") + more("open"); units+uncounted != float64(sum) {
		t.Errorf("%.0f units were counted and %.0f not, of %d drawn", units, uncounted, sum)
	}
}

// total is the sum of a counter.
func total(t *testing.T, counts *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := counts.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
