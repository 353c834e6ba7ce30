package limit

import (
	"cmp"
	"time"
)

// SlidingWindow allows at most Units in any window. It is the default, and a Shape leaves its name empty.
const SlidingWindow Algorithm = "sliding_window"

// slidingWindow is a concurrency, too: its window is 0.
type slidingWindow struct{}

func (slidingWindow) traits() Traits { return Traits{Name: SlidingWindow, Spread: true} }

func (slidingWindow) validate(w written, _ Shape) (Rate, error) { return w.rate() }

func (slidingWindow) room(u Use, _ time.Time, _ time.Duration) int64 {
	room := u.Rate.Units - u.Occupied
	if u.Missing != nil {
		room = min(room, u.Missing.Known-(u.Occupied-u.Missing.Former))
	}
	return max(0, room)
}

func (slidingWindow) next(u Use, now time.Time, gained time.Duration) time.Time {
	return u.Rate.Passed(cmp.Or(u.FirstUntil, now), gained)
}

func (slidingWindow) since(r Rate, now time.Time, gained time.Duration) time.Time {
	return now.Add(-r.Window - Margin(r.Window) - gained)
}

func (slidingWindow) passed(r Rate, until time.Time, gained time.Duration) time.Time {
	return until.Add(r.Window + Margin(r.Window) + gained)
}

func (slidingWindow) ahead(r Rate) time.Duration {
	if r.Window == 0 {
		return 0
	}
	if r.Window <= AheadMost { // so that a run begins with all units
		return r.Window
	}
	const least = 80 * time.Millisecond
	return min(max(16*(r.Window/time.Duration(max(r.Units, 1))), least), AheadMost, r.Window/5)
}

// bucket is narrow where few units are used: they fill few buckets, however narrow. A concurrency's is not 0.
func (slidingWindow) bucket(r Rate) time.Duration {
	parts := time.Duration(200)
	if r.Units <= 500 {
		parts = 1000
	}
	return max(r.Window/parts, time.Microsecond)
}

func (slidingWindow) span(r Rate) time.Duration { return r.Window }
