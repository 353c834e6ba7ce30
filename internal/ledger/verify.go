package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Report is what Verify found.
type Report struct {
	Calls    int64       `json:"calls"`    // that exist
	Attempts int64       `json:"attempts"` // in the ledger and open
	Limits   []LimitUse  `json:"limits"`
	Findings []Violation `json:"findings"` // empty: every rule holds
	Opened   []Opening   `json:"opened"`   // limits that operators opened, though something may have been missing
}

// LimitUse is the most that a limit saw in any of its windows, while one version of it was in
// force.
type LimitUse struct {
	Limit   string        `json:"limit"`
	Version int64         `json:"version"`
	From    time.Time     `json:"in_force_from"`
	Rate    int64         `json:"rate"`
	Window  time.Duration `json:"window_ns"`
	Shape   limit.Shape   `json:"shape"` // {}: a sliding window
	Starts  int64         `json:"starts"`
	// Most counts an attempt with what it claimed while it was open, and then with what was settled, up to
	// that: no claim could know of more. Keys that have a rate of their own are not in it.
	Most int64 `json:"most"`
	// Above are the units that handlers settled above what these attempts had claimed, and MostSettled is
	// Most with all that was settled. Above the rate it is no claim's fault: the calls' costs said too little.
	Above       int64 `json:"settled_above_cost"`
	MostSettled int64 `json:"most_settled"`
}

// InForce is the rate that held.
func (l LimitUse) InForce() limit.Rate {
	return limit.Rate{Units: l.Rate, Window: l.Window, Shape: l.Shape}
}

// Violation is a row that breaks a rule.
type Violation struct {
	Rule    string `json:"rule" db:"rule"`
	Limit   string `json:"limit,omitempty" db:"limit_name"`
	CallID  int64  `json:"call_id,omitempty" db:"call_id"`
	Attempt int32  `json:"attempt,omitempty" db:"attempt"`
	Detail  string `json:"detail" db:"detail"`
}

// violationsMost is how many rows of one rule are named.
const violationsMost = 20

// Verify recomputes callq's rules from the ledger and the open rows, in one snapshot, using
// nothing that claims use: for each limit and version of it the most in any window, at most one
// request an attempt, no gap in the attempts of a call that exists, and every counter and status
// against the rows that it stands for. It may run beside everything else. Where Postgres's clock was
// set back, windows of the time that it showed twice hold what was apart: it finds too much there.
func Verify(ctx context.Context, pool *pgxpool.Pool) (*Report, error) {
	report := &Report{Findings: []Violation{}, Limits: []LimitUse{}}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, verifySettingsSQL); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, countsSQL).Scan(&report.Calls, &report.Attempts); err != nil {
			return fmt.Errorf("count: %w", err)
		}
		if err := verifyLimits(ctx, tx, report); err != nil {
			return err
		}
		var err error
		if report.Opened, err = readOpenings(ctx, tx); err != nil {
			return err
		}
		for _, rule := range rules() {
			found, err := violations(ctx, tx, rule.sql, violationsMost)
			if err != nil {
				return fmt.Errorf("check %q: %w", rule.name, err)
			}
			report.add(rule.name, found)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	return report, nil
}

func (r *Report) add(rule string, found []Violation) {
	for _, v := range found {
		v.Rule = rule
		r.Findings = append(r.Findings, v)
	}
}

func violations(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]Violation, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByNameLax[Violation])
}

// Whole tables are read here: the settings of the hot path would not help.
const verifySettingsSQL = `
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true), set_config('enable_hashjoin', 'on', true),
    set_config('enable_mergejoin', 'on', true), set_config('plan_cache_mode', 'force_custom_plan', true)`

const countsSQL = `
SELECT (SELECT count(*) FROM call_queue),
    (SELECT count(*) FROM call_attempts) + (SELECT count(*) FROM call_open)`

// version is a stretch of time in which a limit had one rate and window.
type version struct {
	Limit     string           `db:"limit_name"`
	Version   int64            `db:"version"`
	From      time.Time        `db:"in_force_from"`
	To        *time.Time       `db:"in_force_to"`
	Rate      int64            `db:"rate"`
	Window    time.Duration    `db:"window_size"` // 0: a concurrency limit
	Shape     limit.Shape      `db:"shape"`
	PerKey    bool             `db:"per_key"`
	Overrides map[string]int64 `db:"overrides"`
	CountCost bool             `db:"count_cost"`
}

