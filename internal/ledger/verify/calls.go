package verify

import "context"

func (v *verifier) count(ctx context.Context) error {
	return v.tx.QueryRow(ctx, countSQL, v.since).Scan(&v.report.Calls, &v.now)
}

const countSQL = `SELECT count(*), clock_timestamp() FROM call_queue q WHERE ` + verified

// verified selects the calls q to verify: $1 is Options.Since.
const verified = `($1::timestamptz IS NULL OR q.created_at >= $1 OR q.dispatched_at >= $1 OR q.finished_at >= $1
        OR q.status NOT IN ('done', 'failed', 'cancelled'))`

// checkCalls finds the calls that their attempts contradict.
func (v *verifier) checkCalls(ctx context.Context) error {
	return v.check(ctx, []rule{
		{"an attempt is open or in the ledger, not both", bothSQL},
		{"the times of an attempt are moments", timelessSQL},
		{"an open attempt has started, or has not", startedSQL},
		{"the attempts of a call have no gap and are as many as its counter says", gapsSQL},
		{"failed_count is the number of attempts that failed", failedCountSQL},
		{"a call was retried after attempts that it had", retriedSQL},
		{"the status of a call fits its attempts", statusSQL},
		{"a call was dispatched and ended when its last attempt was", timesSQL},
	}, v.since, maxFindings)
}

const bothSQL = `
SELECT call_id, attempt, 'it is in call_open and in call_attempts' AS detail
FROM call_open JOIN call_attempts USING (call_id, attempt)
WHERE $1::timestamptz IS NULL OR finished_at >= $1
ORDER BY call_id LIMIT $2`

const (
	timeless    = `('infinity' IN (claimed_at, started_at, arrived_by, finished_at) OR '-infinity' IN (claimed_at, started_at, arrived_by, finished_at)) IS TRUE`
	timelessSQL = `
SELECT call_id, attempt, 'one of its times is infinite' AS detail
FROM call_attempts
WHERE ($1::timestamptz IS NULL OR finished_at >= $1) AND ` + timeless + ` ORDER BY call_id LIMIT $2`
)

// A start writes all of its columns at once.
const startedSQL = `
SELECT call_id, attempt, 'of the time, token, worker and deadline of its start it has some and lacks some' AS detail
FROM call_open
WHERE num_nulls(started_at, token, worker, deadline) NOT IN (0, 4) AND ($1::timestamptz IS NULL OR true)
ORDER BY call_id LIMIT $2`

// gapsSQL leaves out attempts of former calls with the same id, which are numbered from 0 down.
const gapsSQL = `
WITH rows AS (
    SELECT call_id, attempt FROM call_attempts WHERE attempt > 0 UNION ALL SELECT call_id, attempt FROM call_open
), known AS (
    SELECT call_id, count(DISTINCT attempt) AS n, min(attempt) AS first, max(attempt) AS last
    FROM rows JOIN call_queue q ON q.id = rows.call_id
    WHERE ` + verified + `
    GROUP BY call_id
)
SELECT q.id AS call_id, q.attempts AS attempt,
    'the call counts ' || q.attempts || ' attempts, and ' || coalesce(k.n, 0) || ' are known'
        || coalesce(' (' || k.first || ' to ' || k.last || ')', '') AS detail
FROM call_queue q LEFT JOIN known k ON k.call_id = q.id
WHERE (q.attempts <> coalesce(k.n, 0) OR k.first <> 1 OR k.last <> q.attempts) AND ` + verified + `
ORDER BY q.id LIMIT $2`

// When an operator retries a call, its first retried_after attempts stop counting.
const failedCountSQL = `
WITH failed AS (
    SELECT a.call_id, count(*) AS n
    FROM call_attempts a JOIN call_queue q ON q.id = a.call_id AND a.attempt > coalesce(q.retried_after, 0)
    WHERE a.outcome IN ('error', 'permanent', 'lost') AND ` + verified + `
    GROUP BY a.call_id
)
SELECT q.id AS call_id, 'failed_count is ' || q.failed_count || ', and ' || coalesce(f.n, 0) || ' attempts failed' AS detail
FROM call_queue q LEFT JOIN failed f ON f.call_id = q.id
WHERE q.failed_count <> coalesce(f.n, 0) AND ` + verified + `
ORDER BY q.id LIMIT $2`

