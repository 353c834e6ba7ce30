package main

import (
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/admin"
)

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
