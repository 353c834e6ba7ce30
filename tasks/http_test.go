package tasks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/tasks"
	"github.com/prometheus/client_golang/prometheus"
)

// addWorker runs another worker.
func (b *bench) addWorker(cfg tasks.Config, handlers ...string) *tasks.Worker {
	b.t.Helper()
	cfg.Pool, cfg.Redis, cfg.Concurrency = b.pool, b.redis, 4
	w, err := tasks.New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, name := range handlers {
		w.Handle(name, func(context.Context, *tasks.Call) error { return nil })
	}
	b.run(w.Run)
	return w
}

// Beside a worker that lacks a secret, or whose hosts do not have the call's, every good call is made, by the one
// that can, also where it is of another pool; what none may make fails, and says why.
func TestCallThatAnotherWorkerCanMake(t *testing.T) {
	t.Parallel()
	api := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer 4711" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	b := newBench(t, nil) // its worker lacks the secret
	b.addWorker(tasks.Config{HTTP: &tasks.HTTPConfig{Hosts: []string{"api.example.com"}, AllowPrivate: true}}, "another pool")
	b.addWorker(tasks.Config{HTTP: &tasks.HTTPConfig{}}) // where private addresses are refused
	b.addWorker(tasks.Config{HTTP: &tasks.HTTPConfig{
		Hosts: []string{"127.0.0.1"}, PrivateHosts: []string{"127.0.0.1"},
		Secrets: map[string]tasks.Secret{"KEY": {Value: "4711", Hosts: []string{"127.0.0.1"}}},
	}}, "a third one's")
	b.await(`SELECT count(*) = 4 FROM callq.call_workers`)
	data := json.RawMessage(`{"url": "` + api.URL + `", "headers": {"Authorization": {"secret": "KEY", "prefix": "Bearer "}}}`)
	var calls []callqueue.Call
	for range 100 {
		calls = append(calls, callqueue.Call{Data: data})
	}
	if _, err := b.client.InsertMany(t.Context(), calls); err != nil {
		t.Fatal(err)
	}
	b.await(`SELECT NOT EXISTS (SELECT FROM call_queue WHERE status NOT IN ('done', 'failed'))`)
	b.await(`SELECT NOT EXISTS (SELECT FROM call_queue WHERE status <> 'done' OR failed_count > 0)`)
	b.await(`SELECT count(DISTINCT worker) = 1 FROM call_attempts WHERE outcome = 'done'`)
	b.await(`SELECT count(*) > 0 AND bool_and(outcome = 'not_sent' AND charged = '[]' AND error LIKE 'not sent: handed back for another worker: %')
		FROM call_attempts WHERE outcome <> 'done'`)

	id := b.insertCall(callqueue.Call{Data: json.RawMessage(strings.Replace(string(data), "KEY", "NOBODYS", 1))})
	b.await(`SELECT status = 'failed' AND attempts = 1 AND error_message LIKE '%"NOBODYS" is not one of this worker''s%' FROM call_queue WHERE id = $1`, id)
}

