package verify

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// version is a limit as it was in force from a moment on.
type version struct {
	Limit      string
	Version    int64
	From       time.Time
	Removed    bool
	Rate       int64
	Window     time.Duration // 0: a concurrency limit
	Shape      limit.Shape
	PerKey     bool
	Overrides  map[string]int64
	CountCost  bool
	Anchor     limit.Anchor
	Slack      time.Duration
	SendWithin time.Duration
	Queues     []string
}

// versionsSQL lets a version count from the time of a later one, if that is earlier since the clock was set back between them.
const versionsSQL = `
SELECT limit_name AS "limit", version, min(effective_from) OVER (PARTITION BY limit_name ORDER BY version DESC) AS "from",
    rate IS NULL AS removed, coalesce(rate, 0) AS rate, coalesce(window_size, '0') AS "window", shape, per_key, overrides,
    count_cost, coalesce(anchor, '') AS anchor, coalesce(slack, '0') AS slack, coalesce(send_within, '0') AS send_within,
    coalesce(queues, '{}') AS queues
FROM call_limit_versions
ORDER BY limit_name COLLATE "C", version`

func (r version) inForce() limit.Rate {
	return limit.Rate{Units: r.Rate, Window: r.Window, Shape: r.Shape}
}

// claims is what an attempt claims of the limit.
func (r version) claims(a *attempt) (key string, cost int64) {
	cost = 1
	if r.PerKey {
		key = a.Key
	}
	if r.CountCost {
		cost = a.Cost
	}
	return key, cost
}

func (r version) has(queue string) bool { return !r.Removed && slices.Contains(r.Queues, queue) }

// String is the version in the audit's words.
func (r version) String() string {
	if r.Removed {
		return "removed"
	}
	return r.inForce().Describe(limit.Counting{
		PerKey: r.PerKey, Overrides: r.Overrides, ByCost: r.CountCost, Anchor: r.Anchor, Slack: r.Slack, SendWithin: r.SendWithin,
	})
}

// history is the versions of one limit, by their numbers.
type history []version

// at is the index of the version that was in force at t; -1: none yet.
func (h history) at(t time.Time) int {
	return sort.Search(len(h), func(i int) bool { return h[i].From.After(t) }) - 1
}

// during is the versions that were in force between from and to. Before the first version, the first counts as in force.
func (h history) during(from, to time.Time) history {
	first, last := max(h.at(from), 0), h.at(to)
	return h[first:max(first, last+1)]
}

func (v *verifier) readPolicy(ctx context.Context) error {
	versions, err := collect(ctx, v.tx, pgx.RowToStructByName[version], versionsSQL)
	if err != nil {
		return fmt.Errorf("the limits' changes: %w", err)
	}
	for _, r := range versions {
		v.versions[r.Limit] = append(v.versions[r.Limit], r)
		for _, queue := range r.Queues {
			if !slices.Contains(v.limits[queue], r.Limit) {
				v.limits[queue] = append(v.limits[queue], r.Limit)
			}
		}
	}
	const stepsSQL = `SELECT at, by FROM call_clock_gains WHERE isfinite(at) ORDER BY id`
	steps, err := collect(ctx, v.tx, pgx.RowToStructByPos[limit.Gain], stepsSQL)
	if err != nil {
		return fmt.Errorf("how the clock was set: %w", err)
	}
	v.losses = slices.DeleteFunc(slices.Clone(steps), func(s limit.Gain) bool { return s.By > 0 })
	v.gains = slices.DeleteFunc(steps, func(s limit.Gain) bool { return s.By <= 0 })
	return nil
}

// countsFrom is the latest arrival that no window since Options.Since counts any more; nil: all windows count.
func (v *verifier) countsFrom() *time.Time {
	if v.since == nil {
		return nil
	}
	var longest time.Duration
	for _, h := range v.versions {
		for _, r := range h {
			longest = max(longest, r.Window+r.Window/50) // and a bucket of usage
		}
	}
	from := *v.since
	if v.now.Before(from) {
		from = v.now
	}
	return new(from.Add(-longest - time.Minute - v.gains.All()))
}

// shownTwice reports whether a clock that was set back may have shown t twice.
func shownTwice(losses []limit.Gain, t time.Time) bool {
	return slices.ContainsFunc(losses, func(l limit.Gain) bool { return !t.Before(l.At) && t.Before(l.At.Add(-l.By)) })
}

// limitsOf is the sorted names of the limits that a queue had at t.
func (v *verifier) limitsOf(queue string, t time.Time) (had []string) {
	for _, name := range v.limits[queue] {
		if h := v.versions[name]; h.at(t) >= 0 && h[h.at(t)].has(queue) {
			had = append(had, name)
		}
	}
	return had
}

