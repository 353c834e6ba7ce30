package dispatcher

import (
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/claim"
)

// A few polls may follow one another at once; more are apart. Those that nobody asked for leave room for one that somebody does.
func TestPace(t *testing.T) {
	t.Parallel()
	var p pace
	at := time.Now()
	for _, c := range []struct {
		unpaced int           // polls that do not wait, before all others
		rest    time.Duration // then
		want    []time.Duration
	}{
		{0, 0, []time.Duration{0, 0, 0, 0, 0, pollEvery, pollEvery, pollEvery}},
		{0, 2 * pollEvery, []time.Duration{0, 0, pollEvery}},
		{100, 5 * pollEvery, []time.Duration{0, 0, 0, 0, 0, pollEvery}},
	} {
		for range c.unpaced {
			p.polled(at)
		}
		at = at.Add(c.rest)
		var waits []time.Duration
		for range c.want {
			waits = append(waits, max(0, p.in(at)))
			at = at.Add(waits[len(waits)-1])
			p.polled(at)
		}
		if !slices.Equal(waits, c.want) {
			t.Errorf("after %s, polls waited %v, want %v", c.rest, waits, c.want)
		}
	}
}

// When the loop polls after a step, and after a notification.
func TestPaceOfSteps(t *testing.T) {
	t.Parallel()
	at := time.Now()
	rested, busy := pace{toldAt: at.Add(-time.Hour), due: at.Add(time.Hour), earlyFor: earlyFor}, pace{toldAt: at.Add(-time.Hour), due: at.Add(time.Hour), earlyFor: earlyFor}
	for range 9 {
		busy.polled(at)
	}
	news := func(p pace, ago time.Duration) pace { p.toldAt = at.Add(-ago); return p }
	for _, c := range []struct {
		name           string
		p              pace
		s              polls
		stepped, noted time.Duration // until the next poll, after a step and after a notification
	}{
		{"nothing to do", rested, polls{in: time.Minute}, time.Minute, 0},
		{"at once", rested, polls{}, claim.MinGap, 0},
		{"at once, and polls are many", busy, polls{}, pollEvery, pollEvery},
		{"at once, and a slot will be free", busy, polls{hurried: true}, claim.MinGap, 0},
		{"something was told of, and more may come", news(rested, 100*time.Millisecond), polls{in: time.Minute}, 100 * time.Millisecond, 0},
		{"that was long ago", news(rested, 3*time.Second), polls{in: time.Minute}, time.Minute, 0},
		{"that leaves room for what is told", news(busy, 100*time.Millisecond), polls{in: time.Minute}, (pollBurst + 1) * pollEvery, pollEvery},
		{"another dispatcher claims", news(rested, 0), polls{in: time.Minute, standBy: time.Second}, time.Minute, time.Second},
		{"it failed", news(rested, 0), polls{in: time.Second, failed: true}, time.Second, 0},
	} {
		p := c.p
		if got := p.stepped(at, c.s); got != c.stepped {
			t.Errorf("%s: after a step the next poll is in %s, want %s", c.name, got, c.stepped)
		}
		p = c.p
		if got := p.told(at, c.s); got != c.noted {
			t.Errorf("%s: after a notification the next poll is in %s, want %s", c.name, got, c.noted)
		}
	}
}
