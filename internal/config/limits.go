package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/callq/callq/internal/limit"
)

// check makes windows of what a limit's keys mean together. Rates and overrides that mean nothing by themselves are reported
// already, and left out.
func (x *Limit) check(s section) {
	s.require("rate", "concurrency")
	if s.given("burst") && x.Burst == 0 || x.conflict(s) {
		return // that was reported
	}
	if x.Concurrency > 0 {
		x.Windows = []Window{{Rate: limit.Rate{Units: int64(x.Concurrency)}}}
	}
	for _, text := range x.Rate {
		rate, err := limit.Parse(text, limit.Algorithm(x.Algorithm), int64(x.Burst), x.Timezone)
		if err != nil {
			s.refuse("rate", text, err.Error(), "")
			continue
		}
		x.Windows = append(x.Windows, Window{Rate: rate})
	}
	slices.SortStableFunc(x.Windows, func(a, b Window) int { return cmp.Compare(a.Rate.Window, b.Rate.Window) })
	x.Rate = nil
	for i := range x.Windows {
		w := &x.Windows[i]
		if i > 0 {
			w.Suffix = "/" + w.Rate.Length()
			if w.Rate.Window == x.Windows[i-1].Rate.Window {
				s.refuse("rate", "", "has two rates of one window", "the smaller one")
			}
		}
		if x.Concurrency == 0 {
			x.Rate = append(x.Rate, w.Rate.String())
		}
		w.Overrides = x.overridesIn(s, w.Rate)
	}
}

// conflict reports the first of the keys that do not go together.
func (x *Limit) conflict(s section) bool {
	algorithm := limit.Algorithm(x.Algorithm)
	bucket, leaky := algorithm == limit.TokenBucket, algorithm == limit.LeakyBucket
	const both = "two limits, and queues that use both"
	for _, c := range []struct {
		holds                 bool
		key, message, allowed string
	}{
		{x.Concurrency > 0 && len(x.Rate) > 0, "concurrency", "is given beside rate", both},
		{x.Concurrency > 0 && algorithm != limit.SlidingWindow, "algorithm", x.Algorithm + " applies to rates only", ""},
		{
			x.Concurrency > 0 && x.Anchor == limit.AnchorStart,
			"anchor", "start applies to rates only: a call counts until it has ended", "finish",
		},
		{bucket && x.Burst == 0, "algorithm", "a token bucket needs a burst: what it holds", "burst: 1..1000000000"},
		{!bucket && x.Burst != 0, "burst", "applies to token buckets only", "algorithm: token_bucket"},
		{algorithm != limit.FixedWindow && x.Timezone != "", "timezone", "applies to fixed windows only", "algorithm: fixed_window"},
		{
			leaky && x.Count != "",
			"count", "a leaky bucket lets one through after another, whatever it costs", "algorithm: sliding_window or token_bucket",
		},
		{len(x.Rate) > 1 && (bucket || leaky), "rate", "a " + x.Algorithm + " has one rate", both},
		{len(x.Overrides) > 0 && x.Per == "", "overrides", "apply to limits per key only", "per: key"},
		{
			len(x.Overrides) > 0 && (bucket || leaky || len(x.Rate) > 1),
			"overrides", "apply to limits with one rate, of a sliding or a fixed window, or with a concurrency", "",
		},
	} {
		if c.holds {
			s.refuse(c.key, "", c.message, c.allowed)
			return true
		}
	}
	return false
}

// overridesIn are the units that some keys have of a rate's window.
func (x *Limit) overridesIn(s section, of limit.Rate) map[string]int64 {
	var own map[string]int64
	for _, key := range slices.Sorted(maps.Keys(x.Overrides)) {
		units, err := x.units(x.Overrides[key], of)
		if len(key) > 255 {
			err = errors.New("no call has a key of more than 255 bytes")
		}
		if err != nil {
			const allowed = "a rate of the limit's window, or a whole number for a concurrency"
			s.refuse("overrides", key, fmt.Sprintf("of key %.80q: %v", key, err), allowed)
			continue
		}
		if own == nil {
			own = map[string]int64{}
		}
		own[key] = units
	}
	return own
}

// units reads an override: the calls at once, or the units in the limit's window.
func (x *Limit) units(text string, of limit.Rate) (int64, error) {
	if x.Concurrency > 0 {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, unless(err == nil, text, "is not a number of calls at once")
	}
	rate, err := limit.Parse(text, limit.Algorithm(x.Algorithm), 0, x.Timezone)
	if err == nil && rate.Span() != of.Span() {
		err = fmt.Errorf("%q is of another window than the limit's, %s", text, of.Length())
	}
	return rate.Units, err
}
