package advise

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/words"
)

// propose returns the limit that the model never refuses.
func (f fit) propose(l Limit, held held) (Proposal, limit.Rate) {
	var best Proposal
	var rate limit.Rate
	for _, w := range f.writes(l) {
		r, err := limit.Parse(w.rate, w.algorithm, w.burst, w.timezone)
		if err != nil { // a bound of rates: the next is a safer one
			continue
		}
		if share := share(r, held, f.rate()); best.Share == nil || share > *best.Share {
			best, rate = propose(l, r, w, share, f.rate()), r
		}
	}
	return best, rate
}

// line is a limit as it is written.
type line struct {
	rate      string
	algorithm limit.Algorithm
	burst     int64
	timezone  string
	tolerance time.Duration
}

// writes are the limits that never exceed the model.
func (f fit) writes(l Limit) []line {
	n, w := int64(f.capacity), f.window
	window := func(n int64, w time.Duration) line { return line{rate: per(n, w), algorithm: limit.SlidingWindow} }
	switch f.kind {
	case spacing:
		if f.proper && w >= limit.MinWindow {
			return []line{{rate: own(l.Rate), algorithm: limit.LeakyBucket}}
		}
		whole := (w + time.Millisecond - 1).Truncate(time.Millisecond)
		return []line{{rate: per(1, max(whole, limit.MinWindow)), algorithm: limit.LeakyBucket}}
	case bucket:
		return []line{{rate: f.fills(l), algorithm: limit.TokenBucket, burst: n}}
	case clock:
		if f.phase == 0 && w >= time.Minute {
			if fixed := (line{rate: per(n, w), algorithm: limit.FixedWindow}); valid(fixed) {
				return []line{fixed}
			}
		}
	case log:
		// Its windows are those that callq keeps. What was refused all the same came by jitter.
		if l.Rate.Algorithm == "" && n >= l.Rate.Units && w <= l.Rate.Span() {
			return []line{window(n, w+w/10)}
		}
	case estimate, rolling:
		if counter, is := f.evenly(l); is {
			return []line{counter}
		}
		// Any window has at most 4 of the short spans, and an estimate counts parts of 5.
		all := []line{window(max(1, n/2), w)}
		if short := window(n/5, w/4); n >= 5 && valid(short) {
			all = append(all, short)
		}
		return all
	case elastic:
		return []line{window(n, 2*w)}
	}
	return []line{window(n, w)}
}

// evenly writes the limit of an estimate. It has none where it would be too fast, nor if calls take their cost. APIs that round their
// estimate let one more through than they mean to, now and then.
func (f fit) evenly(l Limit) (w line, is bool) {
	n := int64(f.capacity)
	if !f.proper {
		n = max(1, n-1)
	}
	w = line{rate: per(n, f.window), algorithm: limit.SlidingWindowCounter}
	return w, (f.kind == estimate || f.kind == rolling) && !l.CountCost && valid(w)
}

func valid(w line) bool {
	_, err := limit.Parse(w.rate, w.algorithm, w.burst, w.timezone)
	return err == nil
}

// fills writes what comes into a bucket: in a second, or in the shortest time that fills whole units.
func (f fit) fills(l Limit) string {
	if f.proper {
		return own(l.Rate)
	}
	for _, period := range []time.Duration{time.Second, time.Minute, time.Hour} {
		if n := f.rate() * period.Seconds(); n >= 10 || math.Abs(n-math.Round(n)) < 1e-6 && n >= 1 {
			return per(int64(n+1e-6), period)
		}
	}
	return per(1, f.window)
}

// own writes a limit's rate.
func own(r limit.Rate) string {
	units, window := r.Written()
	return fmt.Sprintf("%d/%s", units, shorter(window))
}

func per(n int64, w time.Duration) string {
	return fmt.Sprintf("%d/%s", n, shorter(limit.Rate{Window: w.Truncate(time.Millisecond)}.Length()))
}

// shorter leaves out a 1: s for 1s.
func shorter(window string) string {
	if len(window) > 1 && window[0] == '1' && (window[1] < '0' || window[1] > '9') {
		return window[1:]
	}
	return window
}

// written is a limit in force as it is written.
func written(r limit.Rate) line {
	w := line{rate: own(r), algorithm: r.Algorithm.Traits().Name, burst: r.Burst, tolerance: r.Tolerance}
	if r.Algorithm.Traits().Timezone {
		w.timezone = r.Timezone
	}
	return w
}

// propose describes a limit.
func propose(l Limit, r limit.Rate, w line, share, rate float64) Proposal {
	text := fmt.Sprintf("%s: {rate: %s, algorithm: %s", strings.ReplaceAll(l.Name, "/", "-"), w.rate, w.algorithm)
	p := Proposal{Algorithm: new(string(w.algorithm)), Rate: &w.rate, Share: new(math.Round(share*100) / 100)}
	p.PerSecond = new(math.Round(share*rate*1e6) / 1e6)
	if w.burst > 0 {
		p.Burst = &w.burst
		text += fmt.Sprintf(", burst: %d", w.burst)
	}
	if w.algorithm.Traits().OneByOne {
		p.Spacing = new((r.Window / time.Duration(r.Units)).String())
	}
	if w.tolerance > 0 {
		text += ", tolerance: " + w.tolerance.String()
	}
	if w.timezone != "" {
		text += ", timezone: " + w.timezone
	}
	if l.PerKey {
		text += ", per: key"
	}
	if l.CountCost {
		text += ", count: cost"
	}
	p.Config = new(text + "}")
	return p
}

