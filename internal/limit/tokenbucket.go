package limit

import (
	"slices"
	"time"
)

// Charge is units that were given out of a token bucket.
type Charge struct {
	Until time.Time // the latest moment at which they can reach the API; of what has not started, far ahead
	Units int64
}

// level is how many units a token bucket holds at now: the least, over each moment s in the window, of
//
//	burst + rate x (now - s) - what has an until of s or later
//
// so that of all that arrives in any t seconds, what was given out last had found room for all of it (the proof
// is docs/design.md's of the sliding window, with each s in the place of now - W). Before the window it is
// taken to have been empty. The clocks' running apart, a thousandth, makes the rate less; what Postgres's
// clock gained within the window was no time in which units came in.
func (r Rate) level(now time.Time, gained time.Duration, charges []Charge) float64 {
	perSecond := r.perSecond()
	level, at := 0.0, now.Add(-r.Window)
	slices.SortFunc(charges, func(a, b Charge) int { return a.Until.Compare(b.Until) })
	for _, c := range charges {
		if c.Until.Before(now.Add(-r.Window)) {
			continue
		}
		if until := earlier(c.Until, now); until.After(at) {
			level = min(float64(r.Burst), level+perSecond*until.Sub(at).Seconds())
			at = until
		}
		level -= float64(c.Units)
	}
	level = min(float64(r.Burst), level+perSecond*now.Sub(at).Seconds())
	return level - perSecond*gained.Seconds()
}

func (r Rate) perSecond() float64 {
	return float64(r.Units) / r.Span().Seconds() * 1000 / 1001
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// refills is when the bucket holds a unit at the earliest, if no others are taken: its level only rises then,
// and what can still arrive may have arrived by now.
func (r Rate) refills(now time.Time, gained time.Duration, charges []Charge) time.Time {
	charges = slices.Clone(charges)
	for i := range charges {
		charges[i].Until = earlier(charges[i].Until, now)
	}
	early, late := now, now.Add(r.Window+gained+time.Second)
	for late.Sub(early) > 100*time.Microsecond {
		if middle := early.Add(late.Sub(early) / 2); r.level(middle, gained, charges) < 1 {
			early = middle
		} else {
			late = middle
		}
	}
	return late
}