// A call waits for another worker that can make it. Where none can, it fails.
func TestWhoElseCanMakeACall(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	failsBeside := func(settings string, data string) bool {
		t.Helper()
		b.exec(`INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, http, started_at, heartbeat_at)
			VALUES ('other', 'http', '{http}', '{}', 0, nullif($1, '')::jsonb, now(), 'infinity')
			ON CONFLICT (id) DO UPDATE SET http = excluded.http`, settings)
		id := b.insertCall(callqueue.Call{Data: json.RawMessage(data)})
		b.await(`SELECT EXISTS (SELECT FROM call_attempts WHERE call_id = $1)`, id)
		record, err := b.client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return record.Status == callqueue.StatusFailed
	}
	for _, c := range []struct {
		what, settings string
		fails          bool
	}{
		{"it has the secret", `{"allow_private": true, "secrets": {"KEY": ["127.0.0.1"]}}`, false},
		{"it has another", `{"allow_private": true, "secrets": {"OTHER": ["127.0.0.1"]}}`, true},
		{"the secret is not for that host", `{"allow_private": true, "secrets": {"KEY": ["api.example.com"]}}`, true},
		{"it may not call the host", `{"hosts": ["api.example.com"], "secrets": {"KEY": ["127.0.0.1"]}}`, true},
	} {
		if failsBeside(c.settings, `{"url": "http://127.0.0.1:1", "headers": {"A": {"secret": "KEY"}}}`) != c.fails {
			t.Errorf("%s: fails is not %t", c.what, c.fails)
		}
	}
	b.drain()
	strict := b.addWorker(tasks.Config{HTTP: &tasks.HTTPConfig{}})
	b.await(`SELECT count(*) = 2 FROM callq.call_workers WHERE heartbeat_at > now() - interval '6 seconds'`)
	for settings, fails := range map[string]bool{`{"private_hosts": ["127.0.0.0/8"]}`: false, `{"private_hosts": ["127.0.0.2"]}`: true} {
		if failsBeside(settings, `{"url": "http://127.0.0.1:1"}`) != fails {
			t.Errorf("beside one with %s: fails is not %t", settings, fails)
		}
	}
	if err := strict.Reload(tasks.HTTPConfig{AllowPrivate: true}); err != nil {
		t.Fatal(err)
	}
	b.await(`SELECT bool_and(http ->> 'allow_private' = 'true') FROM callq.call_workers WHERE id <> 'other' AND heartbeat_at > now() - interval '6 seconds'`)

	// Nor can one make it that the queue's calls do not go to.
	b.exec(`UPDATE callq.call_queues SET label = 'ip-a'`)
	b.addWorker(tasks.Config{Labels: []string{"ip-a"}, HTTP: &tasks.HTTPConfig{AllowPrivate: true}})
	for labels, fails := range map[string]bool{"{}": true, "{ip-a}": false} {
		b.exec(`UPDATE callq.call_workers SET labels = $1::text[] WHERE id = 'other'`, labels)
		if failsBeside(`{"allow_private": true, "secrets": {"KEY": ["127.0.0.1"]}}`, `{"url": "http://127.0.0.1:1", "headers": {"A": {"secret": "KEY"}}}`) != fails {
			t.Errorf("beside one with labels %s: fails is not %t", labels, fails)
		}
	}
}

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
	b.await(`SELECT count(*) = 1 FROM callq.call_limits`)
	b.exec(`UPDATE callq.call_limits SET send_within = '1 us', anchor = 'start'`)
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
		{"settled", limit.Rate{Units: 100, Window: time.Hour}, 60, `UPDATE callq.call_limits SET count_cost = true RETURNING true`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// A tick mends what a busy machine cuts short. Thirty calls one after the other do not end by ticks.
			cfg := dispatcher.Config{Schedule: dispatcher.Schedule{Dispatch: "@every 20s"}}
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
				b.await(`SELECT sum(used) = $1 FROM callq.call_usage`, n)
			}
		})
	}
}

// A worker that comes says so.
func TestWorkerThatComesWakesDispatchers(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `LISTEN `+callqueue.WakeChannel); err != nil {
		t.Fatal(err)
	}
	b.addWorker(tasks.Config{}, "new")
	for said := ""; said != callqueue.WakeJoined; {
		n, err := conn.Conn().WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		said = n.Payload
	}
}

// The HTTP status and how long the answer took stand in the ledger, whatever of the answer is kept, also where a handler asked
// through the call's client.
func TestCodeStandsInTheLedger(t *testing.T) {
	t.Parallel()
	api := serve(t, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(20 * time.Millisecond)
		code, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(code)
	})
	b := newBench(t, map[string]tasks.Handler{
		"asks": func(ctx context.Context, call *tasks.Call) error { return get(ctx, call, api.URL+"/404") },
		"none": func(context.Context, *tasks.Call) error { time.Sleep(20 * time.Millisecond); return nil },
	})
	const stands = `SELECT code IS NOT DISTINCT FROM $2 AND took_ms >= 10 AND took_ms <= 1000 * extract(epoch FROM finished_at - claimed_at)
		FROM call_attempts WHERE call_id = $1 AND outcome <> 'not_sent'` // as on a busy machine
	for _, code := range []int{200, 204, 402, 503} {
		b.await(stands, b.insertCall(callqueue.Call{Data: map[string]any{"url": fmt.Sprintf("%s/%d", api.URL, code)}}), code)
	}
	b.await(stands, b.insertCall(callqueue.Call{Task: "asks"}), 404)
	b.await(stands, b.insertCall(callqueue.Call{Task: "none"}), nil)
	b.await(`SELECT code IS NULL FROM call_attempts WHERE call_id = $1`, b.insertCall(callqueue.Call{Data: map[string]any{"url": "http://127.0.0.1:1"}}))
}