const retriedSQL = `
SELECT id AS call_id, attempts AS attempt, 'it was retried after attempt ' || retried_after || ' of ' || attempts AS detail
FROM call_queue q WHERE retried_after NOT BETWEEN 0 AND attempts AND ` + verified + ` ORDER BY id LIMIT $2`

// statusSQL allows what needs no attempt: a waiting call may expire or be impossible to make, and an import may
// insert ended calls. last is the last attempt that counts; none if the call was retried after it.
const statusSQL = `
WITH done AS (
    SELECT DISTINCT a.call_id
    FROM call_attempts a JOIN call_queue q ON q.id = a.call_id AND a.attempt > coalesce(q.retried_after, 0)
    WHERE a.outcome = 'done' AND ` + verified + `
), calls AS (
    SELECT q.id, q.attempts, CASE
        WHEN q.status NOT IN ('new', 'dispatched', 'done', 'error', 'failed', 'cancelled') THEN 'the call is "' || q.status || '", which is no status'
        WHEN q.status = 'done' AND d.call_id IS NULL THEN 'the call is done, and no attempt is'
        WHEN q.status = 'dispatched' AND o.call_id IS NULL THEN 'the call is dispatched, and no attempt is open'
        WHEN q.status IN ('new', 'error', 'done', 'failed') AND o.call_id IS NOT NULL THEN 'the call is ' || q.status || ', and an attempt is open'
        WHEN q.status IN ('new', 'error', 'failed', 'dispatched') AND d.call_id IS NOT NULL THEN 'the call is ' || q.status || ', and an attempt is done'
        WHEN q.status = 'error' AND (q.attempts <= coalesce(q.retried_after, 0) OR last.outcome NOT IN ('error', 'lost')) THEN
            'the call is to be retried, and its last attempt was ' || coalesce(last.outcome, 'none')
        WHEN q.status IN ('new', 'done') AND last.outcome NOT IN ('not_sent', 'snoozed', 'done') THEN
            'the call is ' || q.status || ', and its last attempt was ' || last.outcome
        WHEN q.status IN ('done', 'failed') AND q.attempts > 0 AND (q.finished_at IS NULL OR q.status = 'failed' AND q.failed_at IS NULL) THEN
            'the call is ' || q.status || ', and nothing says since when'
        END AS detail
    FROM call_queue q
    LEFT JOIN done d ON d.call_id = q.id
    LEFT JOIN call_open o ON o.call_id = q.id AND o.attempt = q.attempts
    LEFT JOIN call_attempts last ON last.call_id = q.id AND last.attempt = q.attempts AND q.attempts > coalesce(q.retried_after, 0)
    WHERE ` + verified + `
)
SELECT id AS call_id, attempts AS attempt, detail FROM calls WHERE detail IS NOT NULL ORDER BY id LIMIT $2`

// timesSQL compares times that one statement writes into the call and into the ledger. A failed call may have failed later,
// while it waited.
const timesSQL = `
WITH calls AS (
    SELECT q.id, q.attempts, CASE
        WHEN q.attempts = 0 AND q.dispatched_at IS NOT NULL THEN 'it was dispatched at ' || q.dispatched_at || ', and has no attempts'
        WHEN q.dispatched_at IS DISTINCT FROM coalesce(a.claimed_at, o.claimed_at) AND num_nulls(a.call_id, o.call_id) = 1 THEN
            'it was dispatched at ' || coalesce(q.dispatched_at::text, 'no time') || ', and its last attempt at ' || coalesce(a.claimed_at, o.claimed_at)
        WHEN (q.status IN ('done', 'error') OR q.status = 'failed' AND a.outcome = 'permanent') AND q.attempts > coalesce(q.retried_after, 0)
            AND q.finished_at IS DISTINCT FROM a.finished_at AND a.call_id IS NOT NULL THEN
            'it ended at ' || coalesce(q.finished_at::text, 'no time') || ', and its last attempt at ' || a.finished_at
        END AS detail
    FROM call_queue q
    LEFT JOIN call_attempts a ON a.call_id = q.id AND a.attempt = q.attempts AND q.attempts > 0
    LEFT JOIN call_open o ON o.call_id = q.id AND o.attempt = q.attempts
    WHERE ` + verified + `
)
SELECT id AS call_id, attempts AS attempt, detail FROM calls WHERE detail IS NOT NULL ORDER BY id LIMIT $2`