func verifyLimits(ctx context.Context, tx pgx.Tx, report *Report) error {
	rows, err := tx.Query(ctx, versionsSQL)
	if err != nil {
		return fmt.Errorf("read the limits' changes: %w", err)
	}
	versions, err := pgx.CollectRows(rows, pgx.RowToStructByName[version])
	if err != nil {
		return fmt.Errorf("read the limits' changes: %w", err)
	}
	for _, v := range versions {
		use := LimitUse{Limit: v.Limit, Version: v.Version, From: v.From, Rate: v.Rate, Window: v.Window, Shape: v.Shape}
		if v.Shape.Algorithm == limit.FixedWindow || v.Shape.Algorithm == limit.TokenBucket {
			found, err := v.verifyShape(ctx, tx, &use)
			if err != nil {
				return fmt.Errorf("add up the windows of %q: %w", v.Limit, err)
			}
			report.Limits = append(report.Limits, use)
			report.add("no window holds more than the rate", found)
			continue
		}
		args := []any{v.Limit, v.PerKey, v.CountCost, v.Window, v.From, v.To, v.Rate, v.Overrides, violationsMost}
		var over bool
		if err := tx.QueryRow(ctx, windowsSQL+mostSQL, args[:8]...).Scan(&use.Starts, &use.Most, &use.Above, &use.MostSettled, &over); err != nil {
			return fmt.Errorf("add up the windows of %q: %w", v.Limit, err)
		}
		report.Limits = append(report.Limits, use)
		if !over {
			continue
		}
		found, err := violations(ctx, tx, windowsSQL+overSQL, args...)
		if err != nil {
			return fmt.Errorf("find what exceeds %q: %w", v.Limit, err)
		}
		report.add("no window holds more than the rate", found)
	}
	return nil
}

const versionsSQL = `
SELECT limit_name, version, in_force_from, rate, window_size, shape, per_key, overrides, count_cost,
    lead(in_force_from) OVER (PARTITION BY limit_name ORDER BY version) AS in_force_to
FROM call_limit_changes
WHERE rate IS NOT NULL
ORDER BY limit_name, version`

// At each start t of an attempt, the attempts (of its key, where the limit is per key) that had
// started by t and whose until is later than t - W: a running sum in which each attempt enters at
// its start and leaves W after its until, what leaves going first. With which key and cost, the version
// says, as claims do: where it counts otherwise than the one before, usage was counted anew for it. The
// until of one that is open is the claims' (occupiedSQL).
//
// An attempt counts with the cost that was claimed until it ends, and then with what was settled. The claim
// that came last of a window's counted each of the others with that at least, for it came before its own start;
// where more was settled than claimed, with the claimed cost, for it may have been there first.
const windowsSQL = chargedSQL + `, moves AS (
    SELECT call_id, attempt, key, at, 1 AS enters, cost, settled, greatest(settled - cost, 0) AS above FROM charges
    UNION ALL
    SELECT call_id, attempt, key, least(finished_at, until + $4::interval), 0, settled - cost, 0, 0 FROM charges WHERE settled < cost
    UNION ALL
    SELECT call_id, attempt, key, until + $4::interval, 0, -least(settled, cost), -settled, 0 FROM charges
), sums AS (
    SELECT call_id, attempt, key, at, enters, above, sum(cost) OVER w AS used, sum(settled) OVER w AS used_settled
    FROM moves
    WINDOW w AS (PARTITION BY key ORDER BY at, enters)
), starts AS (
    SELECT sums.*, o.own, coalesce(o.own, $7::bigint) AS rate
    FROM sums CROSS JOIN LATERAL (SELECT ($8::jsonb ->> key)::bigint AS own) o
    WHERE enters = 1 AND at >= $5::timestamptz AND at < coalesce($6::timestamptz, 'infinity')
)
`

