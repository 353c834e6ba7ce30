package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// version is a stretch of time in which a limit was as it says.
type version struct {
	Limit      string           `db:"limit_name"`
	Version    int64            `db:"version"`
	From       time.Time        `db:"effective_from"`
	Taken      bool             `db:"taken"` // the limit was taken away
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
	By         string           `db:"applied_by"`
}

func (r version) inForce() limit.Rate {
	return limit.Rate{Units: r.Rate, Window: r.Window, Shape: r.Shape}
}

// anchorOf is from which step on the version bounds an attempt of a task.
func (r version) anchorOf(a *attempt) limit.Anchor {
	switch {
	case r.Anchor != "":
		return r.Anchor
	case a.own():
		return limit.AnchorFinish
	}
	return limit.AnchorStart
}

// keyOf and costOf are what a claim takes of the limit for an attempt.
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

// at is the number in h of the version that was in force at t; -1: none yet.
func (h history) at(t time.Time) int {
	return sort.Search(len(h), func(i int) bool { return h[i].From.After(t) }) - 1
}

// during are the versions that were in force at some time from from to to: none before the first.
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

func (v *verifier) readRules(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, versionsSQL)
	if err != nil {
		return fmt.Errorf("the limits' changes: %w", err)
	}
	versions, err := pgx.CollectRows(rows, pgx.RowToStructByName[version])
	if err != nil {
		return fmt.Errorf("the limits' changes: %w", err)
	}
	for _, r := range versions {
		v.versions[r.Limit] = append(v.versions[r.Limit], r)
	}
	for _, h := range v.versions { // where the clock was set back, the later version holds from when it began
		for i := len(h) - 2; i >= 0; i-- {
			if h[i].From.After(h[i+1].From) {
				h[i].From = h[i+1].From
			}
		}
	}
	rows, err = v.tx.Query(ctx, `SELECT at, by FROM call_clock_gains WHERE isfinite(at) ORDER BY id`)
	if err != nil {
		return fmt.Errorf("how the clock was set: %w", err)
	}
	steps, err := pgx.CollectRows(rows, pgx.RowToStructByPos[limit.Gain])
	if err != nil {
		return fmt.Errorf("how the clock was set: %w", err)
	}
	for _, s := range steps {
		if s.By > 0 {
			v.gains = append(v.gains, s)
		} else {
			v.losses = append(v.losses, s)
		}
	}
	return v.readUsed(ctx)
}

// shownTwice says whether a clock that was set back may have shown t twice.
func (v *verifier) shownTwice(t time.Time) bool {
	return slices.ContainsFunc(v.losses, func(l limit.Gain) bool { return !t.Before(l.At) && t.Before(l.At.Add(-l.By)) })
}

const versionsSQL = `
SELECT limit_name, version, effective_from, rate IS NULL AS taken, coalesce(rate, 0) AS rate, coalesce(window_size, '0') AS window_size, shape, per_key, overrides,
    count_cost, coalesce(anchor, '') AS anchor, coalesce(slack, '0') AS slack, coalesce(send_within, '0') AS send_within,
    coalesce(queues, '{}') AS queues, applied_by
FROM call_limit_versions
ORDER BY limit_name, version`

// queueHistory is which limits a queue had, from when on.
type queueHistory struct {
	from   []time.Time
	limits [][]string
}

// limitsOf are the limits that a queue had at t, in the order of their names.
func (v *verifier) limitsOf(queue string, t time.Time) []string {
	h := v.queues[queue]
	if h == nil {
		h = v.historyOf(queue)
		v.queues[queue] = h
	}
	i := sort.Search(len(h.from), func(i int) bool { return h.from[i].After(t) }) - 1
	if i < 0 {
		return nil
	}
	return h.limits[i]
}

