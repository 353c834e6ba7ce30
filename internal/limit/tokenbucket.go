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
//
// Units that are missing are taken to have left it empty when the last of them arrived; what is charged besides them
// came out of it later, whatever a clock that was set back says.
func (u Use) level(now time.Time, gained time.Duration) float64 {
	r, charges, begin := u.Rate, u.Charges, now.Add(-u.Rate.Window)
	perSecond := r.perSecond()
	if m := u.Missing; m != nil {
		if m.KnownAt.IsZero() || now.Before(m.Until) {
			return 0
		}
		begin, charges = m.Until, slices.Clone(charges)
		charges = slices.DeleteFunc(charges, func(c Charge) bool { return !c.Until.After(m.KnownBy) })
		for i, c := range charges {
			charges[i].Until = later(c.Until, begin)
		}
	}
	level, at := 0.0, begin
	slices.SortFunc(charges, func(a, b Charge) int { return a.Until.Compare(b.Until) })
	for _, c := range charges {
		if c.Until.Before(begin) {
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

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// refills is when the bucket holds a unit at the earliest, if no others are taken: its level only rises then,
// and what can still arrive may have arrived by now.
func (u Use) refills(now time.Time, gained time.Duration) time.Time {
	u.Charges = slices.Clone(u.Charges)
	for i := range u.Charges {
		u.Charges[i].Until = earlier(u.Charges[i].Until, now)
	}
	early, late := now, now.Add(u.Rate.Window+gained+time.Second)
	for late.Sub(early) > 100*time.Microsecond {
		if middle := early.Add(late.Sub(early) / 2); u.level(middle, gained) < 1 {
			early = middle
		} else {
			late = middle
		}
	}
	return late
}
