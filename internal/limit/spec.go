package limit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Spec is a limit as people write it: rates that hold at once, or a concurrency.
type Spec struct {
	Rates             []string
	Concurrency       int64
	Algorithm         Algorithm
	Burst             int64
	Timezone          string
	PerKey, ByCost    bool
	Overrides         map[string]string // keys that have another rate or concurrency
	Anchor            Anchor            // "": by the handler
	Slack, SendWithin time.Duration     // 0: the window's default
}

// Window is one rate of a limit, or its concurrency.
type Window struct {
	Suffix            string // follows the limit's name; "" for the shortest
	Rate              Rate
	Overrides         map[string]int64 // keys that have other units
	Slack, SendWithin time.Duration
}

// Mistake is why a Spec means nothing: the key in config.yaml, the item if the key has several, and what is allowed.
type Mistake struct{ Key, Item, Message, Allowed string }

// CheckRate reads a rate of an algorithm that is not known.
func CheckRate(text string) error {
	_, err := ParseRate(text)
	if _, calendar := Parse(text, FixedWindow, 0, ""); calendar == nil {
		return nil
	}
	return err
}

// CheckOverride reads a key's rate, or its calls at once.
func CheckOverride(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return CheckRate(text)
	case n < 1 || n > 1_000_000:
		return fmt.Errorf("%d is out of bounds", n)
	}
	return nil
}

// Windows makes windows of what the keys mean together, the shortest first. It leaves out rates and overrides that mean
// nothing by themselves: CheckRate and CheckOverride report those.
func (s Spec) Windows() (windows []Window, mistakes []Mistake) {
	if mistakes = s.conflict(); mistakes != nil {
		return nil, mistakes
	}
	if s.Concurrency > 0 {
		windows = []Window{{Rate: Rate{Units: s.Concurrency}}}
	}
	for _, text := range s.Rates {
		rate, err := Parse(text, s.Algorithm, s.Burst, s.Timezone)
		switch {
		case err == nil:
			windows = append(windows, Window{Rate: rate})
		case CheckRate(text) == nil:
			mistakes = append(mistakes, Mistake{"rate", text, err.Error(), ""})
		}
	}
	slices.SortStableFunc(windows, func(a, b Window) int { return cmp.Compare(a.Rate.Window, b.Rate.Window) })
	for i := range windows {
		w := &windows[i]
		w.Slack = cmp.Or(s.Slack, DefaultSlack(w.Rate.Span()))
		w.SendWithin = cmp.Or(s.SendWithin, DefaultSendWithin(w.Rate.Span()))
		if i > 0 {
			w.Suffix = "/" + w.Rate.length()
			if w.Rate.Window == windows[i-1].Rate.Window {
				mistakes = append(mistakes, Mistake{"rate", "", "has two rates of one window", "the smaller one"})
			}
		}
		mistakes = append(mistakes, s.override(w)...)
	}
	return windows, mistakes
}

// conflict is the first of the keys that do not go together.
func (s Spec) conflict() []Mistake {
	bucket, leaky := s.Algorithm == TokenBucket, s.Algorithm == LeakyBucket
	const both = "two limits, and queues that use both"
	for _, c := range []struct {
		holds                 bool
		key, message, allowed string
	}{
		{s.Concurrency > 0 && len(s.Rates) > 0, "concurrency", "is given beside rate", both},
		{s.Concurrency > 0 && s.Algorithm != SlidingWindow, "algorithm", string(s.Algorithm) + " applies to rates only", ""},
		{s.Concurrency > 0 && s.Anchor == AnchorStart, "anchor", "start applies to rates only: a call counts until it has ended", "finish"},
		{bucket && s.Burst == 0, "algorithm", "a token bucket needs a burst: what it holds", "burst: 1..1000000000"},
		{!bucket && s.Burst != 0, "burst", "applies to token buckets only", "algorithm: token_bucket"},
		{s.Algorithm != FixedWindow && s.Timezone != "", "timezone", "applies to fixed windows only", "algorithm: fixed_window"},
		{
			leaky && s.ByCost,
			"count", "a leaky bucket lets one through after another, whatever it costs", "algorithm: sliding_window or token_bucket",
		},
		{len(s.Rates) > 1 && (bucket || leaky), "rate", "a " + string(s.Algorithm) + " has one rate", both},
		{len(s.Overrides) > 0 && !s.PerKey, "overrides", "apply to limits per key only", "per: key"},
		{
			len(s.Overrides) > 0 && (bucket || leaky || len(s.Rates) > 1),
			"overrides", "apply to limits with one rate, of a sliding or a fixed window, or with a concurrency", "",
		},
	} {
		if c.holds {
			return []Mistake{{c.key, "", c.message, c.allowed}}
		}
	}
	return nil
}

// override gives keys their own units in a window.
func (s Spec) override(w *Window) (mistakes []Mistake) {
	const allowed = "a rate of the limit's window, or a whole number for a concurrency"
	for _, key := range slices.Sorted(maps.Keys(s.Overrides)) {
		text := s.Overrides[key]
		if CheckOverride(text) != nil {
			continue
		}
		units, err := s.units(text, w.Rate)
		if len(key) > 255 {
			err = errors.New("no call has a key of more than 255 bytes")
		}
		if err != nil {
			mistakes = append(mistakes, Mistake{"overrides", key, fmt.Sprintf("of key %.80q: %v", key, err), allowed})
			continue
		}
		if w.Overrides == nil {
			w.Overrides = map[string]int64{}
		}
		w.Overrides[key] = units
	}
	return mistakes
}

// units reads an override: the calls at once, or the units in the limit's window.
func (s Spec) units(text string, of Rate) (int64, error) {
	if s.Concurrency > 0 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			err = fmt.Errorf("%q is not a number of calls at once", text)
		}
		return n, err
	}
	rate, err := Parse(text, s.Algorithm, 0, s.Timezone)
	if err == nil && rate.Span() != of.Span() {
		err = fmt.Errorf("%q is of another window than the limit's, %s", text, of.length())
	}
	return rate.Units, err
}