// historyOf puts together what each limit's versions say of a queue.
func (v *verifier) historyOf(queue string) *queueHistory {
	type change struct {
		at    time.Time
		limit string
		has   bool
	}
	var changes []change
	for name, h := range v.versions {
		for _, r := range h {
			changes = append(changes, change{r.From, name, !r.Taken && slices.Contains(r.Queues, queue)})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	q := &queueHistory{}
	has := map[string]bool{}
	for i, c := range changes {
		if has[c.limit] == c.has {
			continue
		}
		if c.has {
			has[c.limit] = true
		} else {
			delete(has, c.limit)
		}
		if i+1 < len(changes) && changes[i+1].at.Equal(c.at) && len(q.from) > 0 && q.from[len(q.from)-1].Equal(c.at) {
			q.from, q.limits = q.from[:len(q.from)-1], q.limits[:len(q.limits)-1]
		}
		q.from, q.limits = append(q.from, c.at), append(q.limits, slices.Sorted(maps.Keys(has)))
	}
	return q
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// checkVersions holds the versions against each other, against the limits as they are, and against the audit, which
// says what each was when it was published.
func (v *verifier) checkVersions(ctx context.Context) error {
	if err := v.check(ctx, []rule{
		{"the versions of a limit have no gap", versionGapsSQL},
		{"a limit is as its last version", lastVersionSQL},
		{"a queue has the limits that count it", queueLimitsSQL},
		{"what the clock gained is time", gainsAreTimeSQL},
	}); err != nil {
		return err
	}
	return v.checkAudit(ctx)
}

const versionGapsSQL = `
SELECT limit_name, 'version ' || version + 1 || CASE WHEN next = version + 2 THEN ' is' ELSE ' to ' || next - 1 || ' are' END || ' missing' AS detail
FROM (SELECT limit_name, version, lead(version) OVER (PARTITION BY limit_name ORDER BY version) AS next FROM call_limit_versions) c
WHERE next > version + 1
ORDER BY limit_name, version`

// What is of no version (publish.go: noteUnversioned) is not compared.
const lastVersionSQL = `
SELECT coalesce(l.name, c.limit_name) AS limit_name, CASE
    WHEN l.name IS NULL THEN 'it is gone, and version ' || c.version || ' is its last'
    WHEN c.limit_name IS NULL THEN 'it has no version'
    ELSE 'version ' || l.version || ' is in force, and version ' || c.version || ' the last; they differ in ' || concat_ws(', ',
        CASE WHEN l.version <> c.version THEN 'version' END, CASE WHEN l.rate <> c.rate OR c.rate IS NULL AND l.queues <> '{}' THEN 'rate' END,
        CASE WHEN l.window_size IS DISTINCT FROM c.window_size THEN 'window' END, CASE WHEN l.shape IS DISTINCT FROM c.shape THEN 'shape' END,
        CASE WHEN l.per_key IS DISTINCT FROM c.per_key THEN 'per_key' END, CASE WHEN l.overrides IS DISTINCT FROM c.overrides THEN 'overrides' END,
        CASE WHEN l.count_cost IS DISTINCT FROM c.count_cost THEN 'count_cost' END, CASE WHEN l.anchor IS DISTINCT FROM c.anchor THEN 'anchor' END,
        CASE WHEN l.slack IS DISTINCT FROM c.slack THEN 'slack' END, CASE WHEN l.send_within IS DISTINCT FROM c.send_within THEN 'send_within' END,
        CASE WHEN l.queues IS DISTINCT FROM c.queues THEN 'queues' END)
    END AS detail
FROM call_limits l
FULL JOIN (SELECT DISTINCT ON (limit_name) * FROM call_limit_versions ORDER BY limit_name, version DESC) c ON c.limit_name = l.name
WHERE l.name IS NULL OR c.limit_name IS NULL
   OR (l.version, coalesce(c.rate, l.rate), l.window_size, l.shape, l.per_key, l.overrides, l.count_cost, l.anchor, l.slack, l.send_within, l.queues)
      IS DISTINCT FROM (c.version, l.rate, c.window_size, c.shape, c.per_key, c.overrides, c.count_cost, c.anchor, c.slack, c.send_within, c.queues)
   OR c.rate IS NULL AND l.queues <> '{}'
ORDER BY 1`

const queueLimitsSQL = `
SELECT 'queue ' || q.name || ' has the limits ' || q.limits::text || ', and is counted by ' || c.limits::text AS detail
FROM call_queues q
CROSS JOIN LATERAL (SELECT coalesce(array_agg(l.name), '{}') AS limits FROM call_limits l WHERE l.queues @> ARRAY[q.name]) c
WHERE NOT (q.limits @> c.limits AND c.limits @> q.limits)
ORDER BY q.name`

const gainsAreTimeSQL = `
SELECT 'at ' || at || ' it gained ' || by AS detail FROM call_clock_gains WHERE by = '0' OR NOT isfinite(at) ORDER BY id`

// checkAudit wants the audit to say of each version what it is, for as far back as the audit reaches.
func (v *verifier) checkAudit(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, auditSQL)
	if err != nil {
		return fmt.Errorf("the audit: %w", err)
	}
	said := map[string][]string{}
	var name string
	var number int64
	var changes []string
	if _, err := pgx.ForEachRow(rows, []any{&name, &number, &changes}, func() error {
		said[fmt.Sprint(number, " ", name)] = changes
		return nil
	}); err != nil {
		return fmt.Errorf("the audit: %w", err)
	}
	for _, name := range sortedKeys(v.versions) {
		for _, r := range v.versions[name] {
			changes, reaches := said[fmt.Sprint(r.Version, " ", name)]
			if reaches && !slices.ContainsFunc(changes, r.isWhat) {
				v.found("a version of a limit is what the audit says", Violation{
					Limit: name, Detail: fmt.Sprintf("version %d is %s, and the audit of then says %q", r.Version, r, changes),
				})
			}
		}
	}
	return nil
}

// Of versions from before the audit there is nothing to be said. One is in force within the transaction that
// writes the audit, and the clock may be set in it.
const auditSQL = `
SELECT c.limit_name, c.version, coalesce(array_agg(a.change) FILTER (WHERE a.change IS NOT NULL), '{}')
FROM call_limit_versions c
LEFT JOIN call_audit a ON a.what = 'limit' AND a.name = c.limit_name AND a.change !~ '^(paused|resumed)'
    AND a.at BETWEEN c.effective_from - interval '1 minute' AND c.effective_from + interval '1 minute'
CROSS JOIN (SELECT min(at) AS at, min(id) AS id FROM call_audit) first
WHERE first.id = 1 OR c.effective_from >= first.at
GROUP BY 1, 2`

const removed = "removed"

// String is the version as the audit has it.
func (r version) String() string {
	if r.Taken {
		return removed
	}
	return r.inForce().Describe(limit.Counting{
		PerKey: r.PerKey, Overrides: r.Overrides, ByCost: r.CountCost, Anchor: r.Anchor, Slack: r.Slack, SendWithin: r.SendWithin,
	})
}

// isWhat says whether a line of the audit says what the version is. Further on it may say what is of no version; and
// it once said less.
func (r version) isWhat(change string) bool {
	if !strings.Contains(change, ", slack ") {
		return r.Taken && change == removed || !r.Taken && strings.HasPrefix(r.String(), change)
	}
	return strings.HasPrefix(change, r.String())
}
