package budget

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/callq/callq/internal/limit"
)

// MaxBurst, and limit.MaxWindow as the longest time to fill an empty bucket, keep the scripts' arithmetic, in numbers of 53 bits, on
// the safe side.
const MaxBurst = 1_000_000_000

// Rule is what a budget allows: Rate.Units in each Rate.Window, by its algorithm.
type Rule struct {
	Rate  limit.Rate // its units and window alone
	Burst int64      // what a token bucket holds; of others 1
	Shape
	calendar limit.Calendar // of a fixed window, once it is checked
}

// Shape is what only some budgets have. The zero Shape is a token bucket that all keys share.
type Shape struct {
	Algorithm limit.Algorithm  `json:"algorithm,omitempty"` // "": a token bucket
	Period    string           `json:"period,omitempty"`    // a fixed window's length: 1d, 3mo
	Timezone  string           `json:"timezone,omitempty"`  // a fixed window's, by IANA's name; "": UTC
	PerKey    bool             `json:"per_key,omitempty"`   // each key has a budget of its own
	Overrides map[string]int64 `json:"overrides,omitempty"` // units of some keys, in the same window
}

// Parse reads a rate as it is written for a budget of this algorithm, and makes a rule of it.
func Parse(text string, algorithm limit.Algorithm, burst int64, timezone string) (Rule, error) {
	if algorithm == limit.TokenBucket { // the default; its rate is written as a window's, and its burst is the rule's
		algorithm = ""
	}
	rate, err := limit.Parse(text, algorithm, 0, timezone)
	return Rule{
		Rate: limit.Rate{Units: rate.Units, Window: rate.Window}, Burst: burst,
		Shape: Shape{Algorithm: algorithm, Period: rate.Period, Timezone: timezone},
	}, err
}

// The kinds of budget.lua. It keeps no other.
const token, sliding, fixed, unkept = "token", "sliding", "fixed", "unkept"

// Keeps reports whether budgets may have the algorithm.
func Keeps(a limit.Algorithm) bool {
	return a == limit.TokenBucket || (&Rule{Shape: Shape{Algorithm: a}}).kind() != unkept
}

// kind is how the scripts keep the algorithm. A token bucket's name is left empty.
func (r *Rule) kind() string {
	switch r.Algorithm {
	case "", limit.LeakyBucket:
		return token
	case limit.SlidingWindow:
		return sliding
	case limit.FixedWindow:
		return fixed
	}
	return unkept
}

// Check refuses what the scripts cannot keep.
func (r *Rule) Check() (err error) {
	switch r.kind() {
	case unkept:
		return fmt.Errorf("budgets have no algorithm %q", r.Algorithm)
	case fixed:
		if r.calendar, err = limit.ParseCalendar(r.Period, r.Timezone); err != nil {
			return err
		}
	}
	if err := r.check(r.Rate.Units); err != nil {
		return err
	}
	if len(r.Overrides) > 0 && (!r.PerKey || r.Algorithm.Traits().OneByOne) {
		return errors.New("overrides are of budgets per key, and not of leaky buckets")
	}
	for _, key := range slices.Sorted(maps.Keys(r.Overrides)) {
		if err := r.check(r.Overrides[key]); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
	}
	return nil
}

// check checks it with the units of one key.
func (r *Rule) check(units int64) error {
	switch {
	case units < 1 || units > limit.MaxUnits || r.Rate.Window < limit.MinWindow || r.Rate.Window > limit.MaxWindow:
		return errors.New("the rate must have 1 to 1e12 units and a window of 10ms to 366d")
	case r.Burst < 1 || r.Burst > MaxBurst || r.Burst > 1 && r.Algorithm != "":
		return fmt.Errorf("the burst must be 1 to %d, and is of token buckets only", MaxBurst)
	case r.Algorithm == "" && float64(r.Burst)*float64(r.Rate.Window) > float64(limit.MaxWindow)*float64(units):
		return errors.New("a burst would take longer than 366d to come back")
	}
	return nil
}

// most is what a budget of so many units gives out at once.
func (r *Rule) most(units int64) int64 {
	if r.kind() == token {
		return r.Burst
	}
	return units
}

func (r *Rule) unitsOf(key string) int64 {
	if units, own := r.Overrides[key]; own {
		return units
	}
	return r.Rate.Units
}

// Most is what one draw of a key may take, at most.
func (r *Rule) Most(key string) int64 { return r.most(r.unitsOf(key)) }

// backIn is how long it takes at the least until the units that a budget lacks, because it has promised them, come back: they are
// drawn now, if ever. What is drawn later, the next look finds.
func (r *Rule) backIn(now time.Time, u Units, s *State) time.Duration {
	lacks, units := u.N+s.Promised-s.Free, r.unitsOf(u.Key)
	switch kind := r.kind(); {
	case lacks <= 0:
	case kind == token:
		return time.Duration(float64(lacks) * float64(r.Rate.Window) / float64(units))
	case kind == fixed:
		return r.calendar.End(now).Sub(now)
	case u.N+s.Promised > units:
		return r.Rate.Window
	}
	return 0
}

// LeastMost is the least that one draw of whatever key may take, at most.
func (r *Rule) LeastMost() int64 {
	least := r.Most("")
	for key := range r.Overrides {
		least = min(least, r.Most(key))
	}
	return least
}

// String is "100 per 1s, burst 20", or "500 per 1m, sliding window, per key".
func (r *Rule) String() string {
	text := r.RateText()
	if r.Algorithm == "" {
		text += fmt.Sprintf(", burst %d", r.Burst)
	} else {
		text += ", " + r.Algorithm.Words()
	}
	if r.Timezone != "" {
		text += ", " + r.Timezone
	}
	if r.PerKey {
		text += ", per key"
	}
	for _, key := range slices.Sorted(maps.Keys(r.Overrides)) {
		text += fmt.Sprintf(", %s %d", key, r.Overrides[key])
	}
	return text
}

// RateText is "100 per 1s".
func (r *Rule) RateText() string {
	rate := r.Rate
	rate.Period = r.Period
	units, window := rate.Written()
	return fmt.Sprintf("%d per %s", units, window)
}

// args adds what budget.lua takes of a key. near is where the windows of a calendar are sought.
func (r *Rule) args(to []any, key string, near time.Time) []any {
	units, window := r.unitsOf(key), r.Rate.Window.Microseconds()
	switch kind := r.kind(); kind {
	case sliding:
		width := limit.Rate{Units: units, Window: r.Rate.Window}.Bucket().Microseconds()
		return append(to, kind, units, window, width)
	case fixed:
		var edges strings.Builder
		edge := r.calendar.Start(r.calendar.Start(near).Add(-time.Microsecond)) // the API's clock, and Redis's, may be behind
		for range 5 {
			edges.WriteString(strconv.FormatInt(edge.UnixMicro(), 10) + " ")
			edge = r.calendar.End(edge)
		}
		return append(to, kind, units, window, edges.String())
	}
	return append(to, token, units, window, r.Burst)
}
