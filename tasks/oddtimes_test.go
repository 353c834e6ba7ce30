package tasks_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/callq/callq/tasks"
)

// A call whose created_at is no time of the calendar runs like others, and holds none of them up.
func TestCreatedAtNoTime(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(api.Close)
	b := newBench(t, map[string]tasks.Handler{"mine": func(context.Context, *tasks.Call) error { return nil }})
	if _, err := b.pool.Exec(t.Context(), `INSERT INTO call_queue (task, created_at, run_at, call_data)
		SELECT task, at, now(), jsonb_build_object('url', $1::text) FROM unnest(ARRAY['mine', 'http']) AS task,
			unnest(ARRAY['-infinity', 'infinity', '4713-01-01 BC', '294276-12-31', now()]::timestamptz[]) AS at`, api.URL); err != nil {
		t.Fatal(err)
	}
	b.await(`SELECT count(*) = 10 FROM call_queue WHERE status = 'done' AND failed_count = 0`)
	b.await(`SELECT count(*) = 10 FROM call_attempts`)
}
