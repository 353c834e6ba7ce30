package dispatcher_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
)

// One of several dispatchers verifies what came since the last run, notes and logs what it found.
func TestScheduledVerify(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO callq.call_meta (name, position, at) VALUES ('verified', 0, now() - interval '3 days')`)
	s.exec(`INSERT INTO call_queue (queue) VALUES ('default'), ('default'), ('default')`)
	// Without an attempt that is done: one before the last run, one since, one within the last day.
	s.exec(`UPDATE call_queue SET status = 'done', created_at = at, dispatched_at = at, finished_at = at
		FROM (VALUES (1, now() - interval '4 days'), (2, now() - interval '2 days'), (3, now())) d (call, at) WHERE id = call`)
	var said log
	for range 3 {
		s.run(s.dispatcher(hourly(10), seldom, func(c *dispatcher.Config) {
			c.Schedule.Verify = "@every 1s"
			c.Logger = slog.New(slog.NewTextHandler(&said, nil))
		}).Run)
	}
	s.eventually(`SELECT count(*) = 1 FROM callq.call_meta WHERE name = 'verified' AND at > now() - interval '1 hour' AND position > 0`)
	s.want(`SELECT at BETWEEN clock_timestamp() AND clock_timestamp() + interval '30 s' FROM callq.call_meta WHERE name = 'verify'`)
	for begun := time.Now(); !said.has("ledger verified") && time.Since(begun) < time.Minute; {
		time.Sleep(10 * time.Millisecond)
	}
	said.mu.Lock()
	defer said.mu.Unlock()
	text := said.text.String()
	if strings.Count(text, "ledger verified") != 1 || !strings.Contains(text, "call=2 ") || !strings.Contains(text, "call=3 ") || strings.Contains(text, "call=1 ") {
		t.Errorf("want one run, and calls 2 and 3 named:\n%s", text)
	}
}
