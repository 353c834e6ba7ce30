package dispatcher

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
)

// What holds while live processes publish different rules: of each limit the stricter. It is pure,
// and in what order the processes came decides about queues' settings alone.

// Published is what a live process publishes.
type Published struct {
	By    string    // host/pid
	Since time.Time // when it began to
	Rules Rules
}

// ConflictError says that two processes publish a limit of one name of which neither is the
// stricter: so many in a window, and so many at once, or in windows of other kinds.
type ConflictError struct {
	Limit string
	By    [2]string
	Rate  [2]limit.Rate
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("limit %q is %s to %s and %s to %s, of which neither is the stricter; give one of them "+
		"another name, and both hold, or end the other process first (one that was killed counts for up to %s)",
		e.Limit, e.Rate[0], e.By[0], e.Rate[1], e.By[1], forgetAfter)
}

// inForce are the rules that hold.
type inForce struct {
	Rules
	// mostCost is, by limit, what a call may cost under the widest of the rules that it was made of:
	// what no process would ever let through may fail, what another would let through waits.
	mostCost      map[string]int64
	mostOverrides map[string]map[string]int64 // the same of keys that have another rate
}

// stricter is what holds of rules that are published together. Where it is kept each of them is
// kept: a limit or queue that one of them has is there, a queue uses all limits that any gives it and
// is open only within the hours of all, and each limit is the strictest in every respect. How a queue
// retries is no matter of more or less: the newest process says it. all are in the order in which they came.
func stricter(all []Published) (inForce, error) {
	limits, queues := map[string][]LimitRule{}, map[string]QueueRule{}
	by := map[string]string{} // limit to the first that publishes it
	for _, p := range all {
		for _, l := range p.Rules.Limits {
			if others := limits[l.Name]; len(others) > 0 && !others[0].Rate.Comparable(l.Rate) {
				return inForce{}, &ConflictError{Limit: l.Name, By: [2]string{by[l.Name], p.By}, Rate: [2]limit.Rate{others[0].Rate, l.Rate}}
			} else if len(others) == 0 {
				by[l.Name] = p.By
			}
			limits[l.Name] = append(limits[l.Name], l)
		}
		for _, q := range p.Rules.Queues {
			q.Limits = union(q.Limits, queues[q.Name].Limits)
			q.Hours = union(q.Hours, queues[q.Name].Hours)
			queues[q.Name] = q
		}
	}
	h := inForce{mostCost: map[string]int64{}}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		l, mostCost := strictest(limits[name])
		var most map[string]int64
		if l.Overrides, most = strictestOverrides(limits[name], l); most != nil {
			if h.mostOverrides == nil {
				h.mostOverrides = map[string]map[string]int64{}
			}
			h.mostOverrides[name] = most
		}
		h.Limits = append(h.Limits, l)
		h.mostCost[name] = mostCost
	}
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		h.Queues = append(h.Queues, queues[name])
	}
	h.Budgets = strictestBudgets(all)
	return h, nil
}

// union is what either list has, in order, each once.
func union(a, b []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}

// strictest is the limit that implies each of these, all windows or all concurrency, and the most
// that a call may cost under the widest of them.
//
// Of 1 per 1s and 100 per 1m it is 1 per 1m, though 1 per 1s would imply the other: what had been used
// of the minute before that held must be counted too.
//
// In all before to each key: what keeps to a rate in all does so with each key. Cost before calls: a
// call costs 1 at least. The longer slack, for until = started_at + send_within + slack must not be
// too early for whoever says how long a request may travel. But the shorter send_within: it is
// no guess at what others do, the gate enforces it, and an attempt is counted by the one that it was
// claimed with; so a shorter one keeps the longer, and what is written sooner arrives sooner. Of Retry-After, what
// closes the limit for longer, and for more hosts.
func strictest(rules []LimitRule) (l LimitRule, mostCost int64) {
	l = rules[0]
	anybody := slices.ContainsFunc(rules, func(r LimitRule) bool { return len(r.Hosts) == 0 })
	for _, r := range rules {
		l.Rate = l.Rate.Stricter(r.Rate)
		l.PerKey = l.PerKey && r.PerKey
		l.CountCost = l.CountCost || r.CountCost
		l.Anchor = slices.MaxFunc([]limit.Anchor{l.Anchor, r.Anchor}, laterAnchor)
		l.Slack = max(l.Slack, r.Slack)
		l.SendWithin = min(l.SendWithin, r.SendWithin)
		l.RetryAfter = new(max(l.retryAfter(), r.retryAfter()))
		if l.Hosts = union(l.Hosts, r.Hosts); anybody {
			l.Hosts = nil
		}
		if r.CountCost {
			mostCost = max(mostCost, r.Rate.Most())
		} else {
			mostCost = math.MaxInt64
		}
	}
	return l, mostCost
}

// strictestOverrides are the fewest units that any of the rules gives a key which has units of its own in one of
// them, where those are not what all keys have; and the most that a call of it may cost.
func strictestOverrides(rules []LimitRule, holds LimitRule) (units, most map[string]int64) {
	for _, r := range rules {
		for key := range r.Overrides {
			if !holds.PerKey {
				return nil, nil
			}
			if units == nil {
				units, most = map[string]int64{}, map[string]int64{}
			}
			units[key], most[key] = math.MaxInt64, 0
			for _, other := range rules {
				own, is := other.Overrides[key]
				if !is {
					own = other.Rate.Units
				}
				units[key] = min(units[key], own)
				if !other.CountCost {
					own = math.MaxInt64
				}
				most[key] = max(most[key], own)
			}
		}
	}
	return units, most
}

// laterAnchor orders anchors by how late a request may still be on its way. Without one it is the
// start for the http task, and the finish for others.
func laterAnchor(a, b limit.Anchor) int {
	order := []limit.Anchor{limit.AnchorDispatch, limit.AnchorStart, "", limit.AnchorFinish}
	return cmp.Compare(slices.Index(order, a), slices.Index(order, b))
}
