package limit

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"time"
)

// TokenBucket allows at most Burst + Units/Period x t in any t.
const TokenBucket Algorithm = "token_bucket"

type tokenBucket struct{ slidingWindow }

func (tokenBucket) traits() Traits {
	return Traits{Name: TokenBucket, Returns: Evenly, Burst: true, OneRate: true}
}

func (tokenBucket) validate(w written, s Shape) (Rate, error) {
	r, err := w.rate()
	fill := float64(s.Burst) / float64(r.Units) * float64(r.Window)
	switch {
	case err != nil:
		return r, err
	case s.Burst < 1 || s.Burst > MaxUnits || fillTimes*fill > float64(MaxWindow):
		return r, fmt.Errorf("a burst of %d at %d per %s is not from 1 unit to what comes in within 18 days",
			s.Burst, r.Units, r.Length())
	}
	window := max(time.Duration(fillTimes*fill), MinWindow).Truncate(time.Microsecond)
	return Rate{r.Units, window, Shape{Algorithm: TokenBucket, Period: r.Length(), Burst: s.Burst}}, nil
}

func (tokenBucket) room(u Use, now time.Time, gained time.Duration) int64 {
	return max(0, int64(math.Floor(u.level(now, gained))))
}

// next is the earliest moment at which the bucket can hold a unit: its level only rises while none is used, and what can
// still arrive may have arrived by now.
func (tokenBucket) next(u Use, now time.Time, gained time.Duration) time.Time {
	u.Charges = slices.Clone(u.Charges)
	for i := range u.Charges {
		u.Charges[i].Until = earlier(u.Charges[i].Until, now)
	}
	const tick = 100 * time.Microsecond
	ticks := sort.Search(int((u.Rate.Window+gained+time.Second)/tick), func(n int) bool {
		return u.level(now.Add(time.Duration(n)*tick), gained) >= 1
	})
	return now.Add(time.Duration(ticks) * tick)
}

func (tokenBucket) ahead(Rate) time.Duration { return 0 }

// bucket is a fortieth of what fills it.
func (tokenBucket) bucket(r Rate) time.Duration { return r.Window / (fillTimes * 40) }

func (tokenBucket) span(r Rate) time.Duration {
	w, _ := parseWindow(r.Period)
	return w
}

// fillTimes is how many fill times a token bucket's charges count for. Before that the bucket counts as empty: never too much,
// and too little by at most one burst of the fillTimes that came in since.
const fillTimes = 20

// level is how many units a token bucket holds at now: the minimum, over each moment s in the window, of
//
//	burst + rate x (now - s) - what has an until of s or later
//
// The proof is that of the sliding window in docs/design.md, with each s in the place of now - W. Clocks may differ in speed by a
// thousandth, so the rate is less by that, and what Postgres's clock gained fills nothing. Units that are missing left the
// bucket empty when the last of them arrived; what is charged besides came out of it later, even if a clock that was set
// back has it earlier.
func (u Use) level(now time.Time, gained time.Duration) float64 {
	perSecond := u.Rate.perSecond()
	charges, begin := u.Charges, now.Add(-u.Rate.Window)
	if m := u.Missing; m != nil {
		if m.KnownAt == nil || now.Before(m.Until) {
			return 0
		}
		begin = m.Until
		knownBy := m.KnownAt.Add(u.Rate.Bucket()) // buckets of what was charged by KnownAt end no later, all others do
		charges = slices.DeleteFunc(slices.Clone(charges), func(c Charge) bool { return !c.Until.After(knownBy) })
		for i, c := range charges {
			if c.Until.Before(begin) {
				charges[i].Until = begin
			}
		}
	}
	slices.SortFunc(charges, func(a, b Charge) int { return a.Until.Compare(b.Until) })
	level, at := 0.0, begin
	fill := func(until time.Time) {
		if until.After(at) {
			level, at = min(float64(u.Rate.Burst), level+perSecond*until.Sub(at).Seconds()), until
		}
	}
	for _, c := range charges {
		if !c.Until.Before(begin) {
			fill(earlier(c.Until, now))
			level -= float64(c.Units)
		}
	}
	// Whenever the clock gained, the bucket is as full as if that had been since the last charge: it fills that much later.
	level += perSecond * max(0, now.Sub(at).Seconds())
	return min(float64(u.Rate.Burst), level-perSecond*gained.Seconds())
}

func (r Rate) perSecond() float64 { return float64(r.Units) / r.Span().Seconds() * 1000 / 1001 }
