package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/policy"
)

// The bound of each process rises as attempts end, and never above one that is open, whoever claimed it.
//
//callq:guarantee 13
func TestOpenFromRises(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(50)
	s.publish(rules(sliding("api", 100, time.Hour)))
	first, second := s.another(policy.Policy{}), s.another(policy.Policy{})
	claim := func(d *dispatcher.Dispatcher, id int64) {
		t.Helper()
		s.calls("default", 1)
		s.tick(d)
		s.want(`SELECT bool_or(call_id = $1) FROM callq.call_open`, id)
		for _, d := range []*dispatcher.Dispatcher{first, second} {
			s.want(`SELECT min(batch) >= $1 FROM callq.call_open`, d.LowWater())
		}
	}
	batchOf := func(id int64) int64 { return one[int64](s, `SELECT batch FROM callq.call_open WHERE call_id = $1`, id) }
	for i, d := range []*dispatcher.Dispatcher{first, second, first, second} {
		claim(d, int64(i+1))
	}
	if from, want := first.LowWater(), batchOf(1); from != want {
		t.Errorf("open from %d on, want the first's batch, %d", from, want)
	}
	s.start(time.Hour, 1, 2, 4)
	s.finish(1, 2, 4)
	claim(first, 5)
	if from, want := first.LowWater(), batchOf(3); from != want {
		t.Errorf("open from %d on, want what still is, %d", from, want)
	}
	s.start(time.Hour)
	s.finish()
	claim(second, 6)
	if from, want := second.LowWater(), batchOf(6); from != want {
		t.Errorf("open from %d on, want its own, %d", from, want)
	}
	if used := s.used(); used != 6 {
		t.Errorf("%d units are used, want 6", used)
	}
}

// After a crash Postgres may give numbers out again that were drawn, and not committed: they bound nothing.
func TestOpenFromIsCommitted(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(50)
	s.publish(rules(sliding("api", 3, time.Hour)))
	first, second := s.another(policy.Policy{}), s.another(policy.Policy{})
	tick := func(d *dispatcher.Dispatcher) {
		t.Helper()
		s.tick(d)
	}
	s.calls("default", 1)
	tick(first)
	s.pause(ledger.Paused{What: "queue", Name: "default", Author: ledger.Author{Reason: "test", By: "test"}})
	s.calls("default", 9)
	tick(first) // takes them in
	durable := one[int64](s, `SELECT last_value FROM callq.call_batch_seq`)
	for range 5 {
		tick(first) // and rolls back
	}
	if _, err := ledger.Resume(t.Context(), s.pool, "queue", "default", "", ledger.By("test")); err != nil {
		t.Fatal(err)
	}
	s.exec(`SELECT setval('callq.call_batch_seq', $1)`, durable) // what a crash does
	for range 9 {
		tick(second)
	}
	tick(first)
	if used := s.used(); used != 3 {
		t.Errorf("%d units are used, want 3", used)
	}
}