// What was charged, and what is open: when each came in, and its until.
const chargedSQL = `
WITH charges AS (
    SELECT a.call_id, a.attempt, CASE WHEN $2 THEN a.key ELSE '' END AS key,
        coalesce(a.started_at, a.claimed_at) AS at, a.finished_at, CASE WHEN $3 THEN a.cost ELSE 1 END AS cost,
        CASE WHEN $3 THEN coalesce(a.settled, a.cost) ELSE 1 END AS settled, c.until
    FROM call_attempts a
    CROSS JOIN LATERAL jsonb_to_recordset(a.charged) AS c ("limit" text, until timestamptz)
    WHERE c."limit" = $1
    UNION ALL
    SELECT o.call_id, o.attempt, CASE WHEN $2 THEN o.key ELSE '' END, o.started_at, NULL, CASE WHEN $3 THEN o.cost ELSE 1 END,
        CASE WHEN $3 THEN o.cost ELSE 1 END,
        coalesce(CASE coalesce(l.anchor, CASE o.task WHEN 'http' THEN 'start' ELSE 'finish' END)
            WHEN 'start' THEN greatest(o.started_at + o.send_within + l.slack + CASE WHEN o.acked_at IS NULL THEN interval '5 seconds' ELSE '0' END,
                o.acked_at)
            WHEN 'dispatch' THEN o.claimed_at END, 'infinity')
    FROM call_open o
    LEFT JOIN call_limits l ON l.name = $1
    WHERE o.limits @> ARRAY[$1] AND o.started_at IS NOT NULL
)`

const mostSQL = `
SELECT count(*), coalesce(max(used) FILTER (WHERE own IS NULL), 0)::bigint, coalesce(sum(above), 0)::bigint,
    coalesce(max(used_settled) FILTER (WHERE own IS NULL), 0)::bigint, coalesce(bool_or(used > rate), false)
FROM starts`

const overSQL = `
SELECT $1 AS limit_name, call_id, attempt, 'started at ' || at || ' as number ' || used || ' of ' || rate
    || CASE key WHEN '' THEN '' ELSE ' for key ' || key END AS detail
FROM starts
WHERE used > rate
ORDER BY at
LIMIT $9`

type rule struct{ name, sql string }

// rules are what must hold besides the limits. Each statement returns the rows that break it.
func rules() []rule {
	return []rule{
		{"an attempt sends at most one request", requestsSQL},
		{"an attempt is open or in the ledger, not both", bothSQL},
		{"the attempts of a call have no gap and are as many as its counter says", gapsSQL},
		{"failed_count is the number of attempts that failed", failedCountSQL},
		{"a call was retried after attempts that it had", retriedSQL},
		{"the status of a call fits its attempts", statusSQL},
		{"a settled attempt was charged what was settled", settledSQL},
		{"the usage of a limit is what its attempts were charged", usageSQL},
	}
}

const requestsSQL = `
SELECT call_id, attempt, requests || ' requests were sent' AS detail
FROM call_attempts WHERE requests > 1 ORDER BY call_id LIMIT $1`

const bothSQL = `
SELECT call_id, attempt, 'it is in call_open and in call_attempts' AS detail
FROM call_open JOIN call_attempts USING (call_id, attempt) ORDER BY call_id LIMIT $1`

const gapsSQL = `
WITH rows AS (
    SELECT call_id, attempt FROM call_attempts WHERE attempt > 0 UNION ALL SELECT call_id, attempt FROM call_open -- close.go: setAsideSQL
), known AS (
    SELECT call_id, count(DISTINCT attempt) AS n, min(attempt) AS first, max(attempt) AS last FROM rows GROUP BY call_id
)
SELECT q.id AS call_id, q.attempts AS attempt,
    'the call counts ' || q.attempts || ' attempts, and ' || coalesce(k.n, 0) || ' are known'
        || coalesce(' (' || k.first || ' to ' || k.last || ')', '') AS detail
FROM call_queue q LEFT JOIN known k ON k.call_id = q.id
WHERE q.attempts <> coalesce(k.n, 0) OR k.first <> 1 OR k.last <> q.attempts
ORDER BY q.id LIMIT $1`

// Of a call that an operator retried, the attempts before that count no longer; they are retried_after many.
const failedCountSQL = `
WITH failed AS (
    SELECT a.call_id, count(*) AS n
    FROM call_attempts a JOIN call_queue q ON q.id = a.call_id AND a.attempt > coalesce(q.retried_after, 0)
    WHERE a.outcome IN ('error', 'permanent', 'lost')
    GROUP BY a.call_id
)
SELECT q.id AS call_id, 'failed_count is ' || q.failed_count || ', and ' || coalesce(f.n, 0) || ' attempts failed' AS detail
FROM call_queue q LEFT JOIN failed f ON f.call_id = q.id
WHERE q.failed_count <> coalesce(f.n, 0)
ORDER BY q.id LIMIT $1`

