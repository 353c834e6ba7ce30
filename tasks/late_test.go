package tasks_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/tasks"
	"github.com/prometheus/client_golang/prometheus"
)

// logged is what a part logs.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// lines are those that contain a text.
func (l *logged) lines(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// A worker that is always later than send_within says so once, with the limit whose it is, counts what
// it did not send, and says once that it is over.
func TestOftenTooLate(t *testing.T) {
	t.Parallel()
	for _, task := range []string{tasks.HTTP, "mine"} {
		t.Run(task, func(t *testing.T) {
			t.Parallel()
			oftenTooLate(t, task)
		})
	}
}

func oftenTooLate(t *testing.T, task string) {
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(api.Close)
	log, registry := &logged{}, prometheus.NewRegistry()
	b := newBenchWith(t, dispatcher.Config{Logger: slog.New(slog.NewTextHandler(log, nil)), Metrics: registry},
		limit.Rate{Units: 1000, Window: time.Hour}, map[string]tasks.Handler{
			"mine": func(ctx context.Context, call *tasks.Call) error { return get(ctx, call, api.URL) },
		})
	b.await(`SELECT count(*) = 1 FROM call_limits`)
	sendWithin := func(d time.Duration) {
		t.Helper()
		if _, err := b.pool.Exec(t.Context(), `UPDATE call_limits SET send_within = $1, anchor = 'start'`, d); err != nil {
			t.Fatal(err)
		}
	}
	call := callqueue.Call{Task: task, Data: map[string]any{"url": api.URL}}
	awaitLine := func(text string) string {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if lines := log.lines(text); len(lines) > 0 {
				return lines[0]
			}
			if time.Now().After(deadline) {
				t.Fatalf("nothing logged of %q", text)
			}
		}
	}

	sendWithin(time.Microsecond)
	first := b.insertCall(call)
	line := awaitLine("often not sent in time")
	if !strings.Contains(line, "level=WARN") || !strings.Contains(line, "queue=default limit=api send_within=1µs") {
		t.Errorf("logged: %s", line)
	}
	b.await(`SELECT count(*) > 15 FROM call_attempts WHERE outcome = 'not_sent' AND call_id = $1`, first)
	sendWithin(time.Minute)
	for range 80 {
		b.insertCall(call)
	}
	b.await(`SELECT count(*) = 81 FROM call_queue WHERE status = 'done'`)
	b.drain() // what an attempt was is counted after it is recorded
	awaitLine("sent in time again")
	if n := len(log.lines("in time")); n != 2 {
		t.Errorf("logged %d times: %q", n, log.lines("in time"))
	}
	var counted, recorded float64
	if err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM call_attempts WHERE outcome = 'not_sent' AND error LIKE '%longer than send_within%'`).Scan(&recorded); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "callq_too_late_total" {
			counted = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if counted != recorded || counted == 0 {
		t.Errorf("callq_too_late_total is %v, the ledger has %v", counted, recorded)
	}
}
