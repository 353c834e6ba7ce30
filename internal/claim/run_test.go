package claim

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pools"
	"github.com/callq/callq/internal/usage"
)

// A run is as long as RunFor lets it be at the pace of the last one, and at most twice as long as that.
func TestRunSize(t *testing.T) {
	t.Parallel()
	now := time.Now()
	of := usage.Of{Limit: "api"}
	p := limit.Pace{Room: 2, Gap: 10 * time.Millisecond} // 400 in two seconds
	for _, c := range []struct {
		name string
		last lastRun
		want int64
	}{
		{"none", lastRun{at: now.Add(-time.Hour), units: 10}, 200},
		{"in time", lastRun{now.Add(-2 * time.Second), 390, 7}, 390},
		{"quick", lastRun{now.Add(-time.Second), 100, 7}, 200},
		{"very quick", lastRun{now.Add(-10 * time.Millisecond), 100, 7}, 200},
		{"no longer than that", lastRun{now.Add(-2 * time.Second), 1000, 7}, 400},
		{"slow", lastRun{now.Add(-8 * time.Second), 100, 7}, 25},
		{"very slow", lastRun{now.Add(-50 * time.Second), 4, 7}, 2},
		{"others have claimed since", lastRun{now.Add(-50 * time.Second), 100, 5}, 100},
	} {
		if got := (runs{of: c.last}).size(of, p, limit.RunFor, now, 7); got != c.want {
			t.Errorf("%s: %d units, want %d", c.name, got, c.want)
		}
	}
}

// Once a lane is a run, all its calls go to one pool with one task, also those that there is room for: two messages would have two paces.
func TestLaneIsOneMessage(t *testing.T) {
	t.Parallel()
	first := func(int64) int64 { return 0 }
	list := &pools.Pools{List: []*pools.Pool{
		{Name: "a", Tasks: []string{"http"}, Capacity: 1},
		{Name: "b", Tasks: []string{"http", "own"}, Capacity: 10},
	}}
	l := &lane{}
	to := l.send(list, "http", false, func(int64) int64 { return 5 })
	l.to = list.List[0] // whichever it was
	l.to.Capacity = 0
	if to == nil || !l.takes("http", true) {
		t.Fatal("the lane takes no more")
	}
	if to := l.send(list, "http", true, first); to != l.to {
		t.Errorf("beyond the room: to %s", to.Name)
	}
	if to := l.send(list, "http", false, first); to != l.to || l.mixed {
		t.Errorf("with room: to %s", to.Name)
	}
	if l.takes("own", false) {
		t.Error("a run takes another task")
	}
}
