package limit

import (
	"fmt"
	"time"
)

// Algorithm says which arrivals a rate allows.
type Algorithm string

// The sliding window, which needs no name in a Shape, is the default.
const (
	SlidingWindow Algorithm = "sliding_window" // at most Units in any window
	FixedWindow   Algorithm = "fixed_window"   // at most Units in each window of the calendar
	TokenBucket   Algorithm = "token_bucket"   // at most Burst + Units/Period x t in any t
	LeakyBucket   Algorithm = "leaky_bucket"   // a sliding window of one unit
)

// Shape is what a rate has that is not a sliding window. The zero Shape is one, or a concurrency.
type Shape struct {
	Algorithm Algorithm `json:"algorithm,omitempty"`
	Period    string    `json:"period,omitempty"`   // in which a token bucket's units come in; a fixed window's length: 1s, 3mo
	Burst     int64     `json:"burst,omitempty"`    // what a token bucket holds
	Timezone  string    `json:"timezone,omitempty"` // IANA's name of a fixed window's; empty: UTC
}

// lookBack is for how many times of its filling a token bucket's charges count. What was before is taken to
// have left it empty, which is never too much, and too little only by one burst in so many.
const lookBack = 20

// Parse reads a rate of an algorithm. Token buckets take a burst, fixed windows a timezone and windows of
// months (mo).
func Parse(text string, algorithm Algorithm, burst int64, timezone string) (Rate, error) {
	switch algorithm {
	case FixedWindow:
		units, window, err := parseUnits(text, "")
		if err != nil {
			return Rate{}, err
		}
		cal, err := ParseCalendar(window, timezone)
		if err != nil {
			return Rate{}, err
		}
		return Rate{Units: units, Window: cal.Longest(), Shape: Shape{Algorithm: FixedWindow, Period: cal.String(), Timezone: timezone}}, nil
	case TokenBucket, LeakyBucket:
		r, err := ParseRate(text)
		if err != nil {
			return r, err
		}
		return r.like(Shape{Algorithm: algorithm, Burst: burst})
	}
	return ParseRate(text)
}

// Set is r with the units and window of a rate that was parsed without an algorithm.
func (r Rate) Set(to Rate) (Rate, error) {
	if r.Algorithm == FixedWindow {
		period := to.Period
		if period == "" {
			period = windowString(to.Window)
		}
		return Parse(fmt.Sprintf("%d/%s", to.Units, period), FixedWindow, 0, r.Timezone)
	}
	if to.Algorithm != "" {
		return r, fmt.Errorf("a window of %s needs algorithm: fixed_window", to.Period)
	}
	return to.like(r.Shape)
}

// like makes a rate that was parsed as a sliding window one of s.
func (r Rate) like(s Shape) (Rate, error) {
	switch s.Algorithm {
	case TokenBucket:
		fill := float64(s.Burst) / float64(r.Units) * float64(r.Window)
		if s.Burst < 1 || s.Burst > MaxUnits || lookBack*fill > float64(MaxWindow) {
			return r, fmt.Errorf("a burst of %d at %d per %s is not from 1 unit to what comes in within 18 days", s.Burst, r.Units, windowString(r.Window))
		}
		s.Period = windowString(r.Window)
		r.Shape, r.Window = s, max(time.Duration(lookBack*fill), MinWindow).Truncate(time.Microsecond)
	case LeakyBucket:
		if r.Window/time.Duration(r.Units) < MinWindow {
			return r, fmt.Errorf("a leaky bucket of %d per %s lets one through less than 10ms after another: take a sliding window", r.Units, windowString(r.Window))
		}
		r.Shape = s
		r.Units, r.Window = 1, (r.Window+time.Duration(r.Units)-1)/time.Duration(r.Units)
		r.Window = (r.Window + time.Microsecond - 1).Truncate(time.Microsecond)
	}
	return r, nil
}

