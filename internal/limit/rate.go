package limit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of a Rate that ParseRate accepts.
const (
	MaxUnits  = 1_000_000_000_000
	MinWindow = 10 * time.Millisecond
	MaxWindow = 366 * day

	day = 24 * time.Hour
)

// Rate allows at most Units in any window of length Window, or Units at once if Window is 0. A Shape makes another
// algorithm of it. A token bucket's Units come in per Period, and its Window is lookBack times what fills it.
type Rate struct {
	Units  int64         `json:"units"`
	Window time.Duration `json:"window"` // for how long a unit counts after its until, at most
	Shape
}

// Shape is what only rates of other algorithms than the sliding window have. The zero Shape is a sliding window, or a
// concurrency.
type Shape struct {
	Algorithm Algorithm `json:"algorithm,omitempty"`
	Period    string    `json:"period,omitempty"`   // in which a token bucket's units come in; a fixed window's length: 1s, 3mo
	Burst     int64     `json:"burst,omitempty"`    // what a token bucket holds
	Timezone  string    `json:"timezone,omitempty"` // a fixed window's, by IANA's name; "": UTC
}

// Algorithm says which arrivals a rate allows.
type Algorithm string

// The algorithms. A Shape leaves the name of the sliding window, the default, empty. To add one, search for
// fixed.?window and token.?bucket, in upper and lower case: each switch takes what it does not name for a sliding window.
const (
	SlidingWindow Algorithm = "sliding_window" // at most Units in any window
	FixedWindow   Algorithm = "fixed_window"   // at most Units in each window of the calendar
	TokenBucket   Algorithm = "token_bucket"   // at most Burst + Units/Period x t in any t
	LeakyBucket   Algorithm = "leaky_bucket"   // a sliding window of one unit
)

// ParseRate reads the rate of a sliding window as people write it: 100/h, 5/s, 10/500ms, 1_000/d, 100 per 1h, and what
// String returns. Units of time are ms s m h d w; without a number they count once.
func ParseRate(text string) (Rate, error) { return Parse(text, SlidingWindow, 0, "") }

// Parse reads a rate of any algorithm. Token buckets take a burst, fixed windows a timezone and windows of months (mo).
func Parse(text string, algorithm Algorithm, burst int64, timezone string) (Rate, error) {
	form := regexp.MustCompile(`^(\d+(?:_\d+)*)(?: ?/ ?| per )(\S*)(?:, sliding window)?$`)
	parts := form.FindStringSubmatch(strings.TrimSpace(text))
	if strings.TrimSpace(text) == "unlimited" {
		return Rate{}, errors.New("unlimited needs no limit: leave it out of the queue's limits")
	}
	if parts == nil {
		return Rate{}, fmt.Errorf("%q is not a rate: write units/window, such as 100/1h", text)
	}
	units, err := strconv.ParseInt(strings.ReplaceAll(parts[1], "_", ""), 10, 64)
	switch {
	case err != nil || units > MaxUnits:
		return Rate{}, fmt.Errorf("%q allows more than 1e12 units", text)
	case units == 0:
		return Rate{}, errors.New("a rate of 0 lets nothing through: pause the limit instead")
	case algorithm == FixedWindow:
		c, err := ParseCalendar(parts[2], timezone)
		if err != nil {
			return Rate{}, err
		}
		return Rate{units, c.longest(), Shape{Algorithm: FixedWindow, Period: c.String(), Timezone: timezone}}, nil
	}
	window, err := parseWindow(parts[2])
	if err != nil {
		return Rate{}, fmt.Errorf("%q is not a rate: %w", text, err)
	}
	return Rate{Units: units, Window: window}.shaped(Shape{Algorithm: algorithm, Burst: burst})
}

// Set is r with the units and window of a rate that was parsed without an algorithm.
func (r Rate) Set(to Rate) (Rate, error) {
	switch {
	case r.Algorithm == FixedWindow:
		return Parse(fmt.Sprintf("%d/%s", to.Units, to.Length()), FixedWindow, 0, r.Timezone)
	case to.Algorithm != "":
		return r, fmt.Errorf("a window of %s needs algorithm: fixed_window", to.Period)
	}
	return to.shaped(r.Shape)
}

// shaped applies s to a sliding window's rate; if s is no bucket, r is unchanged.
func (r Rate) shaped(s Shape) (Rate, error) {
	switch s.Algorithm {
	case TokenBucket:
		fill := float64(s.Burst) / float64(r.Units) * float64(r.Window)
		if s.Burst < 1 || s.Burst > MaxUnits || lookBack*fill > float64(MaxWindow) {
			return r, fmt.Errorf("a burst of %d at %d per %s is not from 1 unit to what comes in within 18 days",
				s.Burst, r.Units, r.Length())
		}
		s.Period = r.Length()
		r.Window = max(time.Duration(lookBack*fill), MinWindow).Truncate(time.Microsecond)
		r.Shape = s
	case LeakyBucket:
		if r.Window/time.Duration(r.Units) < MinWindow {
			return r, fmt.Errorf("a leaky bucket of %d per %s lets one through less than 10ms after another: take a sliding window",
				r.Units, r.Length())
		}
		each := (r.Window + time.Duration(r.Units) - 1) / time.Duration(r.Units)
		return Rate{1, (each + time.Microsecond - 1).Truncate(time.Microsecond), s}, nil
	}
	return r, nil
}

