package dispatcher_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/tasks"
)

// Between ticks a dispatcher looks again by itself: these have one tick, at their start, so that
// what is made afterwards was found by a look.
func TestLooksBetweenTicks(t *testing.T) {
	t.Parallel()
	calls := func(n int) func() []callqueue.Call {
		return func() []callqueue.Call { return slices.Repeat([]callqueue.Call{{Task: "ok"}}, n) }
	}
	runAt := func(offsets ...time.Duration) func() []callqueue.Call {
		return func() []callqueue.Call {
			list := calls(len(offsets))()
			for i := range list {
				list[i].RunAt = time.Now().Add(offsets[i])
			}
			return list
		}
	}
	for _, c := range []struct {
		name  string
		rule  policy.Limit
		calls func() []callqueue.Call
	}{
		{"when a client inserts", sliding("api", 100, time.Hour), calls(1)},
		{"when a call falls due", sliding("api", 100, time.Hour), runAt(0, 400*time.Millisecond, 800*time.Millisecond)}, // the look that finds the second must see when the third falls due
		{"when units come free", sliding("api", 2, 300*time.Millisecond), calls(5)},
		{"when slots come free", sliding("api", 1000, time.Hour), calls(60)},
	} {
		parallel(t, c.name, func(t *testing.T, s *system) {
			d, err := dispatcher.New(dispatcher.Config{
				Pool: s.pool, Redis: s.redis, Policy: rules(c.rule), Logger: s.log,
				Schedule: dispatcher.Schedule{Dispatch: "@every 1h"},
			})
			if err != nil {
				t.Fatal(err)
			}
			w, err := tasks.New(tasks.Config{Pool: s.pool, Redis: s.redis, Concurrency: 2, Logger: s.log})
			if err != nil {
				t.Fatal(err)
			}
			w.Handle("ok", func(context.Context, *tasks.Call) error { return nil })
			s.run(w.Run)
			s.eventually(`SELECT count(*) = 1 FROM call_workers`)
			s.run(d.Run)
			s.eventually(`SELECT count(*) = 1 FROM call_limits WHERE complete_since IS NOT NULL`)
			client, err := callqueue.New(s.pool)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.InsertMany(t.Context(), c.calls()); err != nil {
				t.Fatal(err)
			}
			s.eventually(`SELECT bool_and(status = 'done') FROM call_queue`)
			s.verify()
		})
	}
}

// Units that come back early are given out at once, though their limit could not have had room yet.
func TestUnitsThatComeBackEarly(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(t *testing.T, s *system){
		"by cancelling what was handed over": func(_ *testing.T, s *system) { s.cancel(1) },
		"by setting a higher rate": func(t *testing.T, s *system) {
			if _, err := policy.Override(t.Context(), s.pool, "api", limit.Rate{Units: 3, Window: time.Hour}, "test"); err != nil {
				t.Error(err)
			}
		},
		"by a worker that sent nothing": func(t *testing.T, s *system) {
			w, err := tasks.New(tasks.Config{Pool: s.pool, Redis: s.redis, Concurrency: 20, HTTP: &tasks.HTTPConfig{}, Logger: s.log})
			if err != nil {
				t.Fatal(err)
			}
			s.run(w.Run)
		},
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			d, err := dispatcher.New(dispatcher.Config{
				Pool: s.pool, Redis: s.redis, Policy: rules(sliding("api", 2, time.Hour)), Logger: s.log,
				Schedule: dispatcher.Schedule{Dispatch: "@every 1h"},
			})
			if err != nil {
				t.Fatal(err)
			}
			s.alive(20)
			s.exec(`INSERT INTO call_queue (call_data) SELECT '{"url": "http://127.0.0.1:1"}' FROM generate_series(1, 3)`)
			s.run(d.Run)
			s.eventually(`SELECT count(*) = 2 FROM call_open`)
			free(t, s)
			s.eventually(`SELECT attempts > 0 FROM call_queue WHERE id = 3`)
		})
	}
}

// So is what was kept by a call that waited for more units than there were, once that is cancelled.
func TestCancellingACallThatHeldUpOthers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 10, time.Hour))
	r.Limits[0].CountCost = true
	d, err := dispatcher.New(dispatcher.Config{
		Pool: s.pool, Redis: s.redis, Policy: r, Logger: s.log, Schedule: dispatcher.Schedule{Dispatch: "@every 1h"},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.exec(`INSERT INTO call_queue (cost) VALUES (5), (8), (5)`)
	s.run(d.Run)
	s.eventually(`SELECT count(*) = 1 FROM call_open`)
	s.cancel(2)
	s.eventually(`SELECT array_agg(call_id ORDER BY call_id) = '{1,3}' FROM call_open`)
}

// A dispatcher that had nothing to claim sees all the same that Postgres's clock was set forward.
func TestIdleDispatcherSeesTheClockSet(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	monotonic := time.Now()
	d := s.clocked(&monotonic)
	s.exec(`INSERT INTO call_usage (limit_name, key, bucket, shard, used) VALUES ('api', '', clock_timestamp() - interval '70 min', 1, 1)`)
	s.calls("default", 1)
	monotonic = monotonic.Add(-30 * time.Minute) // so much Postgres's clock has gained
	if err := d.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want(`SELECT count(*) = 0 FROM call_open`)
}

// So does one that counts what a limit has used from the ledger.
func TestOpeningReachesBackBehindAStepOfTheClock(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	monotonic := time.Now()
	d := s.clocked(&monotonic)
	s.exec(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
		SELECT 9, 1, 1, at, at, at, at, 'done', 'default', 'http', '', '[]' FROM (SELECT clock_timestamp() - interval '70 min' AS at) a`)
	s.exec(`UPDATE call_limits SET complete_since = NULL`)
	s.calls("default", 1)
	monotonic = monotonic.Add(-30 * time.Minute)
	if err := d.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want(`SELECT complete_since IS NOT NULL FROM call_limits`)
	s.want(`SELECT count(*) = 0 FROM call_open`)
}

// clocked is a dispatcher with a clock of the test's own, once its limit is open.
func (s *system) clocked(now *time.Time) *dispatcher.Dispatcher {
	s.t.Helper()
	d, err := dispatcher.New(dispatcher.Config{
		Pool: s.pool, Redis: s.redis, Policy: rules(sliding("api", 1, time.Hour)), Logger: s.log,
		Now: func() time.Time { return *now },
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := d.Patient().OnceUnfrozen(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return d
}