const retriedSQL = `
SELECT id AS call_id, attempts AS attempt, 'it was retried after attempt ' || retried_after || ' of ' || attempts AS detail
FROM call_queue WHERE retried_after NOT BETWEEN 0 AND attempts ORDER BY id LIMIT $1`

const statusSQL = `
WITH done AS (
    SELECT DISTINCT a.call_id
    FROM call_attempts a JOIN call_queue q ON q.id = a.call_id AND a.attempt > coalesce(q.retried_after, 0)
    WHERE a.outcome = 'done'
)
SELECT q.id AS call_id, q.attempts AS attempt, CASE
        WHEN q.status = 'done' THEN 'the call is done, and no attempt is'
        WHEN q.status = 'dispatched' THEN 'the call is dispatched, and no attempt is open'
        WHEN o.call_id IS NOT NULL THEN 'the call is ' || q.status || ', and an attempt is open'
        ELSE 'the call is ' || q.status || ', and an attempt is done' END AS detail
FROM call_queue q
LEFT JOIN done d ON d.call_id = q.id
LEFT JOIN call_open o ON o.call_id = q.id AND o.attempt = q.attempts
WHERE q.status = 'done' AND d.call_id IS NULL
   OR q.status = 'dispatched' AND o.call_id IS NULL
   OR q.status IN ('new', 'error', 'done', 'failed') AND o.call_id IS NOT NULL
   OR q.status IN ('new', 'error', 'failed', 'dispatched') AND d.call_id IS NOT NULL
ORDER BY q.id LIMIT $1`

// By limits that do not count cost it is charged 1.
const settledSQL = `
SELECT c."limit" AS limit_name, a.call_id, a.attempt, c.cost || ' units were charged, and ' || a.settled || ' settled' AS detail
FROM call_attempts a
CROSS JOIN LATERAL jsonb_to_recordset(a.charged) AS c ("limit" text, cost bigint)
WHERE a.settled IS NOT NULL AND c.cost NOT IN (1, a.settled)
ORDER BY a.call_id LIMIT $1`

// Over the last window, of limits that have one. Usage may exceed the charges for two windows after
// a limit was published: it was counted anew, under its former queues, window or form; and after a failover, since when
// buckets may end later.
const usageSQL = `
WITH reach AS (
    SELECT name, queues, complete_since, per_key, count_cost, coalesce(bucket_width, window_size / 200) AS width, clock_timestamp() - window_size AS since,
        greatest(published_at, known_at) > clock_timestamp() - 2 * window_size - interval '1 minute' AS fresh
    FROM call_limits
    WHERE complete_since IS NOT NULL AND window_size > '0'
), charged AS (
    SELECT l.name,
        CASE WHEN a.finished_at > l.complete_since THEN c.key WHEN l.per_key THEN a.key ELSE '' END AS key,
        sum(CASE WHEN a.finished_at > l.complete_since THEN c.cost WHEN l.count_cost THEN coalesce(a.settled, a.cost) ELSE 1 END) AS cost
    FROM reach l
    JOIN call_attempts a ON a.arrived_by > l.since - l.width
    LEFT JOIN LATERAL (
        SELECT r.key, r.cost, r.until
        FROM jsonb_to_recordset(a.charged) AS r ("limit" text, key text, cost bigint, until timestamptz)
        WHERE r."limit" = l.name
    ) c ON true
    WHERE (c.cost IS NOT NULL OR a.queue = ANY(l.queues) AND a.finished_at <= l.complete_since)
      AND date_bin(l.width, coalesce(c.until, a.arrived_by), 'epoch') + l.width > l.since
    GROUP BY 1, 2
), used AS (
    SELECT l.name, u.key, sum(u.used) AS used
    FROM reach l JOIN call_usage u ON u.limit_name = l.name AND u.bucket > l.since
    GROUP BY 1, 2
)
SELECT name AS limit_name, 'usage of the last window is ' || coalesce(u.used, 0) || ', and ' || coalesce(c.cost, 0)
    || ' units were charged' || CASE key WHEN '' THEN '' ELSE ' to key ' || key END AS detail
FROM charged c FULL JOIN used u USING (name, key) JOIN reach l USING (name)
WHERE coalesce(u.used, 0) < coalesce(c.cost, 0) OR NOT l.fresh AND coalesce(u.used, 0) <> coalesce(c.cost, 0)
ORDER BY name LIMIT $1`
