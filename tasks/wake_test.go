package tasks_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/tasks"
)

// Without a tick of the schedule, the end of one call lets the next go.
func TestEndsWakeDispatchers(t *testing.T) {
	t.Parallel()
	cfg := dispatcher.Config{Schedule: dispatcher.Schedule{Dispatch: "@every 24h"}}
	b := newBenchWith(t, cfg, limit.Rate{Units: 1}, map[string]tasks.Handler{
		"nothing": func(context.Context, *tasks.Call) error { return nil },
	})
	const n = 10
	for range n {
		b.insert("nothing")
	}
	b.await(`SELECT count(*) = $1 FROM call_queue WHERE status = 'done'`, n)
}

// An answer with Retry-After closes the limits of its call for that long.
func TestRetryAfterClosesLimits(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(api.Close)
	b := newBench(t, nil)
	var id int64
	if err := b.pool.QueryRow(t.Context(), `INSERT INTO call_queue (call_data) VALUES (jsonb_build_object('url', $1::text)) RETURNING id`,
		api.URL).Scan(&id); err != nil {
		t.Fatal(err)
	}
	b.await(`SELECT status = 'error' AND run_at > now() + interval '50 s' FROM call_queue WHERE id = $1`, id)
	b.await(`SELECT what = 'limit' AND key = '' AND until BETWEEN now() + interval '50 s' AND now() + interval '60 s' AND reason LIKE $1
		FROM call_pauses WHERE name = 'api'`, fmt.Sprintf("the API answered call %d: %%429 Too Many Requests", id))
	b.await(`SELECT count(*) = 1 FROM call_audit WHERE change LIKE 'paused%'`)
}
