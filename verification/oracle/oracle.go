// Package oracle judges a run of callq from outside: by what the API recorded, what the producers
// were told, and what the tables say in the end.
//
// It shares no code with what it judges. Its arithmetic is on whole nanoseconds of the API's clock,
// without slack or margin: a limit of n per W is kept if and only if no n+1 units arrive within less
// than W of each other, and one of n at once if and only if a request that arrives never finds more
// than n-1 units there that have not ended.
package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Request is one that arrived at the API.
type Request struct {
	At      time.Duration // on the API's clock, from any zero, as is End
	End     time.Duration // when the API had answered it, or saw its connection go; or Never
	Call    string        // its Callq-Call-Id
	Attempt string        // its Callq-Attempt
	Queue   string        // which the API was told by other means than callq's, as it was Key and Cost
	Key     string
	Cost    int
}

// Never is the end of a request that the API has not done with.
const Never = time.Duration(math.MaxInt64)

func (r Request) String() string {
	end := "never"
	if r.End != Never {
		end = fmt.Sprintf("%.6fs", r.End.Seconds())
	}
	return fmt.Sprintf("%12.6fs to %s call %s attempt %s queue %s key %q cost %d", r.At.Seconds(), end, r.Call, r.Attempt,
		r.Queue, r.Key, r.Cost)
}

// Limit allows Rate requests of its queues, taken together, in any (t-Window, t].
type Limit struct {
	Name   string
	Rate   int
	Window time.Duration // 0: Rate may be there at once
	PerKey bool          // that much to each key; calls without one have "" in common
	ByCost bool          // a request takes its cost, not 1
	Queues []string
}

// Finding is one way in which a rule did not hold.
type Finding struct {
	Rule     string
	Detail   string
	Requests []Request // that prove it
}

func (f Finding) String() string {
	text := f.Rule + ": " + f.Detail
	for _, r := range f.Requests {
		text += "\n\t" + r.String()
	}
	return text
}

const (
	ruleLimit  = "no window holds more than the rate"
	ruleAtOnce = "no more are there at once than may be"
	ruleOnce   = "an attempt sends at most one request"
)

// of returns the limit's requests in the order of their arrival, apart for each key that has a rate of
// its own.
func (l Limit) of(requests []Request) map[string][]Request {
	own := map[string][]Request{}
	for _, r := range requests {
		if !slices.Contains(l.Queues, r.Queue) {
			continue
		}
		key := ""
		if l.PerKey {
			key = r.Key
		}
		own[key] = append(own[key], r)
	}
	for _, of := range own {
		slices.SortStableFunc(of, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	}
	return own
}

func (l Limit) units(r Request) int {
	if l.ByCost {
		return r.Cost
	}
	return 1
}

// Over finds where more than the rate arrived, or was there at once.
func (l Limit) Over(requests []Request) []Finding {
	own := l.of(requests)
	over := l.overInWindow
	if l.Window == 0 {
		over = l.overAtOnce
	}
	var findings []Finding
	for _, key := range slices.Sorted(maps.Keys(own)) {
		name := "limit " + l.Name
		if l.PerKey {
			name += fmt.Sprintf(", key %q,", key)
		}
		findings = append(findings, over(name, own[key])...)
	}
	return findings
}

// overInWindow finds the windows that hold more than the rate, none of which share a request.
func (l Limit) overInWindow(name string, own []Request) []Finding {
	var findings []Finding
	for first := 0; first < len(own); first++ {
		last, sum := first-1, 0
		for last+1 < len(own) && own[last+1].At-own[first].At < l.Window {
			last++
			sum += l.units(own[last])
		}
		if sum <= l.Rate {
			continue
		}
		findings = append(findings, Finding{
			Rule: ruleLimit,
			Detail: fmt.Sprintf("%s allows %d in %s, and %d arrived within %s",
				name, l.Rate, l.Window, sum, own[last].At-own[first].At),
			Requests: own[first : last+1],
		})
		first = last
	}
	return findings
}

// overAtOnce finds the arrivals that made more than the rate be there, the first of each time that it
// was so.
func (l Limit) overAtOnce(name string, own []Request) []Finding {
	var findings []Finding
	var there []Request
	for over := false; len(own) > 0; own = own[1:] {
		there = slices.DeleteFunc(slices.Clone(there), func(r Request) bool { return r.End <= own[0].At })
		there = append(there, own[0])
		sum := 0
		for _, r := range there {
			sum += l.units(r)
		}
		if sum > l.Rate && !over {
			findings = append(findings, Finding{
				Rule: ruleAtOnce, Detail: fmt.Sprintf("%s allows %d at once, and %d were there", name, l.Rate, sum),
				Requests: there,
			})
		}
		over = sum > l.Rate
	}
	return findings
}

// Most is the most that arrived in any window, or was there at once, of one key where each has a rate.
func (l Limit) Most(requests []Request) int {
	most := 0
	for _, own := range l.of(requests) {
		for i, r := range own {
			n := 0
			for j, other := range own {
				counts := other.At <= r.At && r.At-other.At < l.Window
				if l.Window == 0 {
					counts = i == j || other.At <= r.At && r.At < other.End
				}
				if counts {
					n += l.units(other)
				}
			}
			most = max(most, n)
		}
	}
	return most
}

// Twice finds the attempts of which more than one request arrived.
func Twice(requests []Request) []Finding {
	type attempt struct{ call, attempt string }
	byAttempt := map[attempt][]Request{}
	var order []attempt
	for _, r := range requests {
		a := attempt{r.Call, r.Attempt}
		if byAttempt[a] == nil {
			order = append(order, a)
		}
		byAttempt[a] = append(byAttempt[a], r)
	}
	var findings []Finding
	for _, a := range order {
		if sent := byAttempt[a]; len(sent) > 1 {
			findings = append(findings, Finding{
				Rule: ruleOnce, Detail: fmt.Sprintf("%d requests arrived of call %s attempt %s", len(sent), a.call, a.attempt),
				Requests: sent,
			})
		}
	}
	return findings
}
