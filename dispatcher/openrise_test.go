package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
)

// The bound of each process rises as attempts end, and never above one that is open, whoever claimed it.
func TestOpenFromRises(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(50)
	s.publish(rules(sliding("api", 100, time.Hour)))
	first, second := s.another(dispatcher.Rules{}), s.another(dispatcher.Rules{})
	claim := func(d *dispatcher.Dispatcher, id int64) {
		t.Helper()
		s.calls("default", 1)
		if err := d.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.want(`SELECT bool_or(call_id = $1) FROM call_open`, id)
		for _, d := range []*dispatcher.Dispatcher{first, second} {
			s.want(`SELECT min(batch) >= $1 FROM call_open`, d.OpenFrom())
		}
	}
	batchOf := func(id int64) int64 { return one[int64](s, `SELECT batch FROM call_open WHERE call_id = $1`, id) }
	for i, d := range []*dispatcher.Dispatcher{first, second, first, second} {
		claim(d, int64(i+1))
	}
	if from, want := first.OpenFrom(), batchOf(1); from != want {
		t.Errorf("open from %d on, want the first's batch, %d", from, want)
	}
	s.start(time.Minute, 1, 2, 4)
	s.finish(1, 2, 4)
	claim(first, 5)
	if from, want := first.OpenFrom(), batchOf(3); from != want {
		t.Errorf("open from %d on, want what still is, %d", from, want)
	}
	s.start(time.Minute)
	s.finish()
	claim(second, 6)
	if from, want := second.OpenFrom(), batchOf(6); from != want {
		t.Errorf("open from %d on, want its own, %d", from, want)
	}
	if used := s.used("api"); used != 6 {
		t.Errorf("%d units are used, want 6", used)
	}
}
