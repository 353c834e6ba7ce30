package verify

import (
	"context"

	"github.com/jackc/pgx/v5"
)

func (v *verifier) count(ctx context.Context) error {
	const sql = `SELECT count(*), clock_timestamp() FROM call_queue q WHERE ` + verified
	return v.tx.QueryRow(ctx, sql, pgx.NamedArgs{"since": v.since}).Scan(&v.report.Calls, &v.now)
}

// verified selects the calls q to verify.
const verified = `(@since::timestamptz IS NULL OR q.created_at >= @since OR q.dispatched_at >= @since OR q.finished_at >= @since
        OR q.status NOT IN ('done', 'failed', 'cancelled'))`

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
        WHEN a.outcome NOT IN ('done', 'error', 'permanent', 'lost', 'not_sent', 'snoozed', 'cancelled') THEN
            '"' || a.outcome || '" is no outcome'
        WHEN a.outcome IN ('done', 'snoozed') AND a.started_at IS NULL THEN 'it is ' || a.outcome || ', and never started'
        WHEN a.outcome IN ('done', 'snoozed') AND a.task = 'http' AND coalesce(a.requests, 0) = 0 THEN
            'it is ' || a.outcome || ', and no request is known to have been sent'
        WHEN a.started_at < a.claimed_at THEN 'it started at ' || a.started_at || ', before its claim at ' || a.claimed_at
        WHEN a.settled < 0 THEN 'it settled ' || a.settled || ' units'
        END] AS breaks
    FROM call_attempts a
    LEFT JOIN call_open o ON o.call_id = a.call_id AND o.attempt = a.attempt
    WHERE @since::timestamptz IS NULL OR a.finished_at >= @since
    OFFSET 0
) b
CROSS JOIN unnest(ARRAY[
    'an attempt is open or in the ledger, not both', 'the times of an attempt are moments',
    'an attempt sends at most one request', 'what is said of an attempt fits its outcome'
], b.breaks) AS f (rule, detail)
WHERE array_remove(b.breaks, NULL) <> '{}' AND f.detail IS NOT NULL
ORDER BY 2, 3`

// A start writes all of its columns at once.
const startedSQL = `
SELECT 'an open attempt has started, or has not' AS rule, call_id, attempt,
    'of the time, token, worker and deadline of its start it has some and lacks some' AS detail
