package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/tasks"
)

const retentionEvery = "schedule: {retention: '@every 1s'}\nretention: {done: 1s}\n"

// holds waits until limit api is so in force.
func (w world) holds(rate string) {
	w.t.Helper()
	eventually(w.t, "api is "+rate, func() bool {
		a := w.run("limits", "get", "api")
		return a.code == 0 && strings.Contains(a.stdout, rate)
	})
}

// SIGHUP while it serves: what is lowered, new or gone is in force without a restart; a bad file changes
// nothing, and says where it is bad; what cannot change is named.
func TestSIGHUP(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort + "limits: {api: {rate: 100/1h}, other: {rate: 7/1h}}\nqueues: {pay: {limits: [api]}, old: {limits: [other]}}\n"
	url := answering(t)
	r := w.spawn("serve")
	address := addressIn(t, r.log)
	awaitReady(t, address)
	w.holds("100 per 1h")

	r.reload(atAnyPort + "limits: {api: {rate: 2/1h}}\nqueues: {pay: {limits: [api]}, new: {}}\n")
	r.says("configuration read again")
	r.says("new settings in force")
	w.holds("2 per 1h")
	for range 5 {
		w.do("enqueue", "--queue", "pay", "--data", fmt.Sprintf(`{"url": %q}`, url))
	}
	id := w.call(url, "--queue", "new")
	w.done(id)
	eventually(t, "two of the others are", func() bool {
		return strings.Count(w.do("calls", "list", "--queue", "pay", "--status", "done", "-o", "jsonl"), "\n") == 2
	})
	if list := w.do("queues", "list"); strings.Contains(list, "old") || !strings.Contains(list, "new") {
		t.Errorf("the queues:\n%s", list)
	}

	r.reload(atAnyPort + "limits:\n  api: {rate: 0/1h}\nqueues: {pay: {limits: [nope]}}\nlog: {levl: debug}\n")
	for _, words := range []string{
		r.file() + ":4:15 key=limits.api.rate", "a rate of 0 lets nothing through", r.file() + ":5:25 key=queues.pay.limits", "is not a key of log",
	} {
		r.says(words)
	}
	w.holds("2 per 1h")
	must(t, os.Remove(r.file()))
	r.send(syscall.SIGHUP)
	r.says("cannot be read: no such file")
	if status, body := ask(t, address, "/readyz"); status != http.StatusOK {
		t.Errorf("after the bad files /readyz answers %d %s", status, body)
	}

	r.reload("http: {listen: 127.0.0.1:1}\nworker: {concurrency: 7}\n" +
		"limits: {api: {rate: 3/1h}}\nqueues: {pay: {limits: [api]}}\n" + retentionEvery)
	r.says(`msg="changed settings need a restart" keys="[http.listen worker.concurrency]"`)
	w.holds("3 per 1h")
	eventually(t, "retention runs", func() bool { return w.run("calls", "get", id).code == exitNotFound })

	r.send(syscall.SIGTERM)
	r.exits(exitDone)
	w.do("verify")
}

// Twice quickly, and many times: the last file holds, and the daemon lives.
func TestSIGHUPTwice(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	limits := func(n int) string {
		return fmt.Sprintf("%slimits: {api: {rate: %d/1h}}\nqueues: {q: {limits: [api]}}\n", atAnyPort, n)
	}
	w.config = limits(100)
	r := w.spawn("dispatch")
	r.ready()
	r.reload(limits(11))
	r.reload(limits(12))
	w.holds("12 per 1h")
	for n := 20; n < 60; n++ {
		r.reload(limits(n))
	}
	w.holds("59 per 1h")
	r.ready()
}

// Postgres is away: the former settings hold, which is said, and the new ones are in force when it is back.
func TestSIGHUPWithoutPostgres(t *testing.T) {
	t.Parallel()
	postgres, err := local.StartPostgres(t.Context(), local.Postgres{Settings: map[string]string{"fsync": "off"}})
	must(t, err)
	t.Cleanup(func() { _ = postgres.Stop() })
	w, _ := world{t: t, postgres: postgres.URL("postgres")}.withRedis()
	w.do("migrate", "up")
	w.config = atAnyPort + "limits: {api: {rate: 100/1h}}\nqueues: {q: {limits: [api]}}\n"
	r := w.spawn("serve")
	r.ready()
	postgres.Kill()
	r.reload(strings.ReplaceAll(w.config, "100", "5"))
	r.says("new settings not yet in force: waiting for Postgres")
	r.reload(strings.ReplaceAll(w.config, "100", "bad"))
	r.says("is not a rate")
	r.reload(strings.ReplaceAll(w.config, "100", "4"))
	eventually(t, "three answers", func() bool { return strings.Count(r.log.String(), "configuration ") == 3 })
	r.says("heartbeat missed") // by then it has tried again
	must(t, postgres.Restart(t.Context()))
	w.holds("4 per 1h")
	if n := strings.Count(r.log.String(), "new settings not yet in force"); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, r.log)
	}
}

