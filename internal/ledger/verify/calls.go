package verify

import "context"

// timeless selects the attempts a of which a time is infinite.
const timeless = `('infinity' IN (a.claimed_at, a.started_at, a.arrived_by, a.finished_at)
        OR '-infinity' IN (a.claimed_at, a.started_at, a.arrived_by, a.finished_at)) IS TRUE`

// checkCalls finds the attempts that contradict themselves, and the calls that their attempts contradict.
func (v *verifier) checkCalls(ctx context.Context) error {
	return v.check(ctx, endedSQL, startedSQL, callsSQL)
}

// endedSQL and callsSQL compute of each row what breaks each rule, in the rules' order. OFFSET 0 makes that once a row.
const endedSQL = `
SELECT f.rule, b.call_id, b.attempt, f.detail
FROM (
    SELECT a.call_id, a.attempt, ARRAY[
        CASE WHEN o.call_id IS NOT NULL THEN 'it is in call_open and in call_attempts' END,
        CASE WHEN ` + timeless + ` THEN 'one of its times is infinite' END,
        CASE WHEN a.requests NOT IN (0, 1) THEN a.requests || ' requests were sent' END,
        CASE
        WHEN a.outcome NOT IN ('done', 'error', 'permanent', 'lost', 'not_sent', 'snoozed', 'refused', 'cancelled') THEN
            '"' || a.outcome || '" is no outcome'
        WHEN a.outcome IN ('done', 'snoozed', 'refused') AND a.started_at IS NULL THEN 'it is ' || a.outcome || ', and never started'
        WHEN a.outcome IN ('done', 'snoozed', 'refused') AND a.task = 'http' AND coalesce(a.requests, 0) = 0 THEN
            'it is ' || a.outcome || ', and no request is known to have been sent'
        WHEN a.started_at < a.claimed_at THEN 'it started at ' || a.started_at || ', before its claim at ' || a.claimed_at
        WHEN a.settled < 0 THEN 'it settled ' || a.settled || ' units'
        END,
        CASE
        WHEN a.arrived_by IS NULL AND a.charged <> '[]' THEN 'it is charged, and is said never to have been sent'
        WHEN a.arrived_by IS NULL AND (a.outcome IN ('done', 'lost', 'snoozed', 'refused') OR a.requests > 0
            OR a.outcome IN ('error', 'permanent') AND a.started_at IS NOT NULL AND (a.task <> 'http' OR a.requests IS NULL)) THEN
            'it may have been sent, and is charged nothing'
        WHEN a.arrived_by IS NOT NULL AND (a.outcome = 'not_sent' OR a.task = 'http' AND a.requests = 0) THEN
            'it was not sent, and is said to have arrived'
        WHEN a.task = 'http' AND a.arrived_by < coalesce(a.started_at, a.claimed_at) AND NOT EXISTS (
            -- The clock was set back meanwhile, and by as much. Dispatchers saw it soon after.
            SELECT FROM callq.call_clock_gains s
            WHERE coalesce(a.started_at, a.claimed_at) - a.arrived_by <= -s.by
                AND coalesce(a.started_at, a.claimed_at) < s.at - s.by AND a.arrived_by > s.at - interval '1 minute') THEN
            'it arrived before it started'
        END] AS breaks
    FROM public.call_attempts a
    LEFT JOIN callq.call_open o ON o.call_id = a.call_id AND o.attempt = a.attempt
    WHERE @since::timestamptz IS NULL OR a.finished_at >= @since
    OFFSET 0
) b
CROSS JOIN unnest(ARRAY[
    'an attempt is open or in the ledger, not both', 'the times of an attempt are moments',
    'an attempt sends at most one request', 'what is said of an attempt fits its outcome', '` + chargedRule + `'
], b.breaks) AS f (rule, detail)
WHERE array_remove(b.breaks, NULL) <> '{}' AND f.detail IS NOT NULL
ORDER BY 2, 3`

