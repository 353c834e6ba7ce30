package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/hours"
)

// Whatever says why calls wait names the hours of their queue, and when it opens.
func TestHoursAreShown(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	zone, err := time.LoadLocation("Asia/Kolkata") // its clocks never change
	must(t, err)
	now := time.Now().In(zone).Truncate(time.Minute)
	span := func(from, to time.Duration) string {
		return now.Add(from).Format("15:04") + "-" + now.Add(to).Format("15:04") + " Asia/Kolkata"
	}
	opens, closes := now.Add(5*time.Hour), now.Add(6*time.Hour)
	shut, open := span(5*time.Hour, 7*time.Hour), span(-5*time.Hour, 6*time.Hour)
	w.config = fmt.Sprintf("limits: {api: {rate: 1/h}, other: {rate: 1/h}, sockets: {concurrency: 3}}\n"+
		"queues: {shut: {limits: [api], hours: %q}, open: {limits: [other], hours: %q}, free: {limits: [sockets]}}\n", shut, open)
	w.exec(`INSERT INTO call_queue (queue) SELECT queue FROM unnest('{shut,open,free}'::text[]) AS q (queue), generate_series(1, 20)`)
	w.exec(`INSERT INTO call_workers VALUES ('w1', 'http', '{http}', '{}', 40, now(), now() + interval '1 h')`)
	for range 3 { // the second finds the limits counted
		w.do("dispatch", "--once")
	}

	until := "outside its hours until " + hours.When(opens)
	why := decode[admin.Why](t, w.do("calls", "why", "1", "-o", "json"))
	r := why.Reasons[0]
	if r.Code != "outside_hours" || r.Text != "queue shut is "+until+" (hours: "+shut+")" || r.Until == nil || !r.Until.Equal(opens) {
		t.Errorf("calls why: %+v", r)
	}
	s := decode[admin.Status](t, w.do("status", "-o", "json"))
	rows := map[string]admin.Queue{}
	for _, q := range s.Queues {
		rows[q.Name] = q
	}
	if q := rows["shut"]; len(q.Hours) != 1 || q.Hours[0] != shut || !q.OutsideHours || q.HoursUntil == nil || !q.HoursUntil.Equal(opens) || q.Dispatched != 0 {
		t.Errorf("the queue that is shut: %+v", q)
	}
	if q := rows["open"]; len(q.Hours) != 1 || q.OutsideHours || q.HoursUntil == nil || !q.HoursUntil.Equal(closes) || q.Dispatched != 1 {
		t.Errorf("the queue that is open: %+v", q)
	}
	if q := rows["free"]; len(q.Hours) != 0 || q.OutsideHours || q.HoursUntil != nil || q.Dispatched != 3 {
		t.Errorf("the queue without hours: %+v", q)
	}
	says := func(args string, words ...string) {
		t.Helper()
		out := w.do(strings.Fields(args)...)
		for _, text := range words {
			if !strings.Contains(out, text) {
				t.Errorf("callq %s does not say %q:\n%s", args, text, out)
			}
		}
	}
	says("calls why 1", "queue shut is "+until)
	says("status", until, "open until "+hours.When(closes))
	says("queues list", until, "open until "+hours.When(closes))
	// 20 calls wait for one limit while it is shut, and 19 for another, at one an hour, which is open for six.
	says("limits forecast", "unknown: queue shut is "+until, "unknown: queue open is open until "+hours.When(closes))
	says("config show", shut)
	w.do("queues", "pause", "shut", "--reason", "incident")
	says("queues list", "paused: incident, "+until)

	w.exec(`UPDATE call_queues SET hours = '{09:00-10:00 Mars/Olympus}' WHERE name = 'shut'`)
	says("queues list", "open in hours whose zone is not known here: 09:00-10:00 Mars/Olympus")
	w.exec(`UPDATE call_queues SET hours = '{Mon 00:00-24:00 UTC,Tue 00:00-24:00 UTC,Wed 00:00-24:00 UTC}' WHERE name = 'shut'`)
	says("calls why 1", "queue shut is outside its hours, which are not open together within a year: Mon 00:00-24:00 UTC and Tue")
}

// A file with other hours opens and closes a queue of the running program.
func TestSIGHUPOpensAndCloses(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	url, _, answer := api(t)
	answer()
	now := time.Now().UTC()
	shut := atAnyPort + "queues: {pay: {hours: [" + now.Add(5*time.Hour).Format("15:04") + "-" + now.Add(6*time.Hour).Format("15:04") + "]}}\n"
	w.config = shut
	r := w.spawn("serve")
	r.ready()
	enqueue := func() string {
		t.Helper()
		return w.call(url, "--queue", "pay")
	}
	waits := func(id string) {
		t.Helper()
		why := decode[admin.Why](t, w.do("calls", "why", id, "-o", "json"))
		if len(why.Reasons) == 0 || why.Reasons[0].Code != "outside_hours" {
			t.Errorf("call %s: %+v", id, why)
		}
	}
	id := enqueue()
	waits(id)
	r.reload(atAnyPort + "queues: {pay: {hours: [00:00-24:00]}}\n")
	r.says("changed=[queues.pay.hours]")
	w.done(id)
	r.reload(shut)
	eventually(t, "the queue is shut", func() bool {
		return strings.Contains(w.do("queues", "list"), "outside its hours until ")
	})
	id = enqueue()
	waits(id)
	r.send(syscall.SIGTERM)
	r.exits(exitDone)
	if call := w.get(id); call.Status != "new" || call.Attempts != 0 {
		t.Errorf("a call of the queue that is shut: %+v", call)
	}
	w.do("verify")
}