// SIGHUP before the servers are there ends nothing, and the file as it is then counts.
func TestSIGHUPWhileWaiting(t *testing.T) {
	t.Parallel()
	w, redis := newWorld(t).withRedis()
	redis.Kill()
	w.config = atAnyPort + "limits: {api: {rate: 100/1h}}\nqueues: {q: {limits: [api]}}\n"
	r := w.spawn("serve")
	r.says("msg=waiting for=Redis")
	r.reload(strings.ReplaceAll(w.config, "100", "5"))
	r.says("configuration read again")
	must(t, redis.Restart(t.Context()))
	w.holds("5 per 1h")
	if strings.Contains(r.log.String(), "100 per 1h") {
		t.Errorf("the former limit was published:\n%s", r.log)
	}
}

// http_task is reloaded as a whole: where requests may go, and secrets, whose files are read anew. One that cannot
// be read changes nothing.
func TestSIGHUPForHTTPTask(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	url, received := leaky(t)
	key := filepath.Join(t.TempDir(), "key")
	with := func(task string) string { return "http: {listen: 127.0.0.1:0}\nhttp_task: {" + task + "}\n" }
	w.config = with("private_hosts: [127.0.0.2]")
	r := w.spawn("serve")
	r.ready()
	ends := func(words string) {
		t.Helper()
		id := strings.TrimSpace(w.do("enqueue", "--data", fmt.Sprintf(
			`{"url": %q, "headers": {"Authorization": {"secret": "KEY", "prefix": "Bearer "}}}`, url)))
		eventually(t, "the call has ended", func() bool { return w.get(id).FinishedAt != nil })
		if got := w.do("calls", "get", id, "-o", "json"); !strings.Contains(got, words) {
			t.Errorf("want %s\n%s", words, got)
		}
	}
	ends("is not one of this worker's http_task.secrets")

	allowed := with(fmt.Sprintf("private_hosts: [127.0.0.1], secrets: {KEY: {file: %q, hosts: [127.0.0.1]}}", key))
	r.reload(allowed)
	r.says(`http_task.secrets.KEY.file err="cannot be read`)
	ends("is not one of this worker's http_task.secrets")
	must(t, os.WriteFile(key, []byte("not yet the key"), 0o600))
	r.reload(allowed)
	r.says("configuration read again")
	ends(`"status": "done"`)
	must(t, os.WriteFile(key, []byte(secretCanary), 0o600))
	r.reload(allowed)
	eventually(t, "a third answer", func() bool { return strings.Count(r.log.String(), "configuration read again") == 2 })
	ends(`"status": "done"`)
	if n := received.Load(); n != 1 {
		t.Errorf("the API had the new secret %d times, want once", n)
	}
	r.reload(with("private_hosts: [127.0.0.1], hosts: [api.example.com]"))
	eventually(t, "a fourth answer", func() bool { return strings.Count(r.log.String(), "configuration read again") == 3 })
	ends("is not one of this worker's http_task.secrets")
	if strings.Contains(r.log.String(), "need a restart") {
		t.Errorf("said to need a restart:\n%s", r.log)
	}
}

// A worker alone takes its limits from Postgres; what of its own has changed it says.
func TestSIGHUPToWork(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort
	r := w.spawn("work")
	r.ready()
	r.reload(atAnyPort + "worker: {labels: [a]}\nlimits: {api: {rate: 1/h}}\n")
	r.says(`msg="configuration read again"`)
	r.says(`need a restart" keys=[worker.labels]`)
	r.ready()
}

// A file that was there and is not any more does not stand for one without limits.
func TestReloadWithoutItsFile(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	started := config.Default()
	started.File = "config.yaml"
	given := 0
	r := reloader{
		read: func() (*config.Config, error) { return config.Default(), nil }, log: slog.New(slog.NewTextHandler(&said, nil)),
		give: []func(*config.Config) error{func(*config.Config) error { given++; return nil }}, started: started,
		metrics: newDaemonMetrics(nil),
	}
	r.reload(t.Context())
	if given > 0 || !strings.Contains(said.String(), "config.yaml is not there") {
		t.Errorf("given %d times, said %s", given, &said)
	}
	started.File = "" // one that is new where there was none is read
	r.read = func() (*config.Config, error) {
		next := config.Default()
		next.File = "config.yaml"
		return next, nil
	}
	if r.reload(t.Context()); given != 1 {
		t.Errorf("a new file: given %d times, said %s", given, &said)
	}
}

// Each section is either reloaded or named as one that needs a restart.
func TestSettings(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Schedule.Vacuum, cfg.Schedule.Verify, cfg.Retention.Failed, cfg.HTTPTask.Store = "@daily", "@daily", time.Hour, "all"
	changed := config.Changed(cfg, config.Default())
	if len(changed) != 4 {
		t.Errorf("changed are %q", changed)
	}
	for _, key := range changed {
		if !reloads(key) {
			t.Errorf("%s does not count as reloaded", key)
		}
	}
}