// A start writes all of its columns at once. One of a run has its worker before that.
const startedSQL = `
SELECT 'an open attempt has started, or has not' AS rule, call_id, attempt, detail
FROM callq.call_open
CROSS JOIN LATERAL (SELECT CASE
    WHEN num_nulls(started_at, token, worker, deadline) NOT IN (0, 4) AND NOT (rooms IS NOT NULL AND started_at IS NULL AND deadline IS NULL
        AND num_nulls(token, worker) = 0) THEN
        'of the time, token, worker and deadline of its start it has some and lacks some'
    WHEN started_at < claimed_at THEN format('it started at %s, before its claim at %s', started_at, claimed_at)
    WHEN least(acked_at, overtaken_at) < coalesce(started_at, claimed_at) THEN
        format('its request was acknowledged, or overtaken, at %s, before its start', least(acked_at, overtaken_at))
    END AS detail) d
WHERE detail IS NOT NULL
ORDER BY call_id`

// callsSQL leaves out attempts of former calls with the same id, which are numbered from 0 down, and were claimed before this one was created. When an operator retries a
// call, its first retried_after attempts stop counting: last is the last attempt that counts, if any.
const callsSQL = `
WITH verified AS NOT MATERIALIZED ( -- as beginSQL counts them
    SELECT * FROM public.call_queue
    WHERE @since::timestamptz IS NULL OR created_at >= @since OR dispatched_at >= @since OR finished_at >= @since
       OR status NOT IN ('done', 'failed', 'cancelled')
), known AS (
    SELECT a.call_id, count(DISTINCT a.attempt) AS n, min(a.attempt) AS first, max(a.attempt) AS last,
        count(*) FILTER (WHERE a.outcome IN ('error', 'permanent', 'lost') AND a.attempt > coalesce(q.retried_after, 0)) AS failed,
        bool_or(a.outcome = 'done' AND a.attempt > coalesce(q.retried_after, 0)) AS done
    FROM (
        SELECT call_id, attempt, outcome FROM public.call_attempts WHERE attempt > 0
        UNION ALL
        SELECT call_id, attempt, NULL FROM callq.call_open
    ) a
    JOIN verified q ON q.id = a.call_id
    GROUP BY a.call_id
)
SELECT f.rule, b.call_id, b.attempt, f.detail
FROM (
    SELECT q.id AS call_id, q.attempts AS attempt, ARRAY[
        CASE WHEN q.attempts <> coalesce(k.n, 0) OR k.first <> 1 OR k.last <> q.attempts THEN
            format('attempts that the call counts: %s; that are known: %s', q.attempts, coalesce(k.n, 0))
                || coalesce(' (' || k.first || ' to ' || k.last || ')', '')
        WHEN EXISTS (SELECT FROM public.call_attempts f WHERE f.call_id = q.id AND f.attempt < 1 AND f.claimed_at > q.created_at)
            AND NOT EXISTS (SELECT FROM callq.call_clock_gains WHERE by < '0') THEN
            'an attempt of it is numbered as one of a former call: its attempts were set back by hand, and it was made again'
        END,
        CASE WHEN q.failed_count <> coalesce(k.failed, 0) THEN
            format('failed_count is %s, and attempts that failed: %s', q.failed_count, coalesce(k.failed, 0))
        END,
        CASE WHEN q.retried_after NOT BETWEEN 0 AND q.attempts THEN
            format('it was retried after attempt %s of %s', q.retried_after, q.attempts)
        END,
        -- What needs no attempt is allowed: a waiting call may expire or be impossible to make, and an import may insert ended calls.
        CASE
        WHEN coalesce(q.status, '') NOT IN ('new', 'dispatched', 'done', 'error', 'failed', 'cancelled') THEN
            format('the call is "%s", which is no status', q.status)
        WHEN q.status IN ('done', 'failed', 'cancelled') AND q.unique_key IS NOT NULL THEN
            format('the call is %s, and holds its unique key: no other can have that', q.status)
        WHEN q.status = 'done' AND k.done IS NOT TRUE THEN 'the call is done, and no attempt is'
        WHEN q.status = 'dispatched' AND o.call_id IS NULL THEN 'the call is dispatched, and no attempt is open'
        WHEN q.status IN ('new', 'error', 'done', 'failed') AND o.call_id IS NOT NULL THEN
            format('the call is %s, and an attempt is open', q.status)
        WHEN q.status IN ('new', 'error', 'failed', 'dispatched') AND k.done THEN
            format('the call is %s, and an attempt is done', q.status)
        WHEN q.status = 'error' AND (q.attempts <= coalesce(q.retried_after, 0) OR last.outcome NOT IN ('error', 'lost')) THEN
            'the call is to be retried, and its last attempt was ' || coalesce(last.outcome, 'none')
        WHEN q.status IN ('new', 'done') AND last.outcome NOT IN ('not_sent', 'snoozed', 'refused', 'done') THEN
            format('the call is %s, and its last attempt was %s', q.status, last.outcome)
        WHEN q.attempts > 0 AND q.status IN ('done', 'failed') AND q.finished_at IS NULL
            OR q.attempts > 0 AND q.status = 'failed' AND q.failed_at IS NULL THEN
            format('the call is %s, and nothing says since when', q.status)
        END,
        -- One statement writes these times into the call and into the ledger. A failed call may have failed later, while it waited.
        CASE
        WHEN q.attempts = 0 AND q.dispatched_at IS NOT NULL THEN format('it was dispatched at %s, and has no attempts', q.dispatched_at)
        WHEN q.dispatched_at IS DISTINCT FROM coalesce(a.claimed_at, o.claimed_at) AND num_nulls(a.call_id, o.call_id) = 1 THEN
            format('it was dispatched at %s, and its last attempt at %s',
                coalesce(q.dispatched_at::text, 'no time'), coalesce(a.claimed_at, o.claimed_at))
        WHEN (q.status IN ('done', 'error') OR q.status = 'failed' AND a.outcome = 'permanent') AND last.outcome IS NOT NULL
            AND q.finished_at IS DISTINCT FROM a.finished_at THEN
            format('it ended at %s, and its last attempt at %s', coalesce(q.finished_at::text, 'no time'), a.finished_at)
        END
    ] AS breaks
    FROM verified q
    LEFT JOIN known k ON k.call_id = q.id
    LEFT JOIN callq.call_open o ON o.call_id = q.id AND o.attempt = q.attempts
    LEFT JOIN public.call_attempts a ON a.call_id = q.id AND a.attempt = q.attempts AND q.attempts > 0
    CROSS JOIN LATERAL (SELECT CASE WHEN q.attempts > coalesce(q.retried_after, 0) THEN a.outcome END AS outcome) last
    OFFSET 0
) b
CROSS JOIN unnest(ARRAY[
    'the attempts of a call have no gap and are as many as its counter says',
    'failed_count is the number of attempts that failed', 'a call was retried after attempts that it had',
    'the status of a call fits its attempts', 'a call was dispatched and ended when its last attempt was'
], b.breaks) AS f (rule, detail)
WHERE array_remove(b.breaks, NULL) <> '{}' AND f.detail IS NOT NULL
ORDER BY 2`

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
    SELECT name, queues, per_key, count_cost, complete_since, extract(epoch FROM bucket_width) AS width,
        @now::timestamptz - window_size AS "from",
        greatest(applied_at, known_at) > @now::timestamptz - 2 * window_size - interval '1 minute' AS fresh
    FROM callq.call_limits
    WHERE complete_since IS NOT NULL AND window_size > '0'
), sent AS ( -- may count yet
    SELECT queue, key, coalesce(settled, cost) AS reported, arrived_by, finished_at,
        jsonb_path_query_array(charged, '$[*] ? (@.type() == "object")') AS charged
    FROM public.call_attempts a
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
    SELECT l.name, u.used, u.key, 0 FROM callq.call_usage u JOIN l ON l.name = u.limit_name AND u.bucket > l."from"
)
SELECT 'the usage of a limit is what its attempts were charged' AS rule, name AS "limit",
    format('usage of the last window is %s, and the charges are %s', t.used, t.charged)
        || CASE WHEN t.key <> '' THEN ' to key ' || t.key ELSE '' END AS detail
FROM (SELECT name, key, sum(used) AS used, sum(charged) AS charged FROM units GROUP BY 1, 2) t
JOIN l USING (name)
WHERE t.used <> t.charged AND NOT (l.fresh AND t.used > t.charged)
ORDER BY name COLLATE "C", t.key COLLATE "C"`
