// Package policy holds the limits, queues and budgets in force. It checks them, writes them to Postgres, and reads
// them back under the locks that claims take.
//
// The database holds one policy: what was applied last is in force for every process. Claims read it under the locks that
// Apply locks, so none mixes an old and a new one. Locks are acquired in one order: the applier's, the queues', the limits'.
package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/limit"
)

// Policy is what a configuration has of limits, queues and budgets. Its JSON identifies it (Hash): keep the names of
// fields, and give a new one omitempty.
type Policy struct {
	Limits  []Limit  `json:",omitempty"`
	Queues  []Queue  `json:",omitempty"`
	Budgets []Budget `json:",omitempty"`
	Routes  []Route  `json:",omitempty"`
}

// Limit allows at most Rate.Units calls to arrive at the API in any Rate.Window. If the window is 0, it
// allows as many to run at once.
type Limit struct {
	Name      string           `db:"name"`
	Rate      limit.Rate       `db:"rate"`
	PerKey    bool             `db:"per_key"`                     // each key has the rate for itself
	Overrides map[string]int64 `db:"overrides" json:",omitempty"` // units of some keys, in the same window
	CountCost bool             `db:"count_cost"`                  // a call takes its cost, not 1
	Anchor    limit.Anchor     `db:"anchor"`                      // empty: start for the task http, finish for custom handlers
	Slack     time.Duration    `db:"slack"`                       // how long a request may travel; 0: derived from the window
	// Proof is what shows that a request without an answer has arrived; empty: limit.ProofSlack where Slack is given, else
	// limit.ProofLater. After ArriveWithin it counts as arrived; 0: derived from the window.
	Proof        limit.Proof   `db:"proof" json:",omitempty"`
	ArriveWithin time.Duration `db:"arrive_within" json:",omitempty"`
	SendWithin   time.Duration `db:"send_within"` // how long after its start a worker may send; 0: derived from the window
	// Hosts are those whose Retry-After closes the limit, as host or host:port; none: all. RetryAfter is for how
	// long at most; 0: never; nil: an hour.
	Hosts      []string       `db:"hosts" json:",omitempty"`
	RetryAfter *time.Duration `db:"retry_after"`
	// Headers are what an answer's headers say of it, and Trust is what comes of what a success says remains: TrustLower, which is
	// the default, or TrustIgnore.
	Headers Headers `db:"headers" json:",omitzero"`
	Trust   string  `db:"trust" json:",omitempty"`
	// Shares are parts of its units that some of its calls are guaranteed; nil: whoever comes.
	Shares limit.Shares `db:"shares" json:",omitempty"`
}

// Headers are the names of headers that say of a limit when to come again, beside those of docs/apis.md, and of those that do not.
type Headers struct {
	Wait []string `json:"wait,omitempty"`
	Off  []string `json:"off,omitempty"`
}

// What comes of it where an API says that less remains than callq counts.
const (
	TrustLower  = "lower"
	TrustIgnore = "ignore"
)

// Queue describes which limits its calls use, and how they are retried.
type Queue struct {
	Name        string        `db:"name"`
	Limits      []string      `db:"limits"`
	On          string        `db:"label"` // only workers with this label run its calls; empty: all
	MaxAttempts int           `db:"max_attempts"`
	BackoffMin  time.Duration `db:"backoff_min"`
	BackoffMax  time.Duration `db:"backoff_max"`
	Timeout     time.Duration `db:"timeout"` // of one attempt
	OnLost      string        `db:"on_lost"` // what happens to a call whose worker was lost: retry or fail
	Hours       string        `db:"hours"`   // outside of which nothing starts, as internal/hours reads them; empty: none

	// Which answers to calls of the task http are kept, so many bytes of each, and for how long.
	Store       string        `db:"store"`        // all, errors or none; empty: the worker's http_task.store
	StoreMax    int64         `db:"store_max"`    // 0: 64 KiB
	StoreFor    time.Duration `db:"store_for"`    // 0: as the call
	OnRefused   string        `db:"on_refused"`   // what an answer is that names a limit: close (no failure; the default) or retry (one)
	MaxRefusals int           `db:"max_refusals"` // of a call; 0: 1,000
	// Caps: how many of its calls may wait, in all and of each key (0: any number), and what an INSERT beyond that does.
	MaxWaiting       int64  `db:"max_waiting" json:",omitempty"`
	MaxWaitingPerKey int64  `db:"max_waiting_per_key" json:",omitempty"`
	WhenFull         string `db:"when_full" json:",omitempty"` // refuse (the default), discard_new or discard_oldest; without a cap: empty
	// Needs are units of budgets that each call draws: claims leave alone what has none of them free.
	Needs map[string]int64 `db:"needs" json:",omitempty"`
}

