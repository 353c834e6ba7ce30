package tasks_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/tasks"
	"github.com/prometheus/client_golang/prometheus"
)

// What a worker did not send because it took longer than send_within is counted.
func TestTooLate(t *testing.T) {
	t.Parallel()
	for _, task := range []string{tasks.HTTP, "mine"} {
		t.Run(task, func(t *testing.T) {
			t.Parallel()
			api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			t.Cleanup(api.Close)
			registry := prometheus.NewRegistry()
			b := newBenchWith(t, dispatcher.Config{Metrics: registry},
				limit.Rate{Units: 1000, Window: time.Hour}, map[string]tasks.Handler{
					"mine": func(ctx context.Context, call *tasks.Call) error { return get(ctx, call, api.URL) },
				})
			b.await(`SELECT count(*) = 1 FROM call_limits`)
			if _, err := b.pool.Exec(t.Context(), `UPDATE call_limits SET send_within = '1 us', anchor = 'start'`); err != nil {
				t.Fatal(err)
			}
			b.insertCall(callqueue.Call{Task: task, Data: map[string]any{"url": api.URL}})
			b.await(`SELECT count(*) >= 3 FROM call_attempts WHERE outcome = 'not_sent'`)
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
				if f.GetName() == "callq_too_late_total" && f.GetMetric()[0].GetCounter().GetValue() == recorded && recorded > 0 {
					return
				}
			}
			t.Errorf("callq_too_late_total is not %v: %v", recorded, families)
		})
	}
}
