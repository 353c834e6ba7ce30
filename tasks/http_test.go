package tasks_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/tasks"
	"github.com/prometheus/client_golang/prometheus"
)

// A worker without Config.HTTP takes no calls of the task http. Its handlers' clients have the defaults, or what
// Config.Client says.
func TestWorkerThatDoesNotTakeHTTP(t *testing.T) {
	t.Parallel()
	api := serve(t, func(http.ResponseWriter, *http.Request) {})
	b := newBench(t, nil)
	b.drain()
	for _, c := range []struct {
		cfg  tasks.Config
		want string
	}{{tasks.Config{}, ""}, {tasks.Config{HTTP: &tasks.HTTPConfig{}}, "http"}} {
		c.cfg.Pool, c.cfg.Redis = b.pool, b.redis
		w, err := tasks.New(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(w.Tasks(), " "); got != c.want {
			t.Errorf("it takes %q, want %q", got, c.want)
		}
		if err := w.Reload(tasks.HTTPConfig{}); (err == nil) != (c.want == "http") {
			t.Errorf("reloading a worker that takes %q: %v", c.want, err)
		}
		if c.want == "" {
			if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "takes nothing") {
				t.Errorf("run without a task: %v", err)
			}
		}
	}

	ended := make(chan error, 1)
	for _, c := range []struct {
		task, want string
		client     *tasks.HTTPConfig
	}{{"defaults", "private address", nil}, {"given", "", &tasks.HTTPConfig{PrivateHosts: []string{"127.0.0.1"}}}} {
		w, err := tasks.New(tasks.Config{Pool: b.pool, Redis: b.redis, Concurrency: 2, Client: c.client})
		if err != nil {
			t.Fatal(err)
		}
		w.Handle(c.task, func(ctx context.Context, call *tasks.Call) error {
			ended <- get(ctx, call, api.URL)
			return nil
		})
		b.run(w.Run)
		b.insert(c.task)
		if err := <-ended; (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.task, err)
		}
	}
	id := b.insert("http")
	b.insert("given")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	b.await(`SELECT status = 'new' AND attempts = 0 FROM call_queue WHERE id = $1`, id)
}

// What a worker did not send because it took longer than send_within is counted.
func TestTooLate(t *testing.T) {
	t.Parallel()
	api := serve(t, func(http.ResponseWriter, *http.Request) {})
	registry := prometheus.NewRegistry()
	b := newBenchWith(t, dispatcher.Config{Metrics: registry}, limit.Rate{Units: 1000, Window: time.Hour}, map[string]tasks.Handler{
		"mine": func(ctx context.Context, call *tasks.Call) error { return get(ctx, call, api.URL) },
	})
	b.await(`SELECT count(*) = 1 FROM call_limits`)
	b.exec(`UPDATE call_limits SET send_within = '1 us', anchor = 'start'`)
	for _, task := range []string{tasks.HTTP, "mine"} {
		b.insertCall(callqueue.Call{Task: task, Data: map[string]any{"url": api.URL}})
		b.await(`SELECT count(*) >= 3 FROM call_attempts WHERE error LIKE '%longer than send_within%' AND outcome = 'not_sent' AND task = $1`, task)
	}
	b.drain() // what an attempt was is counted after it is recorded
	var recorded float64
	if err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM call_attempts WHERE error LIKE '%longer than send_within%'`).Scan(&recorded); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "callq_too_late_total" && f.GetMetric()[0].GetCounter().GetValue() == recorded {
			return
		}
	}
	t.Errorf("callq_too_late_total is not %v: %v", recorded, families)
}

// Without a tick of the schedule, the end of one call lets the next go, and so does one whose cost was reported below
// what was claimed.
func TestEndsWakeDispatchers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		rate limit.Rate
		cost int64
		set  string
	}{
		{"at once", limit.Rate{Units: 1}, 1, ""},
		{"settled", limit.Rate{Units: 100, Window: time.Hour}, 60, `UPDATE call_limits SET count_cost = true RETURNING true`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := dispatcher.Config{Schedule: dispatcher.Schedule{Dispatch: "@every 24h"}}
			b := newBenchWith(t, cfg, c.rate, map[string]tasks.Handler{
				"settle": func(_ context.Context, call *tasks.Call) error { return call.Settle(1) },
			})
			if c.set != "" {
				b.await(c.set)
			}
			const n = 30
			for range n {
				b.insertCall(callqueue.Call{Task: "settle", Cost: c.cost})
			}
			b.await(`SELECT count(*) = $1 FROM call_queue WHERE status = 'done'`, n)
			if c.set != "" {
				b.await(`SELECT sum(used) = $1 FROM call_usage`, n)
			}
		})
	}
}

// An answer with Retry-After closes a limit for no longer than its retry_after, and only from its hosts where it
// names some: or one row that names a stranger's host closes it for a day.
func TestRetryAfterOfAStranger(t *testing.T) {
	t.Parallel()
	api := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "86400")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	b := newBench(t, nil)
	host := strings.TrimPrefix(api.URL, "http://")
	b.await(`SELECT retry_after = '1 hour' AND hosts = '{}' FROM call_limits WHERE name = 'api'`)
	for _, c := range []struct{ hosts, most, closed string }{
		{"{api.example.com}", "1 hour", ""},
		{"{" + host + "1}", "1 hour", ""},
		{"{}", "0", ""},
		{"{}", "1 hour", "1 hour"},
		{"{127.0.0.1,api.example.com}", "2 minutes", "2 minutes"},
		{"{" + host + "}", "2 days", "1 day"},
	} {
		b.exec(`WITH p AS (DELETE FROM call_pauses) UPDATE call_limits SET hosts = $1, retry_after = $2`, c.hosts, c.most)
		id := b.insertCall(callqueue.Call{Data: map[string]any{"url": api.URL}})
		b.await(`SELECT status = 'error' AND run_at > now() + interval '23 h' FROM call_queue WHERE id = $1`, id)
		b.await(`SELECT (SELECT count(*) FROM call_pauses) = CASE $1 WHEN '' THEN 0 ELSE 1 END
			AND NOT EXISTS (SELECT FROM call_pauses WHERE (what, name, key) <> ('limit', 'api', '') OR reason NOT LIKE $2 OR until NOT BETWEEN now() + nullif($1, '')::interval - interval '1 minute' AND now() + nullif($1, '')::interval)`,
			c.closed, fmt.Sprintf("the API answered call %d: %%429 Too Many Requests", id))
	}
	b.await(`SELECT count(*) = 3 FROM call_audit WHERE change LIKE 'paused%'`)
}
