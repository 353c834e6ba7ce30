package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/admin"
)

// A worker that handles the task does not help a queue whose label it does not carry.
func TestStatusNamesTheLabelThatNobodyCarries(t *testing.T) {
	t.Parallel()
	w := published(t)
	w.exec(`UPDATE callq.call_queues SET label = 'ip-a';
		INSERT INTO call_queue (queue) VALUES ('payments');
		INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
		VALUES ('w', 'http', '{http}', '{ip-b}', 10, now(), now() + interval '1 hour')`)
	const says = "no live worker that carries the label ip-a handles task http: 1 call waiting in queue payments\n"
	has(t, w.do("status"), says)
	w.exec(`UPDATE callq.call_workers SET labels = '{ip-b,ip-a}'`)
	if text := w.do("status"); strings.Contains(text, "no live worker") {
		t.Errorf("status says\n%s", text)
	}
}

func TestForecastCommand(t *testing.T) {
	t.Parallel()
	w := published(t)
	w.exec(`INSERT INTO call_queue (queue, key) SELECT 'payments', CASE WHEN i <= 250 THEN 'big' ELSE 'small' END FROM generate_series(1, 300) i;
		UPDATE call_queue SET cost = 2;
		UPDATE callq.call_limits SET complete_since = now();
		INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, finished_at, outcome, queue, task, key, charged)
		VALUES (1, 1, 2, now(), now(), now() + interval '3 s', 'done', 'payments', 'http', 'big', '[]')`)
	rows := decode[[]admin.Forecast](t, w.do("limits", "forecast", "-o", "json"))
	about := func(d *time.Duration) bool { return d != nil && (*d-4*time.Hour).Abs() < 5*time.Minute } // 500 units, 100 an hour
	if len(rows) != 2 || !about(rows[0].Lasts) || rows[0].Waiting != 300 || !about(rows[1].Lasts) || *rows[1].Key != "big" || rows[1].OfKey != 250 {
		t.Errorf("%+v", rows)
	}
	for args, says := range map[string]string{"": "250 (big)", "stripe": "~4h", "sockets": "~4h"} {
		w.answers(exitDone, "limits forecast "+args, says)
	}
	w.refuses(4, "no such limit: nothing", "limits", "forecast", "nothing")
}

