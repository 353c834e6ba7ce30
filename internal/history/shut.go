package history

// shutSQL is for how many seconds of the minute limits were closed, by cause. What is closed still, or was until its time was over, is in
// call_pauses. What was opened within the minute is there no more; the rest says when that was:
//
//   - The audit has when a limit was closed, paused and resumed. Of one that is closed again and again it has a closing a minute.
//   - In between, a limit that has such an entry was closed from a refused attempt until the next that started: the refused call
//     waits, and goes once it may. The ledger has both.
//
// The audit is read from its end: it has no index on times. Its times until are cut to seconds. Keys that were closed alone do not count.
const shutSQL = `audited AS (
    SELECT name, at, change, CASE WHEN cause <> '' THEN CASE WHEN until <> '' THEN greatest(until::timestamptz, at + interval '1 ms') ELSE 'infinity' END END AS until,
        nullif(cause, '') AS cause, lead(at, 1, 'infinity') OVER (PARTITION BY name ORDER BY id) AS next_at
    FROM (
        SELECT id, name, at, change, coalesce(substring(change FROM ' until (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)'), '') AS until,
            CASE WHEN starts_with(change, 'closed') THEN 'refused' WHEN starts_with(change, 'paused') THEN 'paused' ELSE '' END AS cause
        FROM (SELECT * FROM callq.call_audit ORDER BY id DESC LIMIT 5000) last
        WHERE what = 'limit' AND change ~ '^(closed|paused|resumed)( until \S+)?(:|$)'
    ) a
), closing AS (
    SELECT DISTINCT name FROM audited
    WHERE cause = 'refused' AND at >= $1::timestamptz - interval '2 minutes' AND at < $1::timestamptz + interval '1 minute'
), moved AS (
    SELECT name, m.at, m.starts
    FROM (
        SELECT c."limit" AS name, a.started_at, CASE a.outcome WHEN 'refused' THEN a.finished_at END AS refused_at
        FROM public.call_attempts a CROSS JOIN LATERAL jsonb_to_recordset(a.charged) AS c ("limit" text)
        WHERE a.finished_at >= $1::timestamptz - interval '1 minute' AND EXISTS (SELECT FROM closing) -- else it reads none
        UNION ALL
        SELECT u.name, o.started_at, NULL FROM callq.call_open o CROSS JOIN LATERAL unnest(o.limits) AS u (name) WHERE o.batch >= $2
    ) s
    CROSS JOIN LATERAL (VALUES (started_at, true), (refused_at, false)) AS m (at, starts)
    WHERE name IN (SELECT name FROM closing) AND m.at >= $1::timestamptz - interval '1 minute'
), refused AS (
    SELECT name, at, min(at) FILTER (WHERE starts) OVER (PARTITION BY name ORDER BY at DESC) AS until, starts FROM moved
), shut AS (
    SELECT name, jsonb_object_agg(cause, seconds) AS causes
    FROM (
        SELECT name, cause, ceil(sum(extract(epoch FROM upper(r) - lower(r))))::int AS seconds
        FROM (
            SELECT name, cause, range_agg(tstzrange(at, until) * tstzrange($1, $1::timestamptz + interval '1 minute')) AS spells
            FROM (
                SELECT name, CASE WHEN spell IS NULL THEN 'paused' ELSE 'refused' END AS cause, at, until
                FROM callq.call_pauses WHERE what = 'limit' AND key = '' AND until > at
                UNION ALL
                SELECT name, cause, at, least(until, next_at) FROM audited WHERE cause IS NOT NULL AND next_at > at -- the clock may have been set back
                UNION ALL
                SELECT r.name, 'refused', r.at, least(r.until, a.next_at)
                FROM refused r
                JOIN audited a ON a.name = r.name AND a.at <= r.at AND a.next_at > r.at
                WHERE NOT r.starts AND r.until IS NOT NULL AND a.cause = 'refused' AND a.at > r.at - interval '62 seconds'
            ) p
            GROUP BY name, cause
        ) s CROSS JOIN LATERAL unnest(spells) AS r
        GROUP BY name, cause
    ) p
    WHERE seconds > 0
    GROUP BY name
)`