// parseWindow reads a window such as 1h, 500ms or d.
func parseWindow(s string) (time.Duration, error) {
	n, name, err := splitWindow(s)
	unit := lengthOf(name)
	switch {
	case name == "mo":
		return 0, errors.New("mo needs algorithm: fixed_window")
	case unit == 0 || err != nil:
		return 0, fmt.Errorf("its window %q must be one number and one of ms s m h d w", s)
	case n > int64(MaxWindow/unit) || time.Duration(n)*unit < MinWindow:
		return 0, fmt.Errorf("its window %q must be from 10ms to 366d", s)
	}
	return time.Duration(n) * unit, nil
}

// splitWindow reads a number, 1 if there is none, and the name of a unit of time.
func splitWindow(s string) (n int64, unit string, err error) {
	number := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyz")
	count, err := strconv.ParseUint(cmp.Or(number, "1"), 10, 63)
	return int64(count), s[len(number):], err
}

// lengthOf is how long a unit of time is; 0: there is none of this name.
func lengthOf(name string) time.Duration {
	return map[string]time.Duration{
		"w": 7 * day, "d": day, "h": time.Hour, "m": time.Minute, "s": time.Second, "ms": time.Millisecond,
	}[name]
}

// Length is the window as it is written, in the largest unit that divides it: 90s stays 90s, 3600s is 1h, 3mo is 3mo.
func (r Rate) Length() string {
	if r.Period != "" {
		return r.Period
	}
	for _, unit := range []string{"w", "d", "h", "m", "s", "ms"} {
		if n := r.Window / lengthOf(unit); n > 0 && r.Window%lengthOf(unit) == 0 {
			return fmt.Sprint(int64(n), unit)
		}
	}
	return r.Window.String()
}

// String returns the one form in which rates are echoed: "100 per 1h, sliding window", "50 at once",
// "10 per 1s, token bucket, burst 100", "10000 per 1d, fixed window, America/New_York", "1 per 100ms, leaky bucket".
func (r Rate) String() string {
	if r.Window == 0 && r.Algorithm == "" {
		return fmt.Sprintf("%d at once", r.Units)
	}
	name := strings.ReplaceAll(string(cmp.Or(r.Algorithm, SlidingWindow)), "_", " ")
	text := fmt.Sprintf("%d per %s, %s", r.Units, r.Length(), name)
	switch r.Algorithm {
	case TokenBucket:
		text += fmt.Sprintf(", burst %d", r.Burst)
	case FixedWindow:
		text += ", " + cmp.Or(r.Timezone, "UTC")
	}
	return text
}

// Counting is what a limit has besides its rate.
type Counting struct {
	PerKey    bool
	Overrides map[string]int64
	CountCost bool
	Anchor    Anchor
	Unanswered
	SendWithin time.Duration
}

// Describe is the rate and how it is counted, in the audit's words. Package verify compares versions with them.
func (r Rate) Describe(c Counting) string {
	text := r.String()
	if c.PerKey {
		text += ", per key"
	}
	for _, key := range slices.Sorted(maps.Keys(c.Overrides)) {
		text += fmt.Sprintf(", %s %d", key, c.Overrides[key])
	}
	if c.CountCost {
		text += ", by cost"
	}
	if c.Anchor != "" {
		text += ", anchor " + string(c.Anchor)
	}
	switch c.Proof {
	case ProofLater:
		text += fmt.Sprintf(", slack %s and a later answer, arrive_within %s", c.Slack, c.ArriveWithin)
	case ProofAnswer:
		text += fmt.Sprintf(", slack answer, arrive_within %s", c.ArriveWithin)
	default:
		text += fmt.Sprintf(", slack %s", c.Slack)
	}
	return text + fmt.Sprintf(", send_within %s", c.SendWithin)
}

// DefaultSlack is how long a request may take to arrive after it was written: W/20, from 500 ms to 60 s. TCP sends a lost
// segment again after 200 ms at the earliest.
func DefaultSlack(window time.Duration) time.Duration {
	return min(max(window/20, 500*time.Millisecond), time.Minute)
}

// DefaultArriveWithin is how long a request without an answer or another proof of its arrival counts as on its way: ten
// windows, at least 10 s.
func DefaultArriveWithin(window time.Duration) time.Duration { return max(10*window, 10*time.Second) }

// DefaultSendWithin is how long a worker may take from asking for the start to writing the request: W/20, from 100 ms to
// 5 s. It is 5 s for a concurrency limit, which does not need it.
func DefaultSendWithin(window time.Duration) time.Duration {
	if window == 0 {
		return 5 * time.Second
	}
	return min(max(window/20, 100*time.Millisecond), 5*time.Second)
}

// Most is the largest number of units that one call may take.
func (r Rate) Most() int64 {
	if r.Algorithm == TokenBucket {
		return r.Burst
	}
	return r.Units
}

// Span is the window, or the period in which a token bucket's units come in. Waits are judged by it.
func (r Rate) Span() time.Duration {
	if r.Algorithm == TokenBucket {
		w, _ := parseWindow(r.Period)
		return w
	}
	return r.Window
}

// Comparable reports whether one of the two rates may imply the other: both are so many at once, or of one algorithm,
// period and time zone.
func (r Rate) Comparable(other Rate) bool {
	return (r.Window == 0) == (other.Window == 0) && r.Algorithm == other.Algorithm && r.Period == other.Period && r.Timezone == other.Timezone
}

// AtLeast reports whether r lets through whatever other does, and keeps its charges for as long.
func (r Rate) AtLeast(other Rate) bool {
	return r.Units >= other.Units && r.Burst >= other.Burst && r.Comparable(other) &&
		(r.Window == other.Window || r.Algorithm == TokenBucket)
}
