package claim

import (
	"testing"
	"time"
)

// Nothing that is open is of a smaller batch than the bound, and nothing is known of data that were not looked at.
func TestLowWater(t *testing.T) {
	t.Parallel()
	var o lowWater
	three, six := int64(3), int64(6)
	for _, step := range []struct {
		what        string
		epoch       string
		drawn, from int64
		found       *int64
		after       int64
	}{
		{"nothing is known at first", "e1", 5, 0, nil, 5},
		{"others opened some meanwhile", "e1", 9, 5, &six, 6},
		{"they are open still", "e1", 12, 6, &six, 6},
		{"they have ended", "e1", 13, 6, nil, 13},
		{"Postgres failed over", "e2", 14, 0, &six, 6},
		{"the data were rolled back", "e2", 14, 0, nil, 14},
		{"the numbers were set back, and larger ones are open", "e2", 3, 0, &six, 3},
		{"smaller ones are open too", "e2", 4, 3, &three, 3},
	} {
		if from := o.draw(step.epoch, step.drawn); from != step.from {
			t.Errorf("%s: looked from %d on, want %d", step.what, from, step.from)
		}
		o.found(step.found, time.Time{})
		if from := o.in(step.epoch); from != step.after {
			t.Errorf("%s: open from %d on, want %d", step.what, from, step.after)
		}
		if from := o.in("another"); from != 0 {
			t.Errorf("%s: in another epoch from %d on", step.what, from)
		}
	}
}

// A poll that does not go back to the beginning passes what was due long ago and was committed since: it
// is found by one that does, and that comes as soon as it may.
func TestScanWindow(t *testing.T) {
	t.Parallel()
	const took = 10 * time.Millisecond
	now := time.Unix(1000, 0)
	r := scanWindow{drained: map[string]time.Time{}}
	poll := func(whole bool) (again time.Duration) {
		t.Helper()
		queues, since := r.begin(now)
		if got := len(queues) == 0; got != whole {
			t.Errorf("goes back to the beginning: %v, want %v", got, whole)
		}
		if !whole && !since[0].Equal(time.Unix(998, 0)) {
			t.Errorf("goes back to %s", since[0])
		}
		now = now.Add(took)
		r.end(now.Add(-took), now)
		r.drained["q"] = time.Unix(1000, 0)
		return r.again(now)
	}
	if again := poll(true); again < time.Second {
		t.Errorf("again in %s though nothing was passed", again)
	}
	again := poll(false)
	if want := (scanRest - 1) * took; again != want {
		t.Errorf("again in %s, want %s", again, want)
	}
	now = now.Add(again)
	poll(true)
}