// A queue says which answers are kept, and how much of each; where it does not, the worker does.
func TestQueueKeepsAnswers(t *testing.T) {
	t.Parallel()
	api := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = w.Write([]byte("answer"))
	})
	b := newBench(t, nil)
	for _, c := range []struct {
		store   string
		max     int
		ok, bad string // the body that is kept, "none": no result
	}{
		{"", 64 << 10, "none", "answer"},
		{"all", 64 << 10, "answer", "answer"},
		{"all", 3, "ans", "ans"},
		{"errors", 1, "none", "a"},
		{"none", 64 << 10, "none", "none"},
	} {
		b.exec(`UPDATE callq.call_queues SET store = $1, store_max = $2`, c.store, c.max)
		for path, want := range map[string]string{"/": c.ok, "/bad": c.bad} {
			id := b.insertCall(callqueue.Call{Data: map[string]any{"url": api.URL + path}})
			b.await(`SELECT coalesce(result ->> 'body', 'none') = $2 AND coalesce(result -> 'truncated' = to_jsonb($2 <> 'answer'), true) FROM call_attempts WHERE call_id = $1`, id, want)
		}
	}
}

// A 2xx whose body ends before its Content-Length is done, for the API did what was asked. Its attempt says that the answer is not
// whole, even where no answers are kept; the call has no error.
func TestAnswerIsCutShort(t *testing.T) {
	t.Parallel()
	api := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9")
		_, _ = w.Write([]byte("ab"))
	})
	b := newBench(t, nil)
	for _, store := range []string{"none", "errors", "all"} { // the policy may undo the first UPDATE
		b.exec(`UPDATE callq.call_queues SET store = $1`, store)
		id := b.insertCall(callqueue.Call{Data: map[string]any{"url": api.URL, "method": "POST"}})
		b.await(`SELECT status = 'done' AND attempts = 1 AND error_message IS NULL FROM call_queue WHERE id = $1`, id)
		b.await(`SELECT outcome = 'done' AND code = 200 AND error LIKE 'POST %: the answer''s body ended after 2 of 9 bytes'
			AND ($2 <> 'all' OR result @> '{"body": "ab", "cut": true, "cut_reason": "it ended after 2 of 9 bytes", "truncated": false}')
			FROM call_attempts WHERE call_id = $1`, id, store)
	}
	b.verify()
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
	b.await(`SELECT retry_after = '1 hour' AND hosts = '{}' FROM callq.call_limits WHERE name = 'api'`)
	for _, c := range []struct{ hosts, most, closed string }{
		{"{api.example.com}", "1 hour", ""},
		{"{" + host + "1}", "1 hour", ""},
		{"{}", "0", ""},
		{"{}", "1 hour", "1 hour"},
		{"{127.0.0.1,api.example.com}", "2 minutes", "2 minutes"},
		{"{" + host + "}", "2 days", "1 day"},
	} {
		b.exec(`WITH p AS (DELETE FROM callq.call_pauses), q AS (DELETE FROM call_queue) UPDATE callq.call_limits SET hosts = $1, retry_after = $2`, c.hosts, c.most)
		id := b.insertCall(callqueue.Call{Data: map[string]any{"url": api.URL}})
		b.await(`SELECT status = 'new' AND failed_count = 0 AND (run_at > now() + interval '23 h') = ($2 = '') FROM call_queue WHERE id = $1`, id, c.closed)
		b.await(`SELECT (SELECT count(*) FROM callq.call_pauses) = CASE $1 WHEN '' THEN 0 ELSE 1 END
			AND NOT EXISTS (SELECT FROM callq.call_pauses WHERE (what, name, key) <> ('limit', 'api', '') OR reason NOT LIKE $2 OR until NOT BETWEEN now() + nullif($1, '')::interval - interval '1 minute' AND now() + nullif($1, '')::interval)`,
			c.closed, fmt.Sprintf("the API answered call %d: %%429 Too Many Requests", id))
	}
	b.await(`SELECT count(*) = 1 FROM callq.call_audit WHERE change LIKE 'closed%'`)
}
