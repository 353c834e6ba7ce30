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
// algorithm of it, which may keep another rate than was written: a leaky bucket keeps 10/s as 1 per 100ms, a sliding window counter
// as 1 per 1s/9. A token bucket's Units come in per Period, and its Window is fillTimes times what fills it.
type Rate struct {
	Units  int64         `json:"units"`
	Window time.Duration `json:"window"` // for how long a unit counts after its until, at most
	Shape
}

// Shape is what only rates of other algorithms than the sliding window have. The zero Shape is a sliding window, or a
// concurrency.
type Shape struct {
	Algorithm Algorithm     `json:"algorithm,omitempty"`
	Period    string        `json:"period,omitempty"`    // in which a token bucket's units come in; a fixed window's or a counter's length: 1s, 3mo
	Burst     int64         `json:"burst,omitempty"`     // what a token bucket holds
	Timezone  string        `json:"timezone,omitempty"`  // a fixed window's, by IANA's name; "": UTC. Of a leaky bucket: it spreads such windows
	Tolerance time.Duration `json:"tolerance,omitempty"` // of a leaky bucket: how much too early the API lets a request come
	Counted   int64         `json:"counted,omitempty"`   // of a sliding window counter: what the API's estimate of a Period may reach
}

// ParseRate reads the rate of a sliding window as people write it: 100/h, 5/s, 10/500ms, 1_000/d, 100 per 1h, and what
// String returns. Units of time are ms s m h d w; without a number they count once.
func ParseRate(text string) (Rate, error) { return Parse(text, SlidingWindow, 0, "") }

// Parse reads a rate of any algorithm. Token buckets take a burst, fixed windows a timezone and windows of months (mo).
func Parse(text string, algorithm Algorithm, burst int64, timezone string) (Rate, error) {
	if !algorithm.Traits().Timezone {
		timezone = ""
	}
	return ParseShape(text, Shape{Algorithm: algorithm, Burst: burst, Timezone: timezone})
}

// ParseShape reads a rate that has a shape as it is configured. A leaky bucket with a time zone spreads windows of its calendar. Of
// leaky buckets and sliding window counters, too, it reads what String returns.
func ParseShape(text string, s Shape) (Rate, error) {
	form := regexp.MustCompile(`^(\d+(?:_\d+)*)(?: ?/ ?| per )(\S*?)(?:, (sliding window(?: counter)?|leaky bucket(?:, [^\s,]+)?(?:, tolerance [^\s,]+)?))?$`)
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
	case s.Algorithm != "" && s.Algorithm.Traits().Name != s.Algorithm:
		return Rate{}, fmt.Errorf("there is no algorithm %q", s.Algorithm)
	}
	w := written{text, units, parts[2], false}
	if echo := parts[3]; echo != "" && echo != SlidingWindow.Words() {
		if err := w.echoed(echo, &s); err != nil {
			return Rate{}, err
		}
	}
	return s.Algorithm.rules().validate(w, s)
}

// echoed reads what String writes after units and window.
func (w *written) echoed(echo string, s *Shape) error {
	parts := strings.Split(echo, ", ")
	if parts[0] != s.Algorithm.Words() {
		return fmt.Errorf("%q is not a rate of algorithm: %s", w.text, s.Algorithm.Traits().Name)
	}
	is := *s
	for _, part := range parts[1:] {
		tolerance, has := strings.CutPrefix(part, "tolerance ")
		if !has {
			is.Timezone = part
			continue
		}
		var err error
		if is.Tolerance, err = time.ParseDuration(tolerance); err != nil {
			return fmt.Errorf("%q is not a rate: its tolerance %q is no duration", w.text, tolerance)
		}
	}
	if w.each = is.Algorithm == LeakyBucket; w.each && w.units != 1 {
		return fmt.Errorf("%q is not a rate: a leaky bucket is 1 per its spacing", w.text)
	}
	*s = is
	return nil
}

// ParseSetting reads a rate, or a whole number for a concurrency.
func ParseSetting(text string) (Rate, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		if n < 1 || n > 1_000_000 {
			return Rate{}, fmt.Errorf("%d at once is outside 1 to 1000000; to let nothing through, pause the limit", n)
		}
		return Rate{Units: n}, nil
	}
	return ParseAny(text)
}

