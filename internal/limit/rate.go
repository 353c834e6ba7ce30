package limit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of a Rate that ParseRate accepts.
const (
	MaxUnits  = 1_000_000_000_000
	MinWindow = 10 * time.Millisecond
	MaxWindow = 366 * 24 * time.Hour
)

// Rate allows at most Units in any window of length Window; where that is 0, Units at once. A Shape makes
// another algorithm of it.
type Rate struct {
	Units  int64
	Window time.Duration // for how long a unit counts after its until, at most
	Shape
}

// ParseRate reads a rate as people write it: 100/h, 5/s, 10/500ms, 1_000/d, 100 per 1h, and what
// String returns. Units of time are ms s m h d w; without a number they count once.
func ParseRate(s string) (Rate, error) {
	units, window, err := parseUnits(s, ", sliding window")
	if err != nil {
		return Rate{}, err
	}
	w, err := parseWindow(window)
	if err != nil {
		return Rate{}, fmt.Errorf("%q is not a rate: %w", s, err)
	}
	return Rate{Units: units, Window: w}, nil
}

// parseUnits reads a rate's units, and returns its window's text.
func parseUnits(s, suffix string) (n int64, window string, err error) {
	text := strings.TrimSpace(s)
	if text == "unlimited" {
		return 0, "", errors.New("unlimited needs no limit: leave it out of the queue's limits")
	}
	units, window, ok := strings.Cut(strings.TrimSuffix(text, suffix), "/")
	if !ok {
		if units, window, ok = strings.Cut(units, " per "); !ok {
			return 0, "", fmt.Errorf("%q is not a rate: write units/window, such as 100/1h", s)
		}
	}
	n, err = parseCount(strings.TrimSpace(units))
	switch {
	case err != nil:
		return 0, "", fmt.Errorf("%q is not a rate: its units must be a whole number", s)
	case n == 0:
		return 0, "", errors.New("a rate of 0 lets nothing through: pause the limit instead")
	case n > MaxUnits:
		return 0, "", fmt.Errorf("%q allows more than 1e12 units", s)
	}
	return n, strings.TrimSpace(window), nil
}

// String returns the one form in which rates are echoed: "100 per 1h, sliding window", "50 at once",
// "10 per 1s, token bucket, burst 100", "10000 per 1d, fixed window, America/New_York", "1 per 100ms, leaky bucket".
func (r Rate) String() string {
	switch {
	case r.Algorithm == TokenBucket:
		return fmt.Sprintf("%d per %s, token bucket, burst %d", r.Units, r.Period, r.Burst)
	case r.Algorithm == FixedWindow:
		return fmt.Sprintf("%d per %s, fixed window, %s", r.Units, r.Period, cmp.Or(r.Timezone, "UTC"))
	case r.Algorithm == LeakyBucket:
		return fmt.Sprintf("%d per %s, leaky bucket", r.Units, windowString(r.Window))
	case r.Window == 0:
		return fmt.Sprintf("%d at once", r.Units)
	}
	return fmt.Sprintf("%d per %s, sliding window", r.Units, windowString(r.Window))
}

// Counting is what of a limit the rate does not say.
type Counting struct {
	PerKey            bool
	Overrides         map[string]int64
	ByCost            bool
	Anchor            Anchor
	Slack, SendWithin time.Duration
}

// Describe is the rate with how it is counted, as the audit has it: verify holds versions against that.
func (r Rate) Describe(c Counting) string {
	text := r.String()
	if c.PerKey {
		text += ", per key"
	}
	for _, key := range slices.Sorted(maps.Keys(c.Overrides)) {
		text += fmt.Sprintf(", %s %d", key, c.Overrides[key])
	}
	if c.ByCost {
		text += ", by cost"
	}
	if c.Anchor != "" {
		text += ", anchor " + string(c.Anchor)
	}
	return text + fmt.Sprintf(", slack %s, send_within %s", c.Slack, c.SendWithin)
}

// DefaultSlack is how long a request may take to arrive after it was written: W/20, at least
// 500 ms, for TCP sends a segment that was lost again after 200 ms at the earliest, and at most 60 s.
func DefaultSlack(window time.Duration) time.Duration {
	return min(max(window/20, 500*time.Millisecond), time.Minute)
}

// DefaultSendWithin is how long a worker may take from asking for the start to writing the
// request: W/20, at least 100 ms and at most 5 s; 5 s for a concurrency limit, which does not need it.
func DefaultSendWithin(window time.Duration) time.Duration {
	if window == 0 {
		return 5 * time.Second
	}
	return min(max(window/20, 100*time.Millisecond), 5*time.Second)
}

// parseWindow reads a window such as 1h, 500ms or d.
func parseWindow(s string) (time.Duration, error) {
	number := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyz")
	name := s[len(number):]
	if name == "mo" {
		return 0, errors.New("mo needs algorithm: fixed_window")
	}
	unit, ok := timeUnit(name)
	if !ok {
		return 0, fmt.Errorf("its window %q must be one number and one of ms s m h d w", s)
	}
	n := int64(1)
	if number != "" {
		var err error
		if n, err = parseCount(number); err != nil {
			return 0, fmt.Errorf("its window %q must be one number and one of ms s m h d w", s)
		}
	}
	if n > int64(MaxWindow/unit) || time.Duration(n)*unit < MinWindow {
		return 0, fmt.Errorf("its window %q must be from 10ms to 366d", s)
	}
	return time.Duration(n) * unit, nil
}

// parseCount reads digits, with single underscores between them.
func parseCount(s string) (int64, error) {
	if strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") || strings.ContainsAny(s, "+-") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
}

func timeUnit(name string) (time.Duration, bool) {
	switch name {
	case "ms":
		return time.Millisecond, true
	case "s":
		return time.Second, true
	case "m":
		return time.Minute, true
	case "h":
		return time.Hour, true
	case "d":
		return 24 * time.Hour, true
	case "w":
		return 7 * 24 * time.Hour, true
	}
	return 0, false
}

// windowString writes a window in the largest unit that divides it: 90s stays 90s, 3600s is 1h.
func windowString(w time.Duration) string {
	for _, name := range []string{"w", "d", "h", "m", "s", "ms"} {
		if unit, _ := timeUnit(name); w >= unit && w%unit == 0 {
			return strconv.FormatInt(int64(w/unit), 10) + name
		}
	}
	return w.String()
}