// Most is what one call may take at most.
func (r Rate) Most() int64 {
	if r.Algorithm == TokenBucket {
		return r.Burst
	}
	return r.Units
}

// Paced is whether room comes back unit by unit, however the units before were taken.
func (r Rate) Paced() bool { return r.Algorithm == TokenBucket }

// Span is the window, or in what a token bucket's units come in: the time by which waits are judged.
func (r Rate) Span() time.Duration {
	if r.Algorithm == TokenBucket {
		w, _ := parseWindow(r.Period)
		return w
	}
	return r.Window
}

// Length is the window as it is written: 1h, 3mo.
func (r Rate) Length() string {
	if r.Period != "" {
		return r.Period
	}
	return windowString(r.Window)
}

// Bucket is the width of the buckets in which usage is kept: what a charge's until is rounded up to.
func (r Rate) Bucket() time.Duration {
	if c, ok := r.calendar(); ok {
		return c.bucket()
	}
	if r.Algorithm == TokenBucket { // a fortieth of what fills it
		return r.Window / (lookBack * 40)
	}
	return r.Window / 200
}

// calendar is a fixed window's. Where a process does not know its time zone, the limit is a sliding window
// no shorter than any of the calendar's: stricter.
func (r Rate) calendar() (c Calendar, ok bool) {
	if r.Algorithm != FixedWindow {
		return c, false
	}
	c, err := ParseCalendar(r.Period, r.Timezone)
	return c, err == nil
}

// apart is by how much a fixed window's API may have another time than Postgres: a twentieth of the window up
// to 1 s, of longer ones a thousandth up to a minute.
func (c Calendar) apart() time.Duration {
	w := c.nominal()
	return max(min(w/20, time.Second), min(w/1000, time.Minute))
}

// Since is the moment after which an until counts at now, where Postgres's clock gained so much.
func (r Rate) Since(now time.Time, gained time.Duration) time.Time {
	if c, ok := r.calendar(); ok { // the API may still be in the window before
		return c.Start(now.Add(-c.apart() - gained)).Add(-c.apart())
	}
	return now.Add(-r.Window - Margin(r.Window) - gained)
}

// KnownSince is since when an until counted beyond doubt for who gave units out last, until knownAt.
func (r Rate) KnownSince(knownAt time.Time) time.Time { return r.Since(knownAt.Add(clocksApart), 0) }

// clocksApart is by how much the clock of a Postgres that failed over may have been ahead of the one that took over.
const clocksApart = time.Second

// Passed is from when on an until of t no longer counts: Since is not before it.
func (r Rate) Passed(t time.Time, gained time.Duration) time.Time {
	if c, ok := r.calendar(); ok {
		return c.End(t.Add(c.apart())).Add(c.apart() + gained)
	}
	return t.Add(r.Window + Margin(r.Window) + gained)
}

// Comparable is whether of r and other one may imply the other: both are so many at once, or of one algorithm
// and, where that cuts a calendar, of the same windows.
func (r Rate) Comparable(other Rate) bool {
	return (r.Window == 0) == (other.Window == 0) && r.Algorithm == other.Algorithm &&
		(r.Algorithm != FixedWindow || r.Period == other.Period && r.Timezone == other.Timezone) &&
		(r.Algorithm != TokenBucket || r.Period == other.Period)
}

// AtLeast is whether r lets through whatever other does, its charges kept for as long.
func (r Rate) AtLeast(other Rate) bool {
	return r.Units >= other.Units && r.Burst >= other.Burst && r.Comparable(other) &&
		(r.Window == other.Window || r.Algorithm == TokenBucket)
}

// Later is the begin of so many windows after the one that begins at t, or about then where they are many.
func (r Rate) Later(t time.Time, windows float64) time.Time {
	c, ok := r.calendar()
	for ; ok && windows >= 1 && windows < 10_000; windows-- {
		t = c.End(t.Add(-c.apart())).Add(c.apart())
	}
	return t.Add(time.Duration(windows * float64(r.Window)))
}
