// Package oracle judges a run of callq from outside: by what the API recorded, what the producers
// were told, and what the tables say in the end.
//
// It shares no code with what it judges. Its arithmetic is on whole nanoseconds of the API's clock,
// without slack or margin: a limit of n per W is kept if and only if no n+1 arrivals lie within less
// than W of each other.
package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Request is one that arrived at the API.
type Request struct {
	At      time.Duration // on the API's clock, from any zero
	Call    string        // its Callq-Call-Id
	Attempt string        // its Callq-Attempt
	Queue   string        // which the API was told by other means than callq's
}

func (r Request) String() string {
	return fmt.Sprintf("%12.6fs call %s attempt %s queue %s", r.At.Seconds(), r.Call, r.Attempt, r.Queue)
}

// Limit allows Rate requests of its queues, taken together, in any (t-Window, t].
type Limit struct {
	Name   string
	Rate   int
	Window time.Duration
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
	ruleLimit = "no window holds more than the rate"
	ruleOnce  = "an attempt sends at most one request"
)

// of returns the limit's requests in the order of their arrival.
func (l Limit) of(requests []Request) []Request {
	var own []Request
	for _, r := range requests {
		if slices.Contains(l.Queues, r.Queue) {
			own = append(own, r)
		}
	}
	slices.SortStableFunc(own, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return own
}

// Over finds the windows that hold more than the rate, none of which share a request.
func (l Limit) Over(requests []Request) []Finding {
	own := l.of(requests)
	var findings []Finding
	for first := 0; first+l.Rate < len(own); first++ {
		within := own[first+l.Rate].At - own[first].At
		if within >= l.Window {
			continue
		}
		last := first + l.Rate
		for last+1 < len(own) && own[last+1].At-own[first].At < l.Window {
			last++
		}
		findings = append(findings, Finding{
			Rule: ruleLimit,
			Detail: fmt.Sprintf("limit %s allows %d in %s, and %d arrived within %s",
				l.Name, l.Rate, l.Window, last-first+1, own[last].At-own[first].At),
			Requests: own[first : last+1],
		})
		first = last
	}
	return findings
}

// Most is the most that arrived in any window.
func (l Limit) Most(requests []Request) int {
	own := l.of(requests)
	most := 0
	for end := range own {
		n := 0
		for i := end; i >= 0 && own[end].At-own[i].At < l.Window; i-- {
			n++
		}
		most = max(most, n)
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
