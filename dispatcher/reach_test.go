package dispatcher

import (
	"testing"
	"time"
)

// A look that does not go back to the beginning passes what was due long ago and was committed since: it
// is found by one that does, and that comes as soon as it may.
func TestReachBack(t *testing.T) {
	t.Parallel()
	const took = 10 * time.Millisecond
	now := time.Unix(1000, 0)
	r := reach{takenIn: map[string]time.Time{}}
	look := func(whole bool) (again time.Duration) {
		t.Helper()
		queues, since := r.begin(now)
		if got := len(queues) == 0; got != whole {
			t.Errorf("goes back to the beginning: %v, want %v", got, whole)
		}
		if !whole && !since[0].Equal(time.Unix(998, 0)) {
			t.Errorf("goes back to %s", since[0])
		}
		now = now.Add(took)
		r.end(now)
		r.took("q", time.Unix(1000, 0))
		return r.again(now)
	}
	if again := look(true); again < time.Second {
		t.Errorf("again in %s though nothing was passed", again)
	}
	again := look(false)
	if want := (reachRest - 1) * took; again != want {
		t.Errorf("again in %s, want %s", again, want)
	}
	now = now.Add(again)
	look(true)
}
