package dispatcher_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
)

// One of several dispatchers verifies what came since the last run, and notes and logs what it found.
func TestScheduledVerify(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`INSERT INTO callq.call_meta (name, position, at) VALUES ('verified', 0, now() - interval '3 days')`)
	s.exec(`INSERT INTO call_queue (queue) VALUES ('default'), ('default'), ('default')`)
	// Without an attempt that is done: one before the last run, one since, one within the last day.
	s.exec(`UPDATE call_queue SET status = 'done', created_at = at, dispatched_at = at, finished_at = at
		FROM (VALUES (1, now() - interval '4 days'), (2, now() - interval '2 days'), (3, now())) d (call, at) WHERE id = call`)
	var said log
	with := func(spec string) *dispatcher.Dispatcher {
		return s.dispatcher(hourly(10), seldom, func(c *dispatcher.Config) {
			c.Schedule.Verify = spec
			c.Logger = slog.New(slog.NewTextHandler(&said, nil))
		})
	}
	s.run(with("off").Run)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var runs sync.WaitGroup
	runs.Go(func() {
		if err := with("@every 1s").Run(ctx); err != nil {
			t.Error(err)
		}
	})
	s.eventually(`SELECT count(*) = 1 FROM callq.call_meta WHERE name = 'verified' AND at > now() - interval '1 hour' AND position > 0`)
	s.says(&said, "ledger verified")
	stop()
	runs.Wait()
	with("").Verify(t.Context()) // so soon after another it is nobody's turn
	text := said.all()
	if strings.Count(text, "ledger verified") != 1 || !strings.Contains(text, "call=2 ") || !strings.Contains(text, "call=3 ") || strings.Contains(text, "call=1 ") {
		t.Errorf("want one run, and calls 2 and 3 named:\n%s", text)
	}

	// Of several whose turn it may be, one takes it. What the last run found before is not looked for again, but for the last day.
	s.exec(`UPDATE callq.call_meta SET at = now() - interval '1 hour' WHERE name = 'verify'`)
	before := len(text)
	var all sync.WaitGroup
	for range 8 {
		d := with("")
		all.Go(func() { d.Verify(t.Context()) })
	}
	all.Wait()
	text = said.all()[before:]
	if strings.Count(text, "ledger verified") != 1 || strings.Contains(text, "call=2 ") || !strings.Contains(text, "call=3 ") {
		t.Errorf("want one run, and call 3 named:\n%s", text)
	}

	// One that is cut short leaves the turn to the next, which looks as far back.
	s.exec(`UPDATE callq.call_meta SET at = now() - interval '3 days' WHERE name IN ('verify', 'verified')`)
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE call_queue`); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	with("").Verify(short)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want(`SELECT bool_and(at < clock_timestamp() + interval '31 s') FROM callq.call_meta WHERE name = 'verify'`)
	s.want(`SELECT at < now() - interval '2 days' FROM callq.call_meta WHERE name = 'verified'`)
}
