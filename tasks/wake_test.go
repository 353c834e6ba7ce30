package tasks_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/tasks"
)

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
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "86400")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(api.Close)
	b := newBench(t, nil)
	host := strings.TrimPrefix(api.URL, "http://")
	b.await(`SELECT retry_after = '1 hour' AND hosts = '{}' FROM call_limits WHERE name = 'api'`)
	for _, c := range []struct{ hosts, most, closed, header string }{
		{hosts: "{127.0.0.1}", most: "1 hour", header: "other.example"}, // behind a CDN, say
		{"{api.example.com}", "1 hour", "", ""},
		{"{" + host + "1}", "1 hour", "", ""},
		{"{}", "0", "", ""},
		{"{}", "1 hour", "1 hour", ""},
		{"{127.0.0.1,api.example.com}", "2 minutes", "2 minutes", ""},
		{"{" + host + "}", "2 days", "1 day", ""},
	} {
		if _, err := b.pool.Exec(t.Context(), `WITH p AS (DELETE FROM call_pauses) UPDATE call_limits SET hosts = $1, retry_after = $2`, c.hosts, c.most); err != nil {
			t.Fatal(err)
		}
		id := b.insertCall(callqueue.Call{Data: map[string]any{"url": api.URL, "headers": map[string]string{"Host": cmp.Or(c.header, host)}}})
		b.await(`SELECT status = 'error' AND run_at > now() + interval '23 h' FROM call_queue WHERE id = $1`, id)
		b.await(`SELECT (SELECT count(*) FROM call_pauses) = CASE $1 WHEN '' THEN 0 ELSE 1 END
			AND NOT EXISTS (SELECT FROM call_pauses WHERE (what, name, key) <> ('limit', 'api', '') OR reason NOT LIKE $2 OR until NOT BETWEEN now() + nullif($1, '')::interval - interval '1 minute' AND now() + nullif($1, '')::interval)`,
			c.closed, fmt.Sprintf("the API answered call %d: %%429 Too Many Requests", id))
	}
	b.await(`SELECT count(*) = 3 FROM call_audit WHERE change LIKE 'paused%'`)
}