// Every setting reaches the part that it is for.
func TestParts(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte(" hidden\n"), 0o600))
	searchRule := budget.Rule{Rate: limit.Rate{Units: 3, Window: time.Second}, Burst: 9, Shape: budget.Shape{PerKey: true}}
	cfg := &config.Config{
		Postgres: config.Postgres{Schema: "own", TableSchema: "theirs", Failover: "strict"},
		Limits: map[string]config.Limit{"api": {
			Anchor: limit.AnchorFinish, Slack: time.Second, SendWithin: 2 * time.Second, Per: "key", Hosts: []string{"h"},
			RetryAfter: time.Minute, Windows: []config.Window{
				{Rate: limit.Rate{Units: 5, Window: time.Minute}, Overrides: map[string]int64{"k": 7}},
				{Suffix: "/1h", Rate: limit.Rate{Units: 50, Window: time.Hour}},
			},
		}},
		Queues: map[string]config.Queue{"pay": {
			Limits: []string{"api"}, MaxAttempts: 4, Backoff: config.Backoff{Min: time.Second, Max: time.Hour}, Timeout: time.Minute, OnLost: "fail",
			Hours: "Mon 09:00-18:00 UTC", Needs: config.Needs{"search": "2"},
		}},
		Budgets:   map[string]config.Budget{"search": {Rule: searchRule, OnOutage: "open"}},
		Schedule:  config.Schedule{Dispatch: "@every 2s", Retention: "@daily", Vacuum: "@weekly", Verify: "@hourly"},
		Retention: config.Retention{Done: 1, Failed: 2, Cancelled: 3, History: 4},
		Worker:    config.Worker{Concurrency: 7, Labels: []string{"a"}, ShutdownTimeout: 5},
		HTTPTask: config.HTTPTask{
			Hosts: []string{"h"}, PrivateHosts: []string{"p"}, AllowPrivate: true, Store: "all",
			Secrets: map[string]config.Secret{"KEY": {File: secret, Hosts: []string{"s"}}},
		},
		Calls: config.Calls{MaxData: 1000},
	}
	wantDispatcher := dispatcher.Config{
		Policy: policy.Policy{
			Limits: []policy.Limit{{
				Name: "api", Rate: limit.Rate{Units: 5, Window: time.Minute}, PerKey: true, Overrides: map[string]int64{"k": 7},
				Anchor: limit.AnchorFinish, Slack: time.Second, SendWithin: 2 * time.Second,
				Hosts: []string{"h"}, RetryAfter: new(time.Minute),
			}, {
				Name: "api/1h", Rate: limit.Rate{Units: 50, Window: time.Hour}, PerKey: true,
				Anchor: limit.AnchorFinish, Slack: time.Second, SendWithin: 2 * time.Second,
				Hosts: []string{"h"}, RetryAfter: new(time.Minute),
			}},
			Queues: []policy.Queue{{
				Name: "pay", Limits: []string{"api", "api/1h"}, MaxAttempts: 4, BackoffMin: time.Second, BackoffMax: time.Hour, Timeout: time.Minute, OnLost: "fail",
				Hours: "Mon 09:00-18:00 UTC", Needs: map[string]int64{"search": 2},
			}},
			Budgets: []policy.Budget{{
				Name: "search", Rate: limit.Rate{Units: 3, Window: time.Second}, Burst: 9, OnOutage: "open",
				BudgetShape: budget.Shape{PerKey: true},
			}},
		},
		Schedule:  dispatcher.Schedule{Dispatch: "@every 2s", Retention: "@daily", Vacuum: "@weekly", Verify: "@hourly"},
		Retention: maintenance.Retention{Done: 1, Failed: 2, Cancelled: 3, History: 4},
		MaxData:   1000,
		Schema:    "own", TableSchema: "theirs", Failover: policy.Strict,
	}
	wantWorker := tasks.Config{
		Schema: "own", TableSchema: "theirs",
		Concurrency: 7, Labels: []string{"a"}, ShutdownTimeout: 5,
		HTTP: &tasks.HTTPConfig{
			Hosts: []string{"h"}, PrivateHosts: []string{"p"}, AllowPrivate: true, Store: "all",
			Secrets: map[string]tasks.Secret{"KEY": {Value: "hidden", Hosts: []string{"s"}}},
		},
	}
	s := servers{} // its typed nil must not hide: Redis is set by it alone
	got := dispatcherConfig(cfg, s, false)
	got.Redis = nil
	if diff := cmp.Diff(wantDispatcher, got, cmpopts.IgnoreUnexported(dispatcher.Config{})); diff != "" {
		t.Errorf("dispatcher: %s", diff)
	}
	gotWorker, err := workerConfig(cfg, s)
	must(t, err)
	gotWorker.Redis = nil
	if diff := cmp.Diff(wantWorker, gotWorker); diff != "" {
		t.Errorf("worker: %s", diff)
	}
}