// Where a call stands and when it starts: at one an hour, behind the calls that come before it, in its key and in others.
func TestForesight(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = "limits: {api: {rate: 1/h}, other: {rate: 1/h}}\nqueues: {pay: {limits: [api]}, shut: {limits: [other]}}\n"
	for _, row := range []string{"'k', 5", "'a', 5", "'a', 5", "'a', 1", "'b', 5", "'k', 5", "'k', 0", "'k', 9", "'k', 5"} {
		w.exec(`INSERT INTO call_queue (queue, key, priority) VALUES ('pay', ` + row + `)`)
	}
	w.exec(`INSERT INTO call_queue (queue, key, priority, run_at) VALUES ('pay', 'k', 5, now() + interval '20 h')`)
	w.exec(`INSERT INTO call_queue (queue) VALUES ('shut')`)
	w.exec(`INSERT INTO callq.call_workers VALUES ('w1', 'http', '{http}', '{}', 40, now(), now() + interval '1 h')`)
	for range 3 { // the second finds the limits counted
		w.do("dispatch", "--once")
	}
	w.exec(`INSERT INTO callq.call_dispatchers VALUES ('d', 'd', '', now() + interval '1 h')`)
	w.do("limits", "pause", "other")
	var open int64
	must(t, w.connect().QueryRow(t.Context(), `SELECT call_id FROM callq.call_open WHERE queue = 'pay'`).Scan(&open))
	if open != 4 {
		t.Fatalf("call %d was claimed first, want 4: the first of key a", open)
	}
	// b's first is next, then k's first, then round again.
	for i, id := range []int64{5, 7, 2, 1, 3, 6, 9, 8} {
		why := decode[admin.Why](t, w.do("calls", "why", fmt.Sprint(id), "-o", "json"))
		want := time.Now().Add(time.Duration(i+1) * time.Hour)
		if why.Position == nil || *why.Position != int64(i+1) || why.StartsAt == nil || why.StartsAt.Sub(want).Abs() > 10*time.Minute {
			t.Errorf("call %d: %+v, want place %d and %v", id, why.Foresight, i+1, want)
		}
	}
	for args, says := range map[string]string{
		"calls why 8":                    "in about 8.0 h: 7 calls before it, 1 per 1h, sliding window",
		"calls why 10":                   "in about 20.0 h: 7 calls before it",
		"calls why 11":                   "unknown: limit other is paused: by an operator",
		"calls why 99 11":                "unknown: ",
		"queues forecast pay":            "the last starts in about 20.0 h",
		"queues forecast shut":           "unknown: limit other is paused",
		"queues forecast pay --key b":    "in about 4.0 h: 3 calls before it",
		"queues forecast pay --key none": "in about 3.0 h: 2 calls before it",
		"queues list":                    "open, held by limit api",
		"limits list":                    "full 2026",
		"limits forecast other":          "unknown: limit other is paused",
	} {
		if out := w.run(strings.Fields(args)...).stdout; !strings.Contains(strings.Join(strings.Fields(out), " "), says) {
			t.Errorf("callq %s: want %q\n%s", args, says, out)
		}
	}
	w.refuses(4, "no such queue: nowhere", "queues", "forecast", "nowhere")
	w.refuses(4, "no such queue: nowhere", "queues", "forecast", "nowhere", "--key", "k")
	w.refuses(exitUsage, "--key needs a queue", "queues", "forecast", "--key", "k")
}

// What it says of the dispatcher's own tables.
func TestWhy(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = "limits: {api: {rate: 2/h}, each: {rate: 1/h, per: key}, at-once: {concurrency: 9}}\n" +
		"queues: {pay: {limits: [api]}, keyed: {limits: [each, at-once]}, there: {on: ip-a}}\n"
	for _, row := range []string{"'pay', 'k'", "'pay', 'k'", "'pay', 'k'", "'keyed', 'k'", "'keyed', 'k'", "'keyed', 'l'", "'there', ''", "'mial', ''"} {
		w.exec(`INSERT INTO call_queue (queue, key) VALUES (` + row + `)`)
	}
	for range 3 {
		w.do("dispatch", "--once") // the second finds the limits counted
	}
	why := func(id string) admin.Why {
		t.Helper()
		return decode[admin.Why](t, w.do("calls", "why", id, "-o", "json"))
	}
	has := func(id string, want ...string) {
		t.Helper()
		var codes []string
		for _, r := range why(id).Reasons {
			codes = append(codes, r.Code)
		}
		if !slices.Equal(codes, want) {
			t.Errorf("call %s: %v, want %v", id, codes, want)
		}
	}
	has("1", "no_worker")
	has("3", "limit_full", "no_worker", "no_dispatcher")
	has("5", "limit_full", "no_worker", "no_dispatcher")
	has("7", "no_worker", "no_dispatcher")
	has("8", "no_queue", "no_dispatcher")
	w.exec(`INSERT INTO callq.call_workers VALUES ('w1', 'http', '{http}', '{}', 4, now(), now() + interval '1 h')`)
	w.exec(`INSERT INTO callq.call_dispatchers VALUES ('d', 'd', '', now() + interval '1 h')`)
	has("1", "handed_over")
	has("3", "limit_full")
	has("7", "no_worker")
	w.exec(`UPDATE callq.call_workers SET labels = '{ip-a}'`)
	has("7", "next")

	// A unit that will come free, an hour after its start.
	w.exec(`UPDATE callq.call_open SET started_at = now() - interval '50 min', overtaken_at = now() - interval '50 min', deadline = now() + interval '1 h', worker = 'w1' WHERE call_id IN (1, 2)`)
	has("1", "running")
	if r := why("3").Reasons; len(r) != 1 || r[0].Until == nil || time.Until(*r[0].Until).Round(time.Minute) != 10*time.Minute {
		t.Errorf("a limit that opens in ten minutes: %+v", r)
	}
	w.do("limits", "pause", "api", "--for", "1h", "--reason", "incident")
	w.do("queues", "pause", "pay", "--key", "k")
	has("3", "paused", "paused")
	w.do("queues", "pause", "keyed", "--key", "l")
	has("5", "limit_full")
	has("6", "paused")
}

