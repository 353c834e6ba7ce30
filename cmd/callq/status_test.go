package main

import (
	"context"
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
	w.exec(`UPDATE call_queues SET label = 'ip-a';
		INSERT INTO call_queue (queue) VALUES ('payments');
		INSERT INTO call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
		VALUES ('w', 'http', '{http}', '{ip-b}', 10, now(), now() + interval '1 hour')`)
	const says = "no live worker that carries the label ip-a handles task http: 1 calls wait in queue payments\n"
	has(t, w.do("status"), says)
	w.exec(`UPDATE call_workers SET labels = '{ip-b,ip-a}'`)
	if text := w.do("status"); strings.Contains(text, "no live worker") {
		t.Errorf("status says\n%s", text)
	}
}

func TestForecastCommand(t *testing.T) {
	t.Parallel()
	w := published(t)
	w.exec(`INSERT INTO call_queue (queue, key) SELECT 'payments', CASE WHEN i <= 250 THEN 'big' ELSE 'small' END FROM generate_series(1, 300) i;
		UPDATE call_limits SET complete_since = now();
		INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, finished_at, outcome, queue, task, key, charged)
		VALUES (1, 1, 2, now(), now(), now() + interval '3 s', 'done', 'payments', 'http', 'big', '[]')`)
	rows := decode[[]admin.Forecast](t, w.do("limits", "forecast", "-o", "json"))
	if len(rows) != 2 || *rows[0].Lasts != 3*time.Minute || rows[0].Waiting != 300 || // 300 calls of 3 s, 5 at once
		*rows[1].Lasts != 4*time.Hour || *rows[1].Key != "big" || rows[1].OfKey != 250 { // 500 units, 100 an hour
		t.Errorf("%+v", rows)
	}
	for args, says := range map[string]string{"": "250 (big)", "stripe": "~4h0m0s", "sockets": "~3m0s"} {
		w.answers(exitDone, "limits forecast "+args, says)
	}
	w.refuses(4, "no such limit: nothing", "limits", "forecast", "nothing")
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
	w.exec(`INSERT INTO call_workers VALUES ('w1', 'http', '{http}', '{}', 4, now(), now() + interval '1 h')`)
	w.exec(`INSERT INTO call_dispatchers VALUES ('d', 'd', '', now() + interval '1 h')`)
	has("1", "handed_over")
	has("3", "limit_full")
	has("7", "no_worker")
	w.exec(`UPDATE call_workers SET labels = '{ip-a}'`)
	has("7", "next")

	// A unit that will come free, an hour after its start.
	w.exec(`UPDATE call_open SET started_at = now() - interval '50 min', deadline = now() + interval '1 h', worker = 'w1' WHERE call_id IN (1, 2)`)
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
			w.exec(`INSERT INTO call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at) VALUES ('w', 'p', '{t}', '{}', 1, now(), now()) ON CONFLICT DO NOTHING`)
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
