package dispatcher

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/limit"
)

// Rules are the limits, queues and budgets of a config, as they are published. They are known again by their JSON
// (policy.go): fields keep their names, and one that is added is left out where it is not given.
type Rules struct {
	Limits  []LimitRule  `json:",omitempty"`
	Queues  []QueueRule  `json:",omitempty"`
	Budgets []BudgetRule `json:",omitempty"`
}

// LimitRule is a limit: at most Rate.Units arrive at the API in any Rate.Window or, where that is
// 0, run at once.
type LimitRule struct {
	Name       string
	Rate       limit.Rate
	PerKey     bool             // each key has that rate, not all together
	Overrides  map[string]int64 `json:",omitempty"` // keys that have so many units instead, in the same window
	CountCost  bool             // a call takes its cost, not 1
	Anchor     limit.Anchor     // empty: start for the http task, finish for other tasks
	Slack      time.Duration    // how long a request may travel; 0: derived from the window
	SendWithin time.Duration    // how long a worker may take to send; 0: derived from the window
	// Hosts are those whose answers with Retry-After close it: host or host:port; none: anybody's. RetryAfter is
	// for how long at most, 0: never; nil: 1 h.
	Hosts      []string       `json:",omitempty"`
	RetryAfter *time.Duration `json:",omitempty"`
}

const defaultRetryAfter = time.Hour

func (l LimitRule) retryAfter() time.Duration {
	if l.RetryAfter == nil {
		return defaultRetryAfter
	}
	return *l.RetryAfter
}

// QueueRule is a queue: the limits its calls use, and how they are retried.
type QueueRule struct {
	Name        string
	Limits      []string
	On          string // only workers that carry this label run its calls; empty: any
	MaxAttempts int
	BackoffMin  time.Duration
	BackoffMax  time.Duration
	Timeout     time.Duration // of one attempt
	OnLost      string        // what becomes of a call whose worker was lost: retry or fail
	Hours       []string      // that must all be open, as internal/hours reads them; none: always open
}

// union is what either list has, in order, each once.
func union(a, b []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}

func (l LimitRule) String() string {
	text := l.Rate.Describe(limit.Counting{
		PerKey: l.PerKey, Overrides: l.Overrides, ByCost: l.CountCost, Anchor: l.Anchor, Slack: l.Slack, SendWithin: l.SendWithin,
	})
	if len(l.Hosts) > 0 {
		text += ", hosts " + strings.Join(l.Hosts, " and ")
	}
	switch most := l.retryAfter(); most {
	case defaultRetryAfter:
	case 0:
		text += ", retry_after off"
	default:
		text += fmt.Sprintf(", retry_after %s", most)
	}
	return text
}

func (q QueueRule) String() string {
	text := fmt.Sprintf("limits %v, max_attempts %d, backoff %s..%s, timeout %s, on_lost %s",
		q.Limits, q.MaxAttempts, q.BackoffMin, q.BackoffMax, q.Timeout, q.OnLost)
	if q.On != "" {
		text += ", on " + q.On
	}
	if len(q.Hours) > 0 {
		text += ", hours " + strings.Join(q.Hours, " and ")
	}
	return text
}

// check refuses rules that contradict themselves, fills in what is derived, and orders them by name.
func (r *Rules) check() error {
	r.Limits, r.Queues = slices.Clone(r.Limits), slices.Clone(r.Queues)
	slices.SortStableFunc(r.Limits, func(a, b LimitRule) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(r.Queues, func(a, b QueueRule) int { return strings.Compare(a.Name, b.Name) })
	known := map[string]bool{}
	for i := range r.Limits {
		l := &r.Limits[i]
		if l.Name == "" || known[l.Name] {
			return fmt.Errorf("limit %q: the name is empty or given twice", l.Name)
		}
		if l.Rate.Units < 1 || l.Rate.Window < 0 {
			return fmt.Errorf("limit %q: the rate allows nothing", l.Name)
		}
		if l.Rate.Window == 0 {
			if l.Anchor != "" && l.Anchor != limit.AnchorFinish {
				return fmt.Errorf("limit %q: a concurrency limit has anchor finish, not %s", l.Name, l.Anchor)
			}
			l.Anchor = limit.AnchorFinish
		}
		if bucket := l.Rate.Algorithm == limit.TokenBucket || l.Rate.Algorithm == limit.LeakyBucket; len(l.Overrides) > 0 && (!l.PerKey || bucket) {
			return fmt.Errorf("limit %q: overrides are of limits per key, and not of buckets", l.Name)
		}
		for key, units := range l.Overrides {
			if units < 1 {
				return fmt.Errorf("limit %q: the override of key %q allows nothing", l.Name, key)
			}
		}
		if l.retryAfter() < 0 {
			return fmt.Errorf("limit %q: retry_after is below 0", l.Name)
		}
		known[l.Name] = true
		l.Hosts = union(l.Hosts, nil)
		if l.Slack == 0 {
			l.Slack = limit.DefaultSlack(l.Rate.Span())
		}
		if l.SendWithin == 0 {
			l.SendWithin = limit.DefaultSendWithin(l.Rate.Span())
		}
		l.RetryAfter = new(storable(l.retryAfter()))
		l.Rate.Window, l.Slack, l.SendWithin = storable(l.Rate.Window), storable(l.Slack), storable(l.SendWithin)
	}
	seen := map[string]bool{}
	for i := range r.Queues {
		q := &r.Queues[i]
		if q.Name == "" || seen[q.Name] {
			return fmt.Errorf("queue %q: the name is empty or given twice", q.Name)
		}
		seen[q.Name] = true
		q.Limits = slices.Sorted(slices.Values(q.Limits))
		q.Limits = slices.Compact(q.Limits)
		for _, name := range q.Limits {
			if !known[name] {
				return fmt.Errorf("queue %q: there is no limit %q", q.Name, name)
			}
		}
		if q.MaxAttempts < 1 || q.Timeout <= 0 || q.BackoffMin <= 0 || q.BackoffMax < q.BackoffMin {
			return fmt.Errorf("queue %q: max_attempts, timeout and backoff must be above 0", q.Name)
		}
		if q.OnLost != "retry" && q.OnLost != "fail" {
			return fmt.Errorf("queue %q: on_lost is %q; it may be retry or fail", q.Name, q.OnLost)
		}
		all, err := hours.ParseAll(q.Hours)
		if err != nil {
			return fmt.Errorf("queue %q: hours: %w", q.Name, err)
		}
		q.Hours = nil // in one form each
		for _, h := range all {
			q.Hours = append(q.Hours, h.String())
		}
		q.Hours = union(q.Hours, nil)
		q.Timeout, q.BackoffMin, q.BackoffMax = storable(q.Timeout), storable(q.BackoffMin), storable(q.BackoffMax)
	}
	return r.checkBudgets()
}

// storable is d as Postgres keeps it, in whole microseconds, rounded up: finer, a rule would differ
// from its own row, and be published anew at each start.
func storable(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// queuesOf are the queues that use a limit, in name order.
func (r Rules) queuesOf(name string) []string {
	queues := []string{}
	for _, q := range r.Queues {
		if slices.Contains(q.Limits, name) {
			queues = append(queues, q.Name)
		}
	}
	slices.Sort(queues)
	return queues
}
