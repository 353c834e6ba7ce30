package verify

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

// version is a limit as it was in force from a moment on.
type version struct {
	Limit   string
	Version int64
	From    time.Time
	Removed bool
	Rate    limit.Rate
	limit.Counting
	Queues []string
	Audit  []string // what the audit has of then; nil: it does not reach back
}

// versionsSQL lets a version count from the time of a later one, if that is earlier since the clock was set back between them.
// The transaction that applies a version writes its line into the audit too; the clock may be set between the two.
const versionsSQL = `
SELECT limit_name AS "limit", version, min(effective_from) OVER (PARTITION BY limit_name ORDER BY version DESC) AS "from",
    rate IS NULL AS removed,
    jsonb_build_object('units', rate, 'window', (extract(epoch FROM window_size) * 1e9)::bigint) || shape AS rate,
    per_key, overrides, count_cost, coalesce(anchor, '') AS anchor, coalesce(proof, '') AS proof, coalesce(slack, '0') AS slack,
    coalesce(arrive_within, '0') AS arrive_within, coalesce(send_within, '0') AS send_within, coalesce(queues, '{}') AS queues,
    CASE WHEN first.id = 1 OR effective_from >= first.at THEN ARRAY(
        SELECT change FROM callq.call_audit
        WHERE what = 'limit' AND name = limit_name AND change !~ '^(paused|resumed)'
          AND at BETWEEN effective_from - interval '1 minute' AND effective_from + interval '1 minute') END AS audit
FROM callq.call_limit_versions
CROSS JOIN (SELECT min(at) AS at, min(id) AS id FROM callq.call_audit) first
ORDER BY limit_name COLLATE "C", version`

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

// String is the version in the audit's words.
func (r version) String() string {
	if r.Removed {
		return "removed"
	}
	return r.Rate.Describe(r.Counting)
}

// history is the versions of one limit, by their numbers.
type history []version

// at is the index of the version that was in force at t; -1: none yet.
func (h history) at(t time.Time) int {
	return sort.Search(len(h), func(i int) bool { return h[i].From.After(t) }) - 1
}

// during is the versions that were in force between from and to: the first is that of from, or else the limit's first.
func (h history) during(from, to time.Time) history {
	first := max(h.at(from), 0)
	return h[first : max(first, h.at(to))+1]
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
	const stepsSQL = `SELECT at, by FROM callq.call_clock_gains WHERE isfinite(at) ORDER BY id`
	steps, err := collect(ctx, v.tx, pgx.RowToStructByPos[limit.Gain], stepsSQL)
	if err != nil {
		return fmt.Errorf("how the clock was set: %w", err)
	}
	v.losses = slices.DeleteFunc(slices.Clone(steps), func(s limit.Gain) bool { return s.By > 0 })
	v.gains = slices.DeleteFunc(steps, func(s limit.Gain) bool { return s.By <= 0 })
	return nil
}

// shownTwice reports whether a clock that was set back may have shown t twice.
func shownTwice(losses []limit.Gain, t time.Time) bool {
	return slices.ContainsFunc(losses, func(l limit.Gain) bool { return !t.Before(l.At) && t.Before(l.At.Add(-l.By)) })
}

// limitsOf is the sorted names of the limits that a queue had at t.
func (v *verifier) limitsOf(queue string, t time.Time) (had []string) {
	for _, name := range v.limits[queue] {
		h := v.versions[name]
		if now := h.at(t); now >= 0 && !h[now].Removed && slices.Contains(h[now].Queues, queue) {
			had = append(had, name)
		}
	}
	return had
}

// checkVersions compares the versions of limits with each other, with the limits as they are, and with the audit, whose lines
// may go on with what versions do not have.
func (v *verifier) checkVersions(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(v.versions)) {
		for _, r := range v.versions[name] {
			said := slices.ContainsFunc(r.Audit, func(line string) bool { return strings.HasPrefix(line, r.String()) })
			if r.Audit != nil && !said {
				v.found(Violation{
					Rule: "a version of a limit is what the audit says", Limit: name,
					Detail: fmt.Sprintf("version %d is %s, and the audit of then says %q", r.Version, r, r.Audit),
				})
			}
		}
	}
	return v.check(ctx, versionGapsSQL, lastVersionSQL, queueLimitsSQL, gainsAreTimeSQL)
}

const versionGapsSQL = `
SELECT 'the versions of a limit have no gap' AS rule, limit_name AS "limit",
    format('versions %s to %s are missing', version + 1, next - 1) AS detail
FROM (SELECT limit_name, version, lead(version) OVER (PARTITION BY limit_name ORDER BY version) AS next FROM callq.call_limit_versions) c
WHERE next > version + 1
ORDER BY limit_name, version`

// lastVersionSQL compares the columns that a limit and its versions share. The version of a limit that was removed has no
// rate; the limit keeps its own, and no queues.
const lastVersionSQL = `
SELECT 'a limit is as its last version' AS rule, coalesce(l.name, c.limit_name) AS "limit",
    format('version %s is in force, unlike the last: %s', coalesce(l.version::text, 'none'), coalesce(c.version::text, 'none')) AS detail
FROM callq.call_limits l
FULL JOIN (SELECT DISTINCT ON (limit_name) * FROM callq.call_limit_versions ORDER BY limit_name, version DESC) c ON c.limit_name = l.name
WHERE (l.version, CASE WHEN c.rate IS NOT NULL OR l.queues <> '{}' THEN l.rate END, l.window_size, l.shape, l.per_key, l.overrides,
        l.count_cost, l.anchor, l.slack, l.proof, l.arrive_within, l.send_within, l.queues)
    IS DISTINCT FROM (c.version, c.rate, c.window_size, c.shape, c.per_key, c.overrides,
        c.count_cost, c.anchor, c.slack, c.proof, c.arrive_within, c.send_within, c.queues)
ORDER BY 2`

const queueLimitsSQL = `
SELECT 'a queue has the limits that count it' AS rule,
    format('queue %s has the limits %s, and is counted by %s', q.name, q.limits, c.limits) AS detail
FROM callq.call_queues q
CROSS JOIN LATERAL (SELECT coalesce(array_agg(l.name), '{}') AS limits FROM callq.call_limits l WHERE l.queues @> ARRAY[q.name]) c
WHERE NOT (q.limits @> c.limits AND c.limits @> q.limits)
ORDER BY q.name`

const gainsAreTimeSQL = `
SELECT 'what the clock gained is time' AS rule, format('at %s it gained %s', at, by) AS detail
FROM callq.call_clock_gains WHERE by = '0' OR NOT isfinite(at) ORDER BY id`
