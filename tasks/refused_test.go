package tasks_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/redistest"
	"github.com/callq/callq/tasks"
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
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer 4711" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(api.Close)
	b := newBench(t, nil) // its worker lacks the secret
	b.addWorker(tasks.Config{HTTP: &tasks.HTTPConfig{Hosts: []string{"api.example.com"}, AllowPrivate: true}}, "another pool")
	b.addWorker(tasks.Config{HTTP: &tasks.HTTPConfig{}}) // where private addresses are refused
	b.addWorker(tasks.Config{HTTP: &tasks.HTTPConfig{
		Hosts: []string{"127.0.0.1"}, PrivateHosts: []string{"127.0.0.1"},
		Secrets: map[string]tasks.Secret{"KEY": {Value: "4711", Hosts: []string{"127.0.0.1"}}},
	}}, "a third one's")
	b.await(`SELECT count(*) = 4 FROM call_workers`)
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

// A call waits for another worker that can make it, and one of an older version may be able to. Where none can, it
// fails.
func TestWhoElseCanMakeACall(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	failsBeside := func(settings string, data string) bool {
		t.Helper()
		if _, err := b.pool.Exec(t.Context(), `INSERT INTO call_workers (id, pool, tasks, labels, slots, http, started_at, heartbeat_at)
			VALUES ('other', 'http', '{http}', '{}', 0, nullif($1, '')::jsonb, now(), 'infinity')
			ON CONFLICT (id) DO UPDATE SET http = excluded.http`, settings); err != nil {
			t.Fatal(err)
		}
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
		{"its version does not say", "", false},
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
	b.await(`SELECT count(*) = 2 FROM call_workers WHERE heartbeat_at > now() - interval '6 seconds'`)
	for settings, fails := range map[string]bool{`{"private_hosts": ["127.0.0.0/8"]}`: false, `{"private_hosts": ["127.0.0.2"]}`: true} {
		if failsBeside(settings, `{"url": "http://127.0.0.1:1"}`) != fails {
			t.Errorf("beside one with %s: fails is not %t", settings, fails)
		}
	}
	if err := strict.Reload(tasks.HTTPConfig{AllowPrivate: true}); err != nil {
		t.Fatal(err)
	}
	b.await(`SELECT bool_and(http ->> 'allow_private' = 'true') FROM call_workers WHERE id <> 'other' AND heartbeat_at > now() - interval '6 seconds'`)

	// Nor can one make it that the queue's calls do not go to.
	if _, err := b.pool.Exec(t.Context(), `UPDATE call_queues SET label = 'ip-a'`); err != nil {
		t.Fatal(err)
	}
	b.addWorker(tasks.Config{Labels: []string{"ip-a"}, HTTP: &tasks.HTTPConfig{AllowPrivate: true}})
	for labels, fails := range map[string]bool{"{}": true, "{ip-a}": false} {
		if _, err := b.pool.Exec(t.Context(), `UPDATE call_workers SET labels = $1::text[] WHERE id = 'other'`, labels); err != nil {
			t.Fatal(err)
		}
		if failsBeside(`{"allow_private": true, "secrets": {"KEY": ["127.0.0.1"]}}`, `{"url": "http://127.0.0.1:1", "headers": {"A": {"secret": "KEY"}}}`) != fails {
			t.Errorf("beside one with labels %s: fails is not %t", labels, fails)
		}
	}
}

// A worker without Config.HTTP takes no calls of the task http. Its handlers' clients have the defaults, or what
// Config.Client says.
func TestWorkerThatDoesNotTakeHTTP(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(api.Close)
	pool, redis := pgtest.New(t), redistest.New(t)
	for _, c := range []struct {
		cfg  tasks.Config
		want string
	}{{tasks.Config{}, ""}, {tasks.Config{HTTP: &tasks.HTTPConfig{}}, "http"}} {
		c.cfg.Pool, c.cfg.Redis = pool, redis
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

	b := newBench(t, nil)
	b.drain()
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
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, api.URL, nil)
			if err != nil {
				return err
			}
			answer, err := call.Client.Do(r)
			if err == nil {
				err = answer.Body.Close()
			}
			ended <- err
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
