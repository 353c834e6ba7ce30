package verify

import "context"

// checkUsage compares the usage that claims read with the charges, unless some charges cannot be read, which is found as it is.
func (v *verifier) checkUsage(ctx context.Context) error {
	if v.unreadable {
		return nil
	}
	return v.check(ctx, usageSQL)
}

// usageSQL compares each limit's last window, in the buckets that claims keep. When a limit changes, callq counts anew, as the
// limit counts now, what its queues sent before complete_since. Soon after that, call_usage may have more (fresh), from former
// queues, windows or forms.
const usageSQL = `
WITH l AS (
    SELECT name, queues, per_key, count_cost, complete_since, extract(epoch FROM coalesce(bucket_width, window_size / 200)) AS width,
        @now::timestamptz - window_size AS "from",
        greatest(applied_at, known_at) > @now::timestamptz - 2 * window_size - interval '1 minute' AS fresh
    FROM call_limits
    WHERE complete_since IS NOT NULL AND window_size > '0'
), sent AS ( -- may count yet
    SELECT queue, key, coalesce(settled, cost) AS reported, arrived_by, finished_at,
        jsonb_path_query_array(charged, '$[*] ? (@.type() == "object")') AS charged
    FROM call_attempts a
    WHERE arrived_by > (SELECT min("from" - 2 * width * interval '1 s') FROM l) AND NOT ` + timeless + `
), charges AS ( -- as they were made, or in queues that a limit was given later
    SELECT c."limit" AS name, s.key AS own, s.reported, s.finished_at, c.key, c.cost, coalesce(c.until, s.arrived_by) AS until
    FROM sent s
    CROSS JOIN LATERAL jsonb_to_recordset(s.charged) AS c ("limit" text, key text, cost bigint, until timestamptz)
    UNION ALL
    SELECT q.name, s.key, s.reported, s.finished_at, NULL, NULL, s.arrived_by
    FROM sent s
    JOIN (SELECT name, complete_since, unnest(queues) AS queue FROM l) q ON q.queue = s.queue AND s.finished_at <= q.complete_since
    WHERE NOT s.charged @> jsonb_build_array(jsonb_build_object('limit', q.name))
), units AS (
    SELECT name, 0 AS used,
        CASE WHEN finished_at > complete_since THEN coalesce(key, '') WHEN per_key THEN own ELSE '' END AS key,
        CASE WHEN finished_at > complete_since THEN coalesce(cost, 0) WHEN count_cost THEN reported ELSE 1 END AS charged
    FROM charges JOIN l USING (name)
    WHERE (floor(extract(epoch FROM until) / width) + 1) * width > extract(epoch FROM "from")
    UNION ALL
    SELECT l.name, u.used, u.key, 0 FROM call_usage u JOIN l ON l.name = u.limit_name AND u.bucket > l."from"
)
SELECT 'the usage of a limit is what its attempts were charged' AS rule, name AS "limit",
    format('usage of the last window is %s, and %s units were charged', t.used, t.charged)
        || CASE WHEN t.key <> '' THEN ' to key ' || t.key ELSE '' END AS detail
FROM (SELECT name, key, sum(used) AS used, sum(charged) AS charged FROM units GROUP BY 1, 2) t
JOIN l USING (name)
WHERE t.used <> t.charged AND NOT (l.fresh AND t.used > t.charged)
ORDER BY name COLLATE "C", t.key COLLATE "C"`