// turn is about what callq takes from an answer until a call starts that waited for its units.
const turn = 60 * time.Millisecond

// share is the part of the API's rate that callq can use: calls hold their units until their requests have arrived, and the units
// come back a window later.
func share(r limit.Rate, held held, rate float64) float64 {
	units, window, way, hold := float64(r.Units), r.Span(), turn, held.claim
	each := window / time.Duration(r.Units) // of a bucket: what comes in meanwhile is used, too
	if r.Gap(r.Most()) > 0 {                // calls go in runs: only the first waits for the way
		way, each, hold = 0, each*time.Duration(max(r.Burst, 1)), held.start
	}
	used := units / (hold + max(window, way)).Seconds()
	switch r.Algorithm {
	case limit.TokenBucket:
		used = min(units/window.Seconds(), float64(r.Burst)/(hold+max(each, way)).Seconds())
	case limit.FixedWindow:
		used = units / window.Seconds()
	}
	return min(1, used/rate)
}

// words names the limiter.
func (f fit) inWords() string {
	n, w := fmt.Sprint(f.capacity), inWords(f.window)
	switch f.kind {
	case spacing:
		return "one each " + w
	case bucket:
		return fmt.Sprintf("a bucket of %s that fills by one each %s", n, w)
	case first:
		return n + " in windows of " + w + " from the first request"
	case clock:
		return n + " in windows of " + w + " of a clock"
	case log:
		return n + " in any " + w + ", refused ones counted"
	case estimate, rolling:
		return n + " in " + w + ", estimated from two windows"
	case elastic:
		return n + " until nothing comes for " + w
	}
	return n + " in any " + w
}

// refuses names the requests that the limiter refuses.
func (f fit) refuses() string {
	n, w := fmt.Sprint(f.capacity), inWords(f.window)
	switch f.kind {
	case spacing:
		return "within " + w + " of another that was let through"
	case bucket:
		return fmt.Sprintf("beyond a burst of %s that fills by one each %s", n, w)
	case first:
		return fmt.Sprintf("beyond %s in windows of %s that begin with a request", n, w)
	case clock:
		return fmt.Sprintf("beyond %s in windows of %s of a clock", n, w)
	case log:
		return fmt.Sprintf("beyond %s within %s, refused ones counted", n, w)
	case estimate:
		return fmt.Sprintf("beyond %s within %s, by an estimate that takes the former window for even", n, w)
	case rolling:
		return fmt.Sprintf("beyond %s within %s, by an estimate that takes the former window for even and counts refused ones", n, w)
	case elastic:
		return fmt.Sprintf("beyond %s before nothing came for %s", n, w)
	}
	return fmt.Sprintf("beyond %s within %s", n, w)
}

// restsOn is what the advice assumes.
func (f fit) restsOn(l Limit, requests []Request, held held, blur time.Duration) []string {
	all := []string{seen(requests) + ", at times known to " + inWords(blur)}
	if f.proper {
		all = append(all, "the API's rate is that of the limit in force")
	} else {
		all = append(all, fmt.Sprintf("the API's rate is what it let through, %.4g a second, not that of the limit in force", f.rate()))
	}
	if l.OwnRate {
		all = append(all, "the requests are of a key that has units of its own (overrides); the line is for all keys")
	}
	if strings.Contains(l.Name, "/") {
		all = append(all, "the limit is one of a list of rates: write the line as a limit of its own, which its queues name, too")
	}
	switch f.kind {
	case estimate, rolling:
		why := "a shorter window, or half the rate, always stays below the API's estimate"
		if _, is := f.evenly(l); is {
			why = "where the API's windows begin is not known: calls go evenly, as often as no estimate exceeds"
		}
		all = append(all, why)
	case elastic:
		all = append(all, "calls come in bursts, with a pause of the API's window between them: its count never ends while some trickle in")
	}
	return append(all, holds(held))
}

func seen(requests []Request) string {
	begin, end := requests[0].Earliest, requests[0].Earliest
	for _, r := range requests {
		if r.Earliest.Before(begin) {
			begin = r.Earliest
		}
		if r.Earliest.After(end) {
			end = r.Earliest
		}
	}
	return fmt.Sprintf("%s within %s, up to %s", words.Count(int64(len(requests)), "request"), inWords(end.Sub(begin)), end.UTC().Format("2006-01-02 15:04:05Z"))
}

func holds(held held) string {
	return "a call holds its units for " + inWords(held.claim) + " before they begin to come free"
}
