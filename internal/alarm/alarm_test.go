package alarm

import (
	"testing"
	"time"
)

// It never wakes too early, and not at all late for a moment that has passed.
func TestSleep(t *testing.T) {
	t.Parallel()
	a := New()
	defer a.Close()
	for _, d := range []time.Duration{3 * time.Millisecond, 20 * time.Microsecond, 0, -time.Hour, 5 * time.Millisecond} {
		until := time.Now().Add(d)
		a.Sleep(until)
		if now := time.Now(); now.Before(until) {
			t.Errorf("awake %s too early", until.Sub(now))
		}
	}
}