FROM call_open
WHERE num_nulls(started_at, token, worker, deadline) NOT IN (0, 4)
ORDER BY call_id`

// callsSQL leaves out attempts of former calls with the same id, which are numbered from 0 down. When an operator retries a
// call, its first retried_after attempts stop counting: last is the last attempt that counts, if any.
const callsSQL = `
WITH known AS (
    SELECT a.call_id, count(DISTINCT a.attempt) AS n, min(a.attempt) AS first, max(a.attempt) AS last,
        count(*) FILTER (WHERE a.outcome IN ('error', 'permanent', 'lost') AND a.attempt > coalesce(q.retried_after, 0)) AS failed,
        bool_or(a.outcome = 'done' AND a.attempt > coalesce(q.retried_after, 0)) AS done
    FROM (
        SELECT call_id, attempt, outcome FROM call_attempts WHERE attempt > 0
        UNION ALL
        SELECT call_id, attempt, NULL FROM call_open
    ) a
    JOIN call_queue q ON q.id = a.call_id
    WHERE ` + verified + `
    GROUP BY a.call_id
)
SELECT f.rule, b.call_id, b.attempt, f.detail
FROM (
    SELECT q.id AS call_id, q.attempts AS attempt, ARRAY[
        CASE WHEN q.attempts <> coalesce(k.n, 0) OR k.first <> 1 OR k.last <> q.attempts THEN
            format('the call counts %s attempts, and %s are known', q.attempts, coalesce(k.n, 0))
                || coalesce(' (' || k.first || ' to ' || k.last || ')', '')
        END,
        CASE WHEN q.failed_count <> coalesce(k.failed, 0) THEN
            format('failed_count is %s, and %s attempts failed', q.failed_count, coalesce(k.failed, 0))
        END,
        CASE WHEN q.retried_after NOT BETWEEN 0 AND q.attempts THEN
            format('it was retried after attempt %s of %s', q.retried_after, q.attempts)
        END,
        ` + brokenStatus + `,
        ` + brokenTimes + `
    ] AS breaks
    FROM call_queue q
    LEFT JOIN known k ON k.call_id = q.id
    LEFT JOIN call_open o ON o.call_id = q.id AND o.attempt = q.attempts
    LEFT JOIN call_attempts a ON a.call_id = q.id AND a.attempt = q.attempts AND q.attempts > 0
    CROSS JOIN LATERAL (SELECT CASE WHEN q.attempts > coalesce(q.retried_after, 0) THEN a.outcome END AS outcome) last
    WHERE ` + verified + `
    OFFSET 0
) b
CROSS JOIN unnest(ARRAY[
    'the attempts of a call have no gap and are as many as its counter says',
    'failed_count is the number of attempts that failed', 'a call was retried after attempts that it had',
    'the status of a call fits its attempts', 'a call was dispatched and ended when its last attempt was'
], b.breaks) AS f (rule, detail)
WHERE array_remove(b.breaks, NULL) <> '{}' AND f.detail IS NOT NULL
ORDER BY 2`

// brokenStatus allows what needs no attempt: a waiting call may expire or be impossible to make, and an import may insert
// ended calls.
const brokenStatus = `CASE
WHEN q.status NOT IN ('new', 'dispatched', 'done', 'error', 'failed', 'cancelled') THEN
    format('the call is "%s", which is no status', q.status)
WHEN q.status = 'done' AND k.done IS NOT TRUE THEN 'the call is done, and no attempt is'
WHEN q.status = 'dispatched' AND o.call_id IS NULL THEN 'the call is dispatched, and no attempt is open'
WHEN q.status IN ('new', 'error', 'done', 'failed') AND o.call_id IS NOT NULL THEN
    format('the call is %s, and an attempt is open', q.status)
WHEN q.status IN ('new', 'error', 'failed', 'dispatched') AND k.done THEN
    format('the call is %s, and an attempt is done', q.status)
WHEN q.status = 'error' AND (q.attempts <= coalesce(q.retried_after, 0) OR last.outcome NOT IN ('error', 'lost')) THEN
    'the call is to be retried, and its last attempt was ' || coalesce(last.outcome, 'none')
WHEN q.status IN ('new', 'done') AND last.outcome NOT IN ('not_sent', 'snoozed', 'done') THEN
    format('the call is %s, and its last attempt was %s', q.status, last.outcome)
WHEN q.attempts > 0 AND q.status IN ('done', 'failed') AND q.finished_at IS NULL
    OR q.attempts > 0 AND q.status = 'failed' AND q.failed_at IS NULL THEN
    format('the call is %s, and nothing says since when', q.status)
END`

// brokenTimes compares times that one statement wrote into the call and into the ledger. A failed call may have failed
// later, while it waited.
const brokenTimes = `CASE
WHEN q.attempts = 0 AND q.dispatched_at IS NOT NULL THEN format('it was dispatched at %s, and has no attempts', q.dispatched_at)
WHEN q.dispatched_at IS DISTINCT FROM coalesce(a.claimed_at, o.claimed_at) AND num_nulls(a.call_id, o.call_id) = 1 THEN
    format('it was dispatched at %s, and its last attempt at %s',
        coalesce(q.dispatched_at::text, 'no time'), coalesce(a.claimed_at, o.claimed_at))
WHEN (q.status IN ('done', 'error') OR q.status = 'failed' AND a.outcome = 'permanent') AND last.outcome IS NOT NULL
    AND q.finished_at IS DISTINCT FROM a.finished_at THEN
    format('it ended at %s, and its last attempt at %s', coalesce(q.finished_at::text, 'no time'), a.finished_at)
END`