// checkVersions compares the versions of limits with each other, with the limits as they are, and with the audit.
func (v *verifier) checkVersions(ctx context.Context) error {
	if err := v.check(ctx, versionGapsSQL, lastVersionSQL, queueLimitsSQL, gainsAreTimeSQL); err != nil {
		return err
	}
	return v.checkAudit(ctx)
}

const versionGapsSQL = `
SELECT 'the versions of a limit have no gap' AS rule, limit_name AS "limit",
    format('versions %s to %s are missing', version + 1, next - 1) AS detail
FROM (
    SELECT limit_name, version, lead(version) OVER (PARTITION BY limit_name ORDER BY version) AS next FROM call_limit_versions
) c
WHERE next > version + 1
ORDER BY limit_name, version`

// lastVersionSQL compares the columns that a limit and its versions share. The version of a limit that was removed has no
// rate; the limit keeps its own, and no queues.
const lastVersionSQL = `
WITH last AS (
    SELECT DISTINCT ON (limit_name) limit_name, version, rate, to_jsonb(c) AS has
    FROM call_limit_versions c ORDER BY limit_name, version DESC
)
SELECT 'a limit is as its last version' AS rule, coalesce(l.name, c.limit_name) AS "limit", CASE
    WHEN l.name IS NULL THEN format('it is gone, and version %s is its last', c.version)
    WHEN c.limit_name IS NULL THEN 'it has no version'
    ELSE format('version %s is in force, and version %s the last; they differ in %s', l.version, c.version, d.differ) END AS detail
FROM call_limits l
FULL JOIN last c ON c.limit_name = l.name
CROSS JOIN LATERAL (
    SELECT string_agg(replace(f.name, '_size', ''), ', ' ORDER BY f.place) AS differ
    FROM unnest('{version,rate,window_size,shape,per_key,overrides,count_cost,anchor,slack,send_within,queues}'::text[])
        WITH ORDINALITY AS f (name, place)
    WHERE CASE WHEN f.name = 'rate' AND c.rate IS NULL THEN l.queues <> '{}' ELSE to_jsonb(l) -> f.name IS DISTINCT FROM c.has -> f.name END
) d
WHERE l.name IS NULL OR c.limit_name IS NULL OR d.differ IS NOT NULL
ORDER BY 2`

const queueLimitsSQL = `
SELECT 'a queue has the limits that count it' AS rule,
    format('queue %s has the limits %s, and is counted by %s', q.name, q.limits, c.limits) AS detail
FROM call_queues q
CROSS JOIN LATERAL (SELECT coalesce(array_agg(l.name), '{}') AS limits FROM call_limits l WHERE l.queues @> ARRAY[q.name]) c
WHERE NOT (q.limits @> c.limits AND c.limits @> q.limits)
ORDER BY q.name`

const gainsAreTimeSQL = `
SELECT 'what the clock gained is time' AS rule, format('at %s it gained %s', at, by) AS detail
FROM call_clock_gains WHERE by = '0' OR NOT isfinite(at) ORDER BY id`

// checkAudit compares each version with the audit, as far back as the audit reaches. A line may go on with what versions do
// not have.
func (v *verifier) checkAudit(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, auditSQL)
	if err != nil {
		return fmt.Errorf("the audit: %w", err)
	}
	var name string
	var number int64
	var lines []string
	_, err = pgx.ForEachRow(rows, []any{&name, &number, &lines}, func() error {
		h := v.versions[name]
		r := h[slices.IndexFunc(h, func(r version) bool { return r.Version == number })]
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, r.String()) }) {
			v.found("a version of a limit is what the audit says", Violation{
				Limit: name, Detail: fmt.Sprintf("version %d is %s, and the audit of then says %q", number, r, lines),
			})
		}
		return nil
	})
	return err
}

// auditSQL returns the audit's lines about each version that is not older than the audit. The transaction that applies
// a version writes its line too; the clock may be set between the two.
const auditSQL = `
SELECT c.limit_name, c.version, coalesce(array_agg(a.change) FILTER (WHERE a.change IS NOT NULL), '{}')
FROM call_limit_versions c
LEFT JOIN call_audit a ON a.what = 'limit' AND a.name = c.limit_name AND a.change !~ '^(paused|resumed)'
    AND a.at BETWEEN c.effective_from - interval '1 minute' AND c.effective_from + interval '1 minute'
CROSS JOIN (SELECT min(at) AS at, min(id) AS id FROM call_audit) first
WHERE first.id = 1 OR c.effective_from >= first.at
GROUP BY 1, 2
ORDER BY 1, 2`