// Off a terminal, screens follow one another; Ctrl-C ends it well; and what came is in the next screen.
func TestStatusWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for output, mark := range map[string]string{"table": "WORKER", "jsonl": `"queues":`, "json": `"queues":`} {
		t.Run(output, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			var out, errs buffer
			code := make(chan int, 1)
			environ := w.environ()
			w.exec(`INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at) VALUES ('w', 'p', '{t}', '{}', 1, now(), now()) ON CONFLICT DO NOTHING`)
			go func() {
				code <- runCode(ctx, []string{"status", "--watch", "-o", output}, strings.NewReader(""), &out, &errs, environ)
			}()
			eventually(t, "three screens", func() bool { return strings.Count(out.String(), mark) >= 3 })
			interrupt()
			if got := <-code; got != 0 || errs.String() != "" || strings.Contains(out.String(), "\x1b") {
				t.Errorf("exit code %d, stderr %q:\n%s", got, errs.String(), out.String())
			}
			if output != "jsonl" {
				return
			}
			for line := range strings.Lines(out.String()) {
				decode[admin.Status](t, line)
			}
		})
	}
}

func databaseOf(t *testing.T, url string) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	must(t, err)
	return config.Database
}

// The screen names what waits for want of a queue or a worker.
func TestStatus(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = "limits: {api: {rate: 5/m}}\nqueues: {pay: {limits: [api]}}\n"
	w.exec(`INSERT INTO call_queue (queue, run_at) VALUES ('mial', '-infinity')`)
	for range 7 {
		w.exec(`INSERT INTO call_queue (queue) VALUES ('pay')`)
	}
	w.exec(`INSERT INTO call_queue (queue, task) VALUES ('pay', 'sms')`)
	w.exec(`INSERT INTO call_queue (queue, run_at) VALUES ('pay', now() + interval '1 hour')`)
	w.do("dispatch", "--once")
	w.do("dispatch", "--once")

	s := decode[admin.Status](t, w.do("status", "-o", "json"))
	queues := map[string]admin.Queue{}
	for _, q := range s.Queues {
		queues[q.Name] = q
	}
	if q := queues["mial"]; q.Configured || q.Due != 1 {
		t.Errorf("the queue that is in no configuration: %+v", q)
	}
	if q := queues["pay"]; !q.Configured || q.Due != 3 || q.Scheduled != 1 || q.Waiting != 4 || q.Dispatched != 5 {
		t.Errorf("the queue at its limit: %+v", q)
	}
	if l := s.Limits[0]; l.Name != "api" || l.Occupied != 5 || l.Room != 0 || l.State != "open" || l.Rate != "5 per 1m, sliding window" {
		t.Errorf("the limit: %+v", l)
	}
	if u := s.Unhandled; len(u) != 3 || u[0].Waiting != 3 || u[1].Queue != "mial" || u[2].Task != "sms" {
		t.Errorf("tasks that nobody handles: %+v", s.Unhandled)
	}
	if s.Oldest == nil || s.Oldest.ID != 1 {
		t.Errorf("the oldest: %+v", s.Oldest)
	}
	screen := w.do("status")
	has(t, screen, "not in the configuration", "no worker is alive", "no live worker handles task sms: 1 call waiting", "oldest due call: 1 in mial")
	w.config = "limits: {other: {rate: 5/m}}\n"
	w.do("dispatch", "--once")
	has(t, w.do("limits", "list"), "idle: no queue uses it")
}
