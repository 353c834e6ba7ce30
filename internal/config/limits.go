package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/callq/callq/internal/limit"
)

// checkRate reads a rate by itself: what its algorithm makes of it is seen once that is known.
func checkRate(text string) error {
	_, err := limit.ParseRate(text)
	if err == nil {
		return nil
	}
	if _, other := limit.Parse(text, limit.FixedWindow, 0, ""); other == nil {
		return nil
	}
	return err
}

// checkOverride reads a key's rate, or its calls at once.
func checkOverride(text string) error {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		if n < 1 || n > 1_000_000 {
			return fmt.Errorf("%s is out of bounds", Quote(text))
		}
		return nil
	}
	return checkRate(text)
}

func checkZone(text string) error {
	_, err := limit.ParseCalendar("1d", text)
	if err != nil {
		return fault{err.Error(), "an IANA name such as Europe/Berlin or America/New_York; UTC"}
	}
	return nil
}

// resolveLimit makes windows of what a limit's keys say together, and refuses what does not go together.
func (l *loader) resolveLimit(path string, lim *Limit) {
	algorithm := limit.Algorithm(lim.Algorithm)
	refuse := func(key, message, allowed string) { l.fail(l.from[path+"."+key], path+"."+key, message, allowed) }
	bucket, before := algorithm == limit.TokenBucket, len(l.problems)
	switch {
	case lim.Concurrency > 0 && len(lim.Rate) > 0:
		l.fail(l.from[path+".concurrency"], path, "has both a rate and a concurrency", "two limits, and queues that use both")
	case lim.Concurrency > 0 && algorithm != limit.SlidingWindow:
		refuse("algorithm", lim.Algorithm+" is of rates only", "")
	case bucket && lim.Burst == 0 && l.from[path+".burst"].rank == rankDefault:
		refuse("algorithm", "a token bucket has a burst: what it holds", "burst: 1..1000000000")
	case !bucket && lim.Burst != 0:
		refuse("burst", "is of token buckets only", "algorithm: token_bucket")
	case algorithm != limit.FixedWindow && lim.Timezone != "":
		refuse("timezone", "is of fixed windows only", "algorithm: fixed_window")
	case algorithm == limit.LeakyBucket && lim.Count != "":
		refuse("count", "a leaky bucket lets one through after another, whatever it costs", "algorithm: sliding_window or token_bucket")
	case len(lim.Rate) > 1 && (bucket || algorithm == limit.LeakyBucket):
		refuse("rate", "a "+lim.Algorithm+" has one rate", "two limits, and queues that use both")
	case len(lim.Overrides) > 0 && lim.Per == "":
		refuse("overrides", "are of limits per key only", "per: key")
	case len(lim.Overrides) > 0 && (bucket || algorithm == limit.LeakyBucket || len(lim.Rate) > 1):
		refuse("overrides", "are of limits with one rate, of a sliding or a fixed window, or of a concurrency", "")
	}
	if len(l.problems) > before {
		return
	}
	if lim.Concurrency > 0 {
		if lim.Anchor != "" && lim.Anchor != limit.AnchorFinish {
			refuse("anchor", string(lim.Anchor)+" is of rates only: a call counts until it has ended", "finish")
		}
		lim.Anchor = limit.AnchorFinish
		lim.Windows = []Window{{Rate: limit.Rate{Units: int64(lim.Concurrency)}}}
	}
	for i, text := range lim.Rate {
		if checkRate(text) != nil || bucket && lim.Burst == 0 { // that was said
			continue
		}
		rate, err := limit.Parse(text, algorithm, int64(lim.Burst), lim.Timezone)
		if err != nil {
			l.fail(l.itemSource(path+".rate", i), path+".rate", err.Error(), "")
			continue
		}
		lim.Windows = append(lim.Windows, Window{Rate: rate})
	}
	l.nameWindows(path, lim)
	for i := range lim.Windows {
		w := &lim.Windows[i]
		l.resolveOverrides(path+".overrides", lim, w)
		w.Slack = cmp.Or(lim.Slack, limit.DefaultSlack(w.Rate.Span()))
		w.SendWithin = cmp.Or(lim.SendWithin, limit.DefaultSendWithin(w.Rate.Span()))
	}
	if len(lim.Windows) > 0 {
		lim.Slack, lim.SendWithin = lim.Windows[0].Slack, lim.Windows[0].SendWithin
	}
}

// nameWindows orders the windows: the shortest has the limit's name, the others their length behind it.
func (l *loader) nameWindows(path string, lim *Limit) {
	slices.SortStableFunc(lim.Windows, func(a, b Window) int { return cmp.Compare(a.Rate.Window, b.Rate.Window) })
	for i := range lim.Windows {
		if i == 0 {
			continue
		}
		if lim.Windows[i].Rate.Window == lim.Windows[i-1].Rate.Window {
			l.fail(l.from[path+".rate"], path+".rate", "has two rates of one window", "the smaller one")
		}
		lim.Windows[i].Suffix = "/" + lim.Windows[i].Rate.Length()
	}
}

func (l *loader) resolveOverrides(path string, lim *Limit, w *Window) {
	for _, key := range slices.Sorted(maps.Keys(lim.Overrides)) {
		text, at := lim.Overrides[key], l.from[join(path, key)]
		if at.rank == rankDefault || l.from[path].rank > at.rank {
			at = l.from[path]
		}
		if len(key) > 255 {
			l.fail(at, path, "has a key of more than 255 bytes, and no call has one", "")
			continue
		}
		units, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			err = fmt.Errorf("%s is no number of calls at once", Quote(text))
		}
		if own := (limit.Rate{}); lim.Concurrency == 0 {
			own, err = limit.Parse(text, limit.Algorithm(lim.Algorithm), 0, lim.Timezone)
			if units = own.Units; err == nil && own.Span() != w.Rate.Span() {
				err = fmt.Errorf("%s is of another window than the limit's, %s", Quote(text), w.Rate.Length())
			}
		}
		if err != nil {
			l.fail(at, path, "of key "+Quote(key)+": "+err.Error(), "a rate of the limit's window, or of a concurrency a whole number")
			continue
		}
		if w.Overrides == nil {
			w.Overrides = map[string]int64{}
		}
		w.Overrides[key] = units
	}
}
