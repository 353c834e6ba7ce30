package dispatcher

import (
	"slices"
	"testing"
	"time"
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
	for range 9 {
		at = at.Add(max(0, p.rest(at)))
		if p.polled(at); p.in(at) >= 0 {
			t.Errorf("after a poll that nobody asked for, the next waits %s", p.in(at))
		}
	}
}
