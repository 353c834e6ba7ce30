package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// policy is what was in force, and how Postgres's clock was set meanwhile.
type policy struct {
	versions map[string]history // by limit
	queues   map[string][]limitsFrom
	gains    limit.Gains
	losses   []limit.Gain // the clock was set back
}

func newPolicy() policy {
	return policy{versions: map[string]history{}, queues: map[string][]limitsFrom{}}
}

// version is a limit as it was in force from a moment on.
type version struct {
	Limit      string           `db:"limit_name"`
	Version    int64            `db:"version"`
	From       time.Time        `db:"effective_from"`
	Removed    bool             `db:"removed"`
	Rate       int64            `db:"rate"`
	Window     time.Duration    `db:"window_size"` // 0: a concurrency limit
	Shape      limit.Shape      `db:"shape"`
	PerKey     bool             `db:"per_key"`
	Overrides  map[string]int64 `db:"overrides"`
	CountCost  bool             `db:"count_cost"`
	Anchor     limit.Anchor     `db:"anchor"`
	Slack      time.Duration    `db:"slack"`
	SendWithin time.Duration    `db:"send_within"`
	Queues     []string         `db:"queues"`
}

const versionsSQL = `
SELECT limit_name, version, effective_from, rate IS NULL AS removed, coalesce(rate, 0) AS rate, coalesce(window_size, '0') AS window_size, shape,
    per_key, overrides, count_cost, coalesce(anchor, '') AS anchor, coalesce(slack, '0') AS slack, coalesce(send_within, '0') AS send_within,
    coalesce(queues, '{}') AS queues
FROM call_limit_versions
ORDER BY limit_name, version`

func (r version) inForce() limit.Rate {
	return limit.Rate{Units: r.Rate, Window: r.Window, Shape: r.Shape}
}

// anchorOf is the step of an attempt from which the version counts it.
func (r version) anchorOf(a *attempt) limit.Anchor {
	switch {
	case r.Anchor != "":
		return r.Anchor
	case a.custom():
		return limit.AnchorFinish
	}
	return limit.AnchorStart
}

// keyOf and costOf are what an attempt claims of the limit.
func (r version) keyOf(a *attempt) string {
	if r.PerKey {
		return a.Key
	}
	return ""
}

func (r version) costOf(cost int64) int64 {
	if r.CountCost {
		return cost
	}
	return 1
}

// history is the versions of one limit, by their numbers.
type history []version

// at is the index of the version that was in force at t; -1: none yet.
func (h history) at(t time.Time) int {
	return sort.Search(len(h), func(i int) bool { return h[i].From.After(t) }) - 1
}

// during is the versions that were in force between from and to. Before the first version, the first counts as in force.
func (h history) during(from time.Time, to *time.Time) history {
	first, last := max(h.at(from), 0), len(h)-1
	if to != nil {
		last = h.at(*to)
	}
	if last < first {
		return nil
	}
	return h[first : last+1]
}

func (v *verifier) readPolicy(ctx context.Context) error {
	versions, err := collect(ctx, v.tx, pgx.RowToStructByName[version], versionsSQL)
	if err != nil {
		return fmt.Errorf("the limits' changes: %w", err)
	}
	p := &v.policy
	for _, r := range versions {
		p.versions[r.Limit] = append(p.versions[r.Limit], r)
	}
	for _, h := range p.versions { // after the clock was set back, the later version counts from its own time
		for i := len(h) - 2; i >= 0; i-- {
			if h[i].From.After(h[i+1].From) {
				h[i].From = h[i+1].From
			}
		}
	}
	steps, err := collect(ctx, v.tx, pgx.RowToStructByPos[limit.Gain], `SELECT at, by FROM call_clock_gains WHERE isfinite(at) ORDER BY id`)
	if err != nil {
		return fmt.Errorf("how the clock was set: %w", err)
	}
	for _, s := range steps {
		if s.By > 0 {
			p.gains = append(p.gains, s)
		} else {
			p.losses = append(p.losses, s)
		}
	}
	return v.readUsage(ctx)
}

// countsFrom is the latest arrival that no window since then counts any more; nil: all windows count.
func (p *policy) countsFrom(since *time.Time, now time.Time) *time.Time {
	if since == nil {
		return nil
	}
	longest := time.Minute
	for _, h := range p.versions {
		for _, r := range h {
			longest = max(longest, r.Window+r.Window/50+time.Minute) // and a bucket of usage
		}
	}
	from := *since
	if now.Before(from) {
		from = now
	}
	return new(from.Add(-longest - p.gains.All()))
}

// shownTwice reports whether a clock that was set back may have shown t twice.
func (p *policy) shownTwice(t time.Time) bool {
	return slices.ContainsFunc(p.losses, func(l limit.Gain) bool { return !t.Before(l.At) && t.Before(l.At.Add(-l.By)) })
}

// limitsFrom is the limits that a queue had from a moment on.
type limitsFrom struct {
	from  time.Time
	names []string
}

// limitsOf is the sorted names of the limits that a queue had at t.
func (p *policy) limitsOf(queue string, t time.Time) []string {
	h, known := p.queues[queue]
	if !known {
		h = p.historyOf(queue)
		p.queues[queue] = h
	}
	i := sort.Search(len(h), func(i int) bool { return h[i].from.After(t) }) - 1
	if i < 0 {
		return nil
	}
	return h[i].names
}

// historyOf reads a queue's limits from the versions of the limits that it ever had.
func (p *policy) historyOf(queue string) []limitsFrom {
	has := func(r version) bool { return !r.Removed && slices.Contains(r.Queues, queue) }
	var names []string
	var times []time.Time
	for _, name := range sortedKeys(p.versions) {
		if h := p.versions[name]; slices.ContainsFunc(h, has) {
			names = append(names, name)
			for _, r := range h {
				times = append(times, r.From)
			}
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	var all []limitsFrom
	for _, t := range slices.CompactFunc(times, time.Time.Equal) {
		all = append(all, limitsFrom{t, slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			i := p.versions[name].at(t)
			return i < 0 || !has(p.versions[name][i])
		})})
	}
	return all
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
