package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
)

// Each thing that can keep a call from being made, alone and with others.
func TestReasons(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	later, before := now.Add(time.Hour), now.Add(-time.Minute)
	full := Limit{Name: "api", Rate: "5 per 1m", Units: 5, Window: time.Minute, LimitState: LimitState{State: "open", Occupied: 5}}
	for _, test := range []struct {
		name   string
		change func(*circumstances)
		want   []string // code, and words of the text
	}{
		{"nothing", func(*circumstances) {}, []string{"next: nothing holds it up"}},
		{"later", func(c *circumstances) { c.call.RunAt = later }, []string{"not_due: not due until 2026-11-21 10:00:00Z"}},
		{"a retry", func(c *circumstances) {
			c.call.RunAt, c.call.Status, c.call.FailedCount, c.call.ErrorMessage = later, callqueue.StatusError, 2, new("busy")
		}, []string{"retry: it failed and is tried again at 2026-11-21 10:00:00Z (failures: 2); the last time: busy"}},
		{"unsent", func(c *circumstances) {
			c.call.RunAt, c.call.ErrorMessage = later, new("not sent: handed back for another worker")
		}, []string{
			"not_due: not due until 2026-11-21 10:00:00Z; the last time: not sent: handed back for another worker",
		}},
		{"a retry that is due", func(c *circumstances) { c.call.Status = callqueue.StatusError }, []string{"next: "}},
		{"no flow names it", func(c *circumstances) { c.unknown = true }, []string{"no_flow: written while callq's triggers were off"}},
		{"expired", func(c *circumstances) { c.call.ExpiresAt = &before }, []string{"expired: it expired 1m0s ago"}},
		{"a queue that nobody has", func(c *circumstances) { c.Configured = false }, []string{"no_queue: queue pay"}},
		{"outside its hours", func(c *circumstances) { c.Hours = "Mon-Fri 09:00-18:00 Europe/Berlin" }, []string{
			"outside_hours: queue pay is outside its hours until 2026-11-23 09:00 Europe/Berlin (hours: Mon-Fri 09:00-18:00 Europe/Berlin)",
		}},
		{"within its hours", func(c *circumstances) { c.Hours = "Sat 09:00-18:00 UTC" }, []string{"next: "}},
		{"outside hours, and paused", func(c *circumstances) {
			c.Hours = "10:00-18:00 UTC"
			c.pauses = []Pause{{What: "queue", Name: "pay"}}
		}, []string{"outside_hours: until 2026-11-21 10:00 UTC (hours: 10:00-18:00 UTC)", "paused: "}},
		{"a paused queue", func(c *circumstances) {
			c.pauses = []Pause{{What: "queue", Name: "pay", Reason: "incident", By: "ann"}}
		}, []string{"paused: queue pay is paused until it is resumed: incident (by ann)"}},
		{"a paused key", func(c *circumstances) {
			c.pauses = []Pause{{What: "limit", Name: "api", Key: "k", Until: &later, Reason: "owes", By: "ann"}}
		}, []string{"paused: limit api, key k, is paused until 2026-11-21 10:00:00Z: owes (by ann)"}},
		{"a paused limit", func(c *circumstances) {
			c.limits = []Limit{{Name: "api", LimitState: LimitState{State: "paused: incident", ShutUntil: &later}}}
		}, []string{"paused: limit api is paused: incident until 2026-11-21 10:00:00Z"}},
		{"a limit that the API closed", func(c *circumstances) {
			c.limits = []Limit{{Name: "api", LimitState: LimitState{State: "refused: the API answered call 5: 429", ShutUntil: &later}}}
		}, []string{"refused: limit api is refused: the API answered call 5: 429 until 2026-11-21 10:00:00Z"}},
		{"a key that the API closed", func(c *circumstances) {
			c.pauses = []Pause{{What: "limit", Name: "api", Key: "k", Until: &later, Reason: "429", By: "w", Refused: true}}
		}, []string{"refused: limit api, key k, is closed until 2026-11-21 10:00:00Z: 429"}},
		{"a limit that is probed", func(c *circumstances) {
			c.limits = []Limit{{Name: "api", LimitState: LimitState{State: "probed: one call goes before the others", ShutUntil: &later}}}
		}, []string{"refused: limit api is probed"}},
		{"a shut limit", func(c *circumstances) {
			c.limits = []Limit{{Name: "api", LimitState: LimitState{State: "shut: counting its usage"}}}
		}, []string{"limit_shut: limit api is shut: counting its usage"}},
		{"a limit that is gone", func(c *circumstances) { c.Limits = []string{"api"} }, []string{"no_limit: queue pay names limit api, which is gone"}},
		{"a full limit", func(c *circumstances) {
			l := full
			l.OpensAt, l.nextIfOpen = &later, &later
			c.limits = []Limit{l}
		}, []string{"limit_full: limit api is full: 5 of 5 units (5 per 1m) are occupied, and it takes 1; next unit in 60 min, at about 2026-11-21 10:00:00Z"}},
		{"a limit full for a cost", func(c *circumstances) {
			c.call.Cost = 3
			l := full
			l.CountCost, l.PerKey, l.Occupied, l.Room, l.nextIfOpen = true, true, 3, 2, &later
			c.limits = []Limit{l}
		}, []string{"limit_full: limit api, key k, is full: 3 of 5 units (5 per 1m) are occupied, and it takes 3; next unit in 60 min"}},
		{"a cost above what was set", func(c *circumstances) {
			c.call.Cost = 8
			l := full
			l.CountCost, l.Occupied, l.Room, l.Config = true, 0, 5, new("20 per 1m")
			c.limits = []Limit{l}
		}, []string{"too_dear: it takes 8 units, and limit api has 5 in all since `callq limits set`: reset that (the configuration allows 20 per 1m), or cancel it"}},
		{"room in a limit that counts calls", func(c *circumstances) {
			c.call.Cost = 3
			l := full
			l.Room = 1
			c.limits = []Limit{l}
		}, []string{"next: "}},
		{"a full concurrency", func(c *circumstances) {
			c.limits = []Limit{{Name: "sockets", Units: 2, LimitState: LimitState{State: "open", Occupied: 2}}}
		}, []string{"limit_full: 2 of 2 run"}},
		{"no worker for the task", func(c *circumstances) { c.Fit = 0 }, []string{"no_worker: no live worker handles task sms"}},
		{"no worker with the label", func(c *circumstances) {
			c.On, c.Fit, c.Slots = "ip-a", 0, 0
		}, []string{"no_worker: no live worker that carries the label ip-a handles task sms"}},
		{"busy workers", func(c *circumstances) { c.Running = 20 }, []string{"workers_busy: 20 of 20 run"}},
		{"no dispatcher", func(c *circumstances) { c.Dispatchers = 0 }, []string{"no_dispatcher: "}},
		{"all at once", func(c *circumstances) {
			c.call.RunAt, c.Dispatchers, c.Fit, c.limits = later, 0, 0, []Limit{full}
			c.pauses = []Pause{{What: "queue", Name: "pay"}}
		}, []string{"not_due: ", "paused: ", "limit_full: ", "no_worker: ", "no_dispatcher: "}},

		{"handed over", func(c *circumstances) {
			c.dispatched(2)
			c.open.Worker = nil
		}, []string{"handed_over: handed to the workers http 1m0s ago, and waits"}},
		{"in a run", func(c *circumstances) {
			c.dispatched(2)
			c.open.Worker = new("w1")
		}, []string{"in_run: it is in a run of w1, and waits for its turn"}},
		{"handed over to nobody", func(c *circumstances) { c.dispatched(0) }, []string{"no_worker: none of them is alive"}},
		{"running", func(c *circumstances) {
			c.dispatched(1)
			c.open.StartedAt, c.open.Deadline = &before, &later
		}, []string{"running: attempt 3 runs on w1, started 1m0s ago"}},
		{"past its deadline", func(c *circumstances) {
			c.dispatched(1)
			c.open.StartedAt, c.open.Deadline = &before, &before
		}, []string{"overdue: past its deadline"}},
		{"dispatched, and no attempt", func(c *circumstances) { c.call.Status = callqueue.StatusDispatched }, []string{"no_attempt: "}},
		{"done", func(c *circumstances) { c.call.Status, c.call.FinishedAt = callqueue.StatusDone, &before }, []string{"done: since 2026-11-21 08:59:00Z"}},
		{"failed", func(c *circumstances) {
			c.call.Status, c.call.FinishedAt, c.call.ErrorMessage = callqueue.StatusFailed, &before, new("gave up")
		}, []string{"failed: it failed at 2026-11-21 08:59:00Z: gave up; `callq calls retry 7`"}},
		{"cancelled, and runs", func(c *circumstances) {
			c.dispatched(1)
			c.call.Status, c.call.FinishedAt, c.open.StartedAt = callqueue.StatusCancelled, &before, &before
		}, []string{"running: ", "cancelled: at 2026-11-21 08:59:00Z"}},
		{"no status of ours", func(c *circumstances) { c.call.Status = "odd" }, []string{`unknown: "odd"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := circumstances{
				now:          now,
				call:         &callqueue.Record{ID: 7, Queue: "pay", Task: "sms", Key: "k", Progress: callqueue.Progress{Status: callqueue.StatusNew}, Cost: 1, RunAt: before},
				surroundings: surroundings{Configured: true, Fit: 1, Slots: 20, Running: 19, Dispatchers: 1},
			}
			test.change(&c)
			c.explain()
			got := c.reasons
			if len(got) != len(test.want) {
				t.Fatalf("%d reasons, want %d: %+v", len(got), len(test.want), got)
			}
			for i, r := range got {
				code, words, _ := strings.Cut(test.want[i], ": ")
				if r.Code != code || !strings.Contains(r.Text, words) {
					t.Errorf("%s: %s; want %s", r.Code, r.Text, test.want[i])
				}
			}
		})
	}
}

func (c *circumstances) dispatched(takers int) {
	c.call.Status = callqueue.StatusDispatched
	c.open = &openRow{Attempt: 3, HandedAt: c.now.Add(-time.Minute), Pool: "http", Worker: new("w1"), Takers: takers}
}