// Budget is what handlers draw on in Redis while they run. Dispatchers publish it, and ask it what their queues need.
type Budget struct {
	Name     string
	Rate     limit.Rate // its units and window alone; the rest is in the shape
	Burst    int64      // the capacity of a token bucket; of others 1
	OnOutage string     // a draw while Redis is away: closed (it waits) or open (it goes through)
	BudgetShape
}

// BudgetShape is what only some budgets have.
type BudgetShape = budget.Shape

func (b *Budget) rule() budget.Rule {
	return budget.Rule{Rate: b.Rate, Burst: b.Burst, Shape: b.BudgetShape}
}

const (
	defaultRetryAfter  = time.Hour
	defaultMaxRefusals = 1000
	refusedCloses      = "close"
)

func (l Limit) retryAfter() time.Duration {
	if l.RetryAfter == nil {
		return defaultRetryAfter
	}
	return *l.RetryAfter
}

func (l Limit) String() string {
	text := l.Rate.Describe(limit.Counting{
		PerKey: l.PerKey, Overrides: l.Overrides, CountCost: l.CountCost,
		Anchor: l.Anchor, SendWithin: l.SendWithin,
		Unanswered: limit.Unanswered{Proof: l.Proof, Slack: l.Slack, ArriveWithin: l.ArriveWithin},
	})
	if len(l.Hosts) > 0 {
		text += ", hosts " + strings.Join(l.Hosts, " and ")
	}
	if len(l.Headers.Wait) > 0 {
		text += ", told by " + strings.Join(l.Headers.Wait, " and ")
	}
	if len(l.Headers.Off) > 0 {
		text += ", not by " + strings.Join(l.Headers.Off, " and ")
	}
	if l.Trust == TrustIgnore {
		text += ", trust ignore"
	}
	if len(l.Shares) > 0 {
		text += ", shares " + l.Shares.String()
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

func (q Queue) String() string {
	text := fmt.Sprintf("limits %v, max_attempts %d, backoff %s..%s, timeout %s, on_lost %s",
		q.Limits, q.MaxAttempts, q.BackoffMin, q.BackoffMax, q.Timeout, q.OnLost)
	if q.On != "" {
		text += ", on " + q.On
	}
	if q.Hours != "" {
		text += ", hours " + q.Hours
	}
	if q.Store != "" || q.StoreFor != 0 {
		text += fmt.Sprintf(", store %s, store_max %d, store_for %s", q.Store, q.StoreMax, q.StoreFor)
	}
	if q.OnRefused != refusedCloses || q.MaxRefusals != defaultMaxRefusals {
		text += fmt.Sprintf(", on_refused %s, max_refusals %d", q.OnRefused, q.MaxRefusals)
	}
	if q.capped() {
		text += fmt.Sprintf(", max_waiting %s, %s per key, when_full %s", atMost(q.MaxWaiting), atMost(q.MaxWaitingPerKey), q.WhenFull)
	}
	for _, name := range slices.Sorted(maps.Keys(q.Needs)) {
		text += fmt.Sprintf(", needs %d of %s", q.Needs[name], name)
	}
	return text
}

func (q Queue) capped() bool { return q.MaxWaiting > 0 || q.MaxWaitingPerKey > 0 }

func atMost(n int64) string {
	if n == 0 {
		return "unlimited"
	}
	return strconv.FormatInt(n, 10)
}

func (b Budget) String() string {
	rule := b.rule()
	return fmt.Sprintf("%s, on_outage %s", &rule, b.OnOutage)
}

// Check refuses a policy that contradicts itself, fills in what is derived, and sorts its parts by name.
func (p *Policy) Check() (err error) {
	if p.Limits, err = checked("limit", p.Limits, func(l *Limit) string { return l.Name }, (*Limit).check); err != nil {
		return err
	}
	checkQueue := func(q *Queue) error { return q.check(p) }
	if p.Queues, err = checked("queue", p.Queues, func(q *Queue) string { return q.Name }, checkQueue); err != nil {
		return err
	}
	for i := range p.Limits {
		l := &p.Limits[i]
		if l.Shares, _, err = l.Shares.Complete(p.queuesOf(l.Name)); err != nil {
			return fmt.Errorf("limit %q: %w", l.Name, err)
		}
	}
	if p.Budgets, err = checked("budget", p.Budgets, func(b *Budget) string { return b.Name }, (*Budget).check); err != nil {
		return err
	}
	return p.checkRoutes()
}

func checked[T any](what string, parts []T, name func(*T) string, check func(*T) error) ([]T, error) {
	parts = slices.Clone(parts)
	slices.SortStableFunc(parts, func(a, b T) int { return strings.Compare(name(&a), name(&b)) })
	for i := range parts {
		part := &parts[i]
		if name(part) == "" || i > 0 && name(&parts[i-1]) == name(part) {
			return nil, fmt.Errorf("%s %q: the name is empty or given twice", what, name(part))
		}
		if err := check(part); err != nil {
			return nil, fmt.Errorf("%s %q: %w", what, name(part), err)
		}
	}
	return parts, nil
}

func (l *Limit) check() error {
	if l.Rate.Units < 1 || l.Rate.Window < 0 {
		return errors.New("the rate allows nothing")
	}
	if l.Rate.Window == 0 {
		if l.Anchor != "" && l.Anchor != limit.AnchorFinish {
			return fmt.Errorf("a concurrency limit has anchor finish, not %s", l.Anchor)
		}
		l.Anchor = limit.AnchorFinish
	}
	if len(l.Overrides) > 0 && (!l.PerKey || l.Rate.Algorithm.Traits().OneRate) {
		return errors.New("overrides are of limits per key, and not of buckets")
	}
	for key, units := range l.Overrides {
		if units < 1 {
			return fmt.Errorf("the override of key %q allows nothing", key)
		}
	}
	if l.retryAfter() < 0 {
		return errors.New("retry_after is below 0")
	}
	switch {
	case l.Proof == "" && l.Slack > 0:
		l.Proof = limit.ProofSlack
	case l.Proof == "":
		l.Proof = limit.ProofLater
	case !slices.Contains([]limit.Proof{limit.ProofLater, limit.ProofAnswer, limit.ProofSlack}, l.Proof):
		return fmt.Errorf("proof is %q; it may be later, answer or slack", l.Proof)
	}
	l.ArriveWithin = storable(cmp.Or(l.ArriveWithin, limit.DefaultArriveWithin(l.Rate.Span())))
	if l.Proof == limit.ProofAnswer {
		l.Slack = l.ArriveWithin
	}
	l.Slack = storable(cmp.Or(l.Slack, limit.DefaultSlack(l.Rate.Span())))
	l.SendWithin = storable(cmp.Or(l.SendWithin, limit.DefaultSendWithin(l.Rate.Span())))
	l.Rate.Window, l.RetryAfter = storable(l.Rate.Window), new(storable(l.retryAfter()))
	l.Hosts = sortedSet(l.Hosts)
	l.Headers = Headers{headerSet(l.Headers.Wait), headerSet(l.Headers.Off)}
	if l.Trust = cmp.Or(l.Trust, TrustLower); l.Trust != TrustLower && l.Trust != TrustIgnore {
		return fmt.Errorf("trust is %q; it may be lower or ignore", l.Trust)
	}
	if len(l.Overrides) == 0 {
		l.Overrides = nil
	}
	return nil
}

func (q *Queue) check(p *Policy) error {
	q.Limits = sortedSet(q.Limits)
	for _, name := range q.Limits {
		if !slices.ContainsFunc(p.Limits, func(l Limit) bool { return l.Name == name }) {
			return fmt.Errorf("there is no limit %q", name)
		}
	}
	for name, units := range q.Needs {
		i := slices.IndexFunc(p.Budgets, func(b Budget) bool { return b.Name == name })
		if i < 0 {
			return fmt.Errorf("there is no budget %q", name)
		}
		if rule := p.Budgets[i].rule(); units < 1 || units > rule.LeastMost() {
			return fmt.Errorf("needs %d of budget %q: it may need 1 to %d", units, name, rule.LeastMost())
		}
	}
	if len(q.Needs) == 0 {
		q.Needs = nil
	}
	if q.MaxAttempts < 1 || q.Timeout <= 0 || q.BackoffMin <= 0 || q.BackoffMax < q.BackoffMin {
		return errors.New("max_attempts, timeout and backoff must be above 0")
	}
	if q.OnLost != "retry" && q.OnLost != "fail" {
		return fmt.Errorf("on_lost is %q; it may be retry or fail", q.OnLost)
	}
	q.OnRefused, q.MaxRefusals = cmp.Or(q.OnRefused, refusedCloses), cmp.Or(q.MaxRefusals, defaultMaxRefusals)
	if q.OnRefused != refusedCloses && q.OnRefused != "retry" || q.MaxRefusals < 1 {
		return fmt.Errorf("on_refused is %q, max_refusals %d; it may be close or retry, at least 1 of them", q.OnRefused, q.MaxRefusals)
	}
	if q.WhenFull = cmp.Or(q.WhenFull, "refuse"); !q.capped() {
		q.WhenFull = ""
	} else if !slices.Contains([]string{"refuse", "discard_new", "discard_oldest"}, q.WhenFull) || q.MaxWaiting < 0 || q.MaxWaitingPerKey < 0 {
		return fmt.Errorf("max_waiting is %d, max_waiting_per_key %d, when_full %q; they may be 0 or more, and refuse, discard_new or discard_oldest",
			q.MaxWaiting, q.MaxWaitingPerKey, q.WhenFull)
	}
	q.Hours = strings.Join(strings.Fields(q.Hours), " ")
	if _, err := hours.Parse(q.Hours); err != nil {
		return fmt.Errorf("hours: %w", err)
	}
	q.StoreMax = cmp.Or(q.StoreMax, 64<<10)
	if !slices.Contains([]string{"", "all", "errors", "none"}, q.Store) || q.StoreMax < 1 || q.StoreFor < 0 {
		return fmt.Errorf("store is %q, %d bytes of each for %s; it may be all, errors, none or empty, at least 1 byte, and no time below 0", q.Store, q.StoreMax, q.StoreFor)
	}
	q.Timeout, q.BackoffMin, q.BackoffMax = storable(q.Timeout), storable(q.BackoffMin), storable(q.BackoffMax)
	q.StoreFor = storable(q.StoreFor)
	return nil
}

func (b *Budget) check() error {
	b.Rate.Window = storable(b.Rate.Window)
	if rule := b.rule(); rule.Check() != nil {
		return rule.Check()
	}
	if b.OnOutage != "closed" && b.OnOutage != "open" {
		return fmt.Errorf("on_outage is %q; it may be closed or open", b.OnOutage)
	}
	return nil
}

// headerSet is a sorted set of headers by their canonical names; nil where it is empty.
func headerSet(names []string) []string {
	var set []string
	for _, name := range names {
		set = append(set, http.CanonicalHeaderKey(name))
	}
	return sortedSet(set)
}

func sortedSet(list []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// storable is d as Postgres keeps it, in whole microseconds, rounded up. A finer one would differ from its own row,
// and be applied anew at each start.
func storable(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// queuesOf returns the queues that use a limit, sorted by name.
func (p Policy) queuesOf(name string) []string {
	queues := []string{}
	for _, q := range p.Queues {
		if slices.Contains(q.Limits, name) {
			queues = append(queues, q.Name)
		}
	}
	return queues
}
