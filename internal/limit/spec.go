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
	Anchor            Anchor            // empty: by the handler
	Slack, SendWithin time.Duration     // 0: the window's default
}

// Window is one rate of a limit, or its concurrency.
type Window struct {
	Suffix            string // follows the limit's name; empty for the shortest
	Rate              Rate
	Overrides         map[string]int64 // keys that have other units
	Slack, SendWithin time.Duration
}

// Mistake is why a Spec means nothing: the key in config.yaml, and where that has several the item.
type Mistake struct{ Key, Item, Message, Allowed string }

// CheckRate reads a rate whose algorithm is not known.
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

// Windows makes windows of what the keys mean together, the shortest first. Rates and overrides that
// mean nothing by themselves are left out: CheckRate and CheckOverride report those.
func (s Spec) Windows() ([]Window, []Mistake) {
	if m, ok := s.conflict(); ok {
		return nil, []Mistake{m}
	}
	var windows []Window
	var mistakes []Mistake
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
			w.Suffix = "/" + w.Rate.Length()
		}
		if i > 0 && w.Rate.Window == windows[i-1].Rate.Window {
			mistakes = append(mistakes, Mistake{"rate", "", "has two rates of one window", "the smaller one"})
		}
		mistakes = append(mistakes, s.override(w)...)
	}
	return windows, mistakes
}

// conflict is the first of keys that do not go together.
func (s Spec) conflict() (Mistake, bool) {
	bucket, leaky := s.Algorithm == TokenBucket, s.Algorithm == LeakyBucket
	const both = "two limits, and queues that use both"
	for _, c := range []struct {
		holds bool
		Mistake
	}{
		{s.Concurrency > 0 && len(s.Rates) > 0, Mistake{"concurrency", "", "is given beside rate", both}},
		{s.Concurrency > 0 && s.Algorithm != SlidingWindow, Mistake{"algorithm", "", string(s.Algorithm) + " applies to rates only", ""}},
		{s.Concurrency > 0 && s.Anchor == AnchorStart, Mistake{"anchor", "", "start applies to rates only: a call counts until it has ended", "finish"}},
		{bucket && s.Burst == 0, Mistake{"algorithm", "", "a token bucket needs a burst: what it holds", "burst: 1..1000000000"}},
		{!bucket && s.Burst != 0, Mistake{"burst", "", "applies to token buckets only", "algorithm: token_bucket"}},
		{s.Algorithm != FixedWindow && s.Timezone != "", Mistake{"timezone", "", "applies to fixed windows only", "algorithm: fixed_window"}},
		{leaky && s.ByCost, Mistake{"count", "", "a leaky bucket lets one through after another, whatever it costs", "algorithm: sliding_window or token_bucket"}},
		{len(s.Rates) > 1 && (bucket || leaky), Mistake{"rate", "", "a " + string(s.Algorithm) + " has one rate", both}},
		{len(s.Overrides) > 0 && !s.PerKey, Mistake{"overrides", "", "apply to limits per key only", "per: key"}},
		{
			len(s.Overrides) > 0 && (bucket || leaky || len(s.Rates) > 1),
			Mistake{"overrides", "", "apply to limits with one rate, of a sliding or a fixed window, or with a concurrency", ""},
		},
	} {
		if c.holds {
			return c.Mistake, true
		}
	}
	return Mistake{}, false
}

// override gives keys their own units in a window.
func (s Spec) override(w *Window) (mistakes []Mistake) {
	for _, key := range slices.Sorted(maps.Keys(s.Overrides)) {
		text := s.Overrides[key]
		if CheckOverride(text) != nil {
			continue
		}
		units, err := s.units(text, w)
		if len(key) > 255 {
			err = errors.New("no call has a key of more than 255 bytes")
		}
		if err != nil {
			mistakes = append(mistakes, Mistake{
				"overrides", key, fmt.Sprintf("of key %.80q: %v", key, err), "a rate of the limit's window, or a whole number for a concurrency",
			})
			continue
		}
		if w.Overrides == nil {
			w.Overrides = map[string]int64{}
		}
		w.Overrides[key] = units
	}
	return mistakes
}

// units reads the calls at once of an override, or its units in the window that the limit has.
func (s Spec) units(text string, w *Window) (int64, error) {
	if s.Concurrency > 0 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is not a number of calls at once", text)
		}
		return n, nil
	}
	rate, err := Parse(text, s.Algorithm, 0, s.Timezone)
	if err == nil && rate.Span() != w.Rate.Span() {
		err = fmt.Errorf("%q is of another window than the limit's, %s", text, w.Rate.Length())
	}
	return rate.Units, err
}
