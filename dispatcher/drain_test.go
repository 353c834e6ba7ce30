package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/policy"
)

// A queue whose claims go on for long (here each takes a second) lets the others have their turn; a whole tick
// comes to its end all the same.
func TestQueuesTakeTurns(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(10_000)
	r := rules()
	r.Queues = []policy.Queue{queue("long"), queue("short")}
	now := time.Now()
	d, err := dispatcher.New(dispatcher.Config{Pool: s.pool, Redis: s.redis, Policy: r, Logger: s.log, Now: func() time.Time {
		now = now.Add(time.Second)
		return now
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Patient().OnceUnfrozen(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.calls("long", 9000)
	s.calls("short", 10)
	for range 2 { // the order of the queues turns
		if err := d.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.want(`SELECT count(DISTINCT batch) = 2 FROM call_open WHERE queue = 'long'`)
	s.want(`SELECT count(*) = 10 FROM call_open WHERE queue = 'short'`)
	if err := d.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want(`SELECT count(*) = 9000 FROM call_open WHERE queue = 'long'`)
}
