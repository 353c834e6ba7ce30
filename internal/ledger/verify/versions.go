package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// checkVersions compares the versions of limits with each other, with the limits as they are, and with the audit.
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

// lastVersionSQL compares the columns that a limit and its versions share. The version of a limit that was removed has no
// rate; the limit keeps its own, and no queues.
const lastVersionSQL = `
WITH last AS (
    SELECT DISTINCT ON (limit_name) limit_name, version, rate, to_jsonb(c) AS has FROM call_limit_versions c ORDER BY limit_name, version DESC
)
SELECT coalesce(l.name, c.limit_name) AS limit_name, CASE
    WHEN l.name IS NULL THEN 'it is gone, and version ' || c.version || ' is its last'
    WHEN c.limit_name IS NULL THEN 'it has no version'
    ELSE 'version ' || l.version || ' is in force, and version ' || c.version || ' the last; they differ in ' || d.differ END AS detail
FROM call_limits l
FULL JOIN last c ON c.limit_name = l.name
CROSS JOIN LATERAL (
    SELECT string_agg(replace(f.name, '_size', ''), ', ' ORDER BY f.place) AS differ
    FROM unnest('{version,rate,window_size,shape,per_key,overrides,count_cost,anchor,slack,send_within,queues}'::text[])
        WITH ORDINALITY AS f (name, place)
    WHERE CASE WHEN f.name = 'rate' AND c.rate IS NULL THEN l.queues <> '{}' ELSE to_jsonb(l) -> f.name IS DISTINCT FROM c.has -> f.name END
) d
WHERE l.name IS NULL OR c.limit_name IS NULL OR d.differ IS NOT NULL
ORDER BY 1`

const queueLimitsSQL = `
SELECT 'queue ' || q.name || ' has the limits ' || q.limits::text || ', and is counted by ' || c.limits::text AS detail
FROM call_queues q
CROSS JOIN LATERAL (SELECT coalesce(array_agg(l.name), '{}') AS limits FROM call_limits l WHERE l.queues @> ARRAY[q.name]) c
WHERE NOT (q.limits @> c.limits AND c.limits @> q.limits)
ORDER BY q.name`

const gainsAreTimeSQL = `
SELECT 'at ' || at || ' it gained ' || by AS detail FROM call_clock_gains WHERE by = '0' OR NOT isfinite(at) ORDER BY id`

// checkAudit compares each version with the audit, as far back as the audit reaches.
func (v *verifier) checkAudit(ctx context.Context) error {
	type change struct {
		limit   string
		version int64
	}
	rows, err := v.tx.Query(ctx, auditSQL)
	if err != nil {
		return fmt.Errorf("the audit: %w", err)
	}
	audited := map[change][]string{}
	var of change
	var lines []string
	if _, err := pgx.ForEachRow(rows, []any{&of.limit, &of.version, &lines}, func() error {
		audited[of] = lines
		return nil
	}); err != nil {
		return fmt.Errorf("the audit: %w", err)
	}
	for _, name := range sortedKeys(v.policy.versions) {
		for _, r := range v.policy.versions[name] {
			if lines, reaches := audited[change{name, r.Version}]; reaches && !slices.ContainsFunc(lines, r.isIn) {
				v.found("a version of a limit is what the audit says", Violation{
					Limit: name, Detail: fmt.Sprintf("version %d is %s, and the audit of then says %q", r.Version, r, lines),
				})
			}
		}
	}
	return nil
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
GROUP BY 1, 2`

const removed = "removed"

// String is the version in the audit's words.
func (r version) String() string {
	if r.Removed {
		return removed
	}
	return r.inForce().Describe(limit.Counting{
		PerKey: r.PerKey, Overrides: r.Overrides, ByCost: r.CountCost, Anchor: r.Anchor, Slack: r.Slack, SendWithin: r.SendWithin,
	})
}

// isIn reports whether a line of the audit describes the version. The line may go on with what versions do not have.
func (r version) isIn(line string) bool { return strings.HasPrefix(line, r.String()) }
