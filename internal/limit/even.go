package limit

import "time"

// EvenFor is for how long calls go evenly once an API has refused some that came together.
const EvenFor = time.Hour

// evenMost is the longest window whose calls may go evenly. One of a day would have them wait for minutes.
const evenMost = time.Minute

// EvenGap is how far apart calls go while they go evenly: no API that spaces its requests, or estimates (see sliding_window_counter),
// refuses them then. 0: they never do. It keeps no promise, for the window still counts; it spares refusals.
func (r Rate) EvenGap() time.Duration {
	if r.Algorithm != "" && r.Algorithm != SlidingWindow || r.Window == 0 || r.Window > evenMost || r.Units < 2 {
		return 0
	}
	gap := r.Window/time.Duration(r.Units-1) + time.Microsecond
	return gap + Margin(gap)
}

// Even is how many units may go evenly, and from when on: one each gap, from the last one on. Room is what the window has room for.
// None go while some have yet to start, nor more than ahead of their time.
func (u Use) Even(room int64, gap, ahead time.Duration, now time.Time) (from time.Time, units int64) {
	from = now
	if next := u.LastSent.Add(gap * time.Duration(1+u.Unsent)); next.After(now) {
		from = next
	}
	if u.Unsent > 0 || room <= 0 || from.Sub(now) > ahead {
		return from, 0
	}
	return from, min(room, max(1, int64(RunFor/gap)))
}