// ParseAny reads a rate before its algorithm is known: as a sliding window, or else as the first algorithm that can read it.
func ParseAny(text string) (Rate, error) {
	rate, err := ParseRate(text)
	for _, a := range Algorithms() {
		if r, not := ParseShape(text, Shape{Algorithm: a}); err != nil && not == nil {
			return r, nil
		}
	}
	return rate, err
}

// Set is r with the units and window of a rate that was parsed before its algorithm was known.
func (r Rate) Set(to Rate) (Rate, error) {
	calendar := r.Algorithm == FixedWindow || r.Timezone != ""
	switch {
	case to.Algorithm == "" && r.Algorithm == "":
		return to, nil
	case to.Algorithm == FixedWindow && !calendar:
		return r, fmt.Errorf("a window of %s needs algorithm: %s", to.Period, to.Algorithm)
	case to.Algorithm != "" && to.Algorithm != FixedWindow && to.Algorithm != r.Algorithm:
		return r, fmt.Errorf("%s needs algorithm: %s", to, to.Algorithm)
	case to.Tolerance != 0 && to.Tolerance != r.Tolerance:
		return r, fmt.Errorf("its tolerance is %s: change it in the configuration", r.Tolerance)
	}
	return r.Algorithm.rules().validate(to.written(), r.Shape)
}

// written is a rate as it is written.
type written struct {
	text   string
	units  int64
	window string
	each   bool // of a leaky bucket: the window is its spacing, as String writes it
}

// written is what String writes.
func (r Rate) written() written {
	units, window := r.Written()
	return written{r.String(), units, window, r.Algorithm == LeakyBucket}
}

// Written are the units and the window that String writes: of a leaky bucket one, and its spacing, of a counter what it was made of.
func (r Rate) Written() (units int64, window string) {
	switch r.Algorithm {
	case LeakyBucket:
		return 1, Rate{Window: r.Window / time.Duration(max(r.Units, 1))}.Length()
	case SlidingWindowCounter:
		return r.Counted, r.Period
	}
	return r.Units, r.Length()
}

// rate is a sliding window's, or the spacing of a leaky bucket.
func (w written) rate() (Rate, error) {
	window, err := parseWindow(w.window)
	if each, not := time.ParseDuration(w.window); w.each && err != nil && not == nil && each >= minSpacing && each <= MaxWindow {
		window, err = each, nil
	}
	if err != nil {
		return Rate{}, fmt.Errorf("%q is not a rate: %w", w.text, err)
	}
	return Rate{Units: w.units, Window: window}, nil
}

// parseWindow reads a window such as 1h, 500ms or d.
func parseWindow(s string) (time.Duration, error) {
	n, name, err := splitWindow(s)
	unit := lengthOf(name)
	switch {
	case name == "mo":
		return 0, errMonths
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
// "10 per 1s, token bucket, burst 100", "10000 per 1d, fixed window, America/New_York", "1 per 100ms, leaky bucket",
// "1 per 10ms, leaky bucket, tolerance 50ms", "100 per 1s, sliding window counter".
func (r Rate) String() string {
	if r.Window == 0 && r.Algorithm == "" {
		return fmt.Sprintf("%d at once", r.Units)
	}
	t := r.Algorithm.Traits()
	units, window := r.Written()
	text := fmt.Sprintf("%d per %s, %s", units, window, t.Name.Words())
	if t.Burst {
		text += fmt.Sprintf(", burst %d", r.Burst)
	}
	if t.Timezone || r.Timezone != "" {
		text += ", " + cmp.Or(r.Timezone, "UTC")
	}
	if r.Tolerance > 0 {
		text += fmt.Sprintf(", tolerance %s", r.Tolerance)
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
func (r Rate) Most() int64 { return cmp.Or(r.Burst, r.Units) }

// Span is the window, or the period in which a token bucket's units come in. Waits are judged by it.
func (r Rate) Span() time.Duration { return r.Algorithm.rules().span(r) }

// Comparable reports whether one of the two rates may imply the other: both are so many at once, or of one algorithm,
// period and time zone.
func (r Rate) Comparable(other Rate) bool {
	return (r.Window == 0) == (other.Window == 0) && r.Algorithm == other.Algorithm && r.Period == other.Period && r.Timezone == other.Timezone
}

// AtLeast reports whether r lets through whatever other does, and keeps its charges for as long.
func (r Rate) AtLeast(other Rate) bool {
	return r.Units >= other.Units && r.Burst >= other.Burst && r.Comparable(other) && r.Span() == other.Span()
}
