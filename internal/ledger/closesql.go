package ledger

// closeSQL is Close. It locks the open rows in id order, then their calls, then its own connection's usage rows.
const closeSQL = `
WITH ` + closeAsked + closeRemoved + closeBounded + closeEnded + closeCall + closeCharged + closeFreed + closeLedger

// closeUnlimitedSQL is Close of attempts without limits, for a fifth less: with @unlimited, removed takes no others.
const closeUnlimitedSQL = `
WITH ` + closeAsked + closeRemoved + closeBounded + closeUncharged + closeCall + closeLedger

const (
	// asked is the closings in id order, in which their open rows are found and so locked.
	closeAsked = `asked AS MATERIALIZED (
    SELECT *
    FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @unstarted::bool[],
            @outcomes::text[], @errors::text[], @results::text[], @requests::smallint[], @settled::bigint[],
            @charged::bool[], @by::interval[], @written::interval[], @end_by::interval[], @closed::interval[],
            @acked::interval[], @statuses::text[], @failed::bool[], @delay::interval[])
        AS c (call_id, attempt, token, unstarted, outcome, error, result, requests, settled,
            charged, by_in, written_in, end_by_in, closed_in, acked_in, status, failed, delay)
    ORDER BY call_id
)`

	// removed is the open rows that the closings end. An unstarted row of an older epoch is not closed without a charge: the
	// former server may have started it. The statement waits for each lock no longer than @wait, as the whole batch waits with it.
	closeRemoved = `, removed AS (
    DELETE FROM call_open o
    USING asked c
    WHERE o.call_id BETWEEN c.call_id AND c.call_id AND o.attempt = c.attempt
      AND (o.token = c.token OR o.token IS NULL AND c.unstarted AND (c.charged OR o.epoch = (SELECT callq_epoch())))
      AND (SELECT set_config('lock_timeout', @wait, true)) = @wait
      AND (o.limits = '{}' OR NOT @unlimited)
    RETURNING o.call_id, o.attempt, o.cost, o.claimed_at, o.started_at, o.queue, o.task, o.key, o.worker,
        o.limits, o.keys, o.costs, o.epoch, o.send_within, o.acked_at, clock_timestamp() AS now, coalesce(o.started_at, o.claimed_at) AS base,
        c.outcome, c.error, c.result, c.requests, CASE WHEN c.charged THEN c.settled END AS settled, c.charged, c.status, c.failed,
        c.by_in, c.written_in, c.end_by_in, c.closed_in, c.acked_in, c.delay
)`

	// bounded turns limit.Arrival's offsets into times. The gate lets a request's first byte through within send_within,
	// whenever its last byte was written.
	closeBounded = `, bounded AS (
    SELECT *, base + by_in AS by, base + end_by_in AS end_by, base + closed_in AS closed,
        coalesce(acked_at, base + acked_in) AS acked,
        base + least(written_in, CASE WHEN started_at IS NOT NULL THEN send_within END) AS written
    FROM removed
)`

	// ended adds what each limit is charged, to which bucket, and until when the charge counts. Buckets are labelled with their
	// end: date_bin rounds down, so one is added. A concurrency limit has a bucket only where the charge is not over already. A
	// claim by cost other than 1 is charged by the reported cost; of a claim by 1 the limit's present count_cost decides. After
	// a failover, new attempts are charged to buckets after known_at (internal/policy).
	closeEnded = `, ended AS MATERIALIZED (
    SELECT b.*, u.until, u.names, u.charged_keys, u.charged_costs, u.buckets, u.charges,
        u.former OR b.outcome = 'lost' AND b.epoch <> (SELECT callq_epoch()) AS former
    FROM bounded b
    LEFT JOIN LATERAL (
        SELECT max(until) AS until,
            array_agg(name) AS names, array_agg(key) AS charged_keys, array_agg(cost) AS charged_costs,
            bool_or(former) AS former,
            array_agg(CASE WHEN width > '0' THEN date_bin(width, greatest(until, CASE WHEN NOT former THEN known_at + width END), 'epoch') + width
                WHEN until > b.now THEN until END) AS buckets,
            jsonb_agg(jsonb_build_object('limit', name, 'key', key, 'cost', cost, 'until', until)) AS charges
        FROM (
            SELECT l.name, u.key, CASE WHEN l.count_cost OR u.cost <> 1 THEN coalesce(b.settled, u.cost) ELSE u.cost END AS cost,
                coalesce(l.bucket_width, l.window_size / 200) AS width, l.known_at, b.epoch <> l.epoch AS former,
                ` + chargedUntil + ` AS until
            FROM unnest(b.limits, b.keys, b.costs) AS u (name, key, cost)
            JOIN call_limits l ON l.name BETWEEN u.name AND u.name
            WHERE b.charged AND b.limits <> '{}'
        ) c
    ) u ON true
)`

	closeUncharged = `, ended AS (
    SELECT *, NULL::timestamptz AS until, NULL::jsonb AS charges FROM bounded
)`

	// chargedUntil is the latest moment at which the request can have arrived, for a limit with this anchor and slack. An answer
	// is proof. Without one, only a request that was acknowledged is believed to have arrived within slack of the write: TCP
	// sends a lost packet again, for 5 seconds at most (limit.ResendMost). The acknowledgement itself may be later than that.
	// A concurrency limit (window 0) counts a call until its end, or, where nothing proves the end, until the API must have
	// seen the connection go.
	chargedUntil = `CASE
                WHEN l.window_size > '0' THEN
                    CASE coalesce(l.anchor, CASE b.task WHEN 'http' THEN 'start' ELSE 'finish' END)
                    WHEN 'start' THEN
                        CASE WHEN b.acked IS NULL THEN coalesce(b.by, least(b.closed, b.written + interval '5 seconds') + l.slack)
                        ELSE least(b.by, greatest(b.acked, b.written + l.slack)) END
                    ELSE
                        CASE WHEN b.end_by IS NOT NULL AND b.acked IS NULL THEN b.end_by
                        ELSE least(b.end_by, greatest(b.acked, b.closed + l.slack)) END
                    END
                WHEN b.end_by IS NULL THEN greatest(b.now, b.closed + l.slack)
                ELSE b.now END`

	// call moves the calls on. One that was cancelled meanwhile stays cancelled, and has the attempt's error and failure. The
	// subquery keeps an UPDATE from carrying all columns of removed.
	closeCall = `, call AS (
    UPDATE call_queue q
    SET status        = CASE q.status WHEN 'dispatched' THEN e.status ELSE q.status END,
        failed_count  = q.failed_count + (e.failed IS TRUE AND q.failed_count < 2147483647)::int,
        error_message = e.error,
        run_at        = CASE WHEN e.delay IS NULL OR q.status <> 'dispatched' THEN q.run_at ELSE e.now + e.delay END,
        finished_at   = CASE WHEN e.status = 'new' THEN q.finished_at ELSE e.now END,
        failed_at     = CASE WHEN e.status = 'failed' AND q.status = 'dispatched' THEN e.now ELSE q.failed_at END,
        unique_key    = CASE WHEN e.status IN ('new', 'error') THEN q.unique_key END
    FROM (SELECT call_id, attempt, status, failed, error, now, delay FROM removed OFFSET 0) e
    WHERE q.id BETWEEN e.call_id AND e.call_id AND q.attempts = e.attempt AND q.status IN ('dispatched', 'cancelled')
)`

	// charged adds the charges to the usage, in the connection's shard: below 0 where a failover found the attempt open.
	closeCharged = `, charged AS (
    INSERT INTO call_usage AS u (limit_name, key, bucket, shard, used)
    SELECT c.name, c.key, c.bucket, CASE WHEN e.former THEN -1 ELSE 1 END * pg_backend_pid(), sum(c.cost)
    FROM ended e
    CROSS JOIN LATERAL unnest(e.names, e.charged_keys, e.charged_costs, e.buckets) AS c (name, key, cost, bucket)
    WHERE e.names IS NOT NULL AND c.bucket IS NOT NULL AND c.cost > 0
    GROUP BY 1, 2, 3, 4
    ORDER BY 1, 2, 3, 4
    ON CONFLICT (limit_name, key, bucket, shard) DO UPDATE SET used = u.used + excluded.used
)`

	// freed wakes the flows of keys whose units come free sooner than claims could foresee (internal/backlog). A trigger
	// enters the call itself if it waits again.
	closeFreed = `, freed AS (
    INSERT INTO call_inbox (queue, at, key)
    SELECT queue, clock_timestamp(), key
    FROM (
        SELECT DISTINCT u.key,
            unnest((SELECT queues FROM call_limits
                WHERE name = u.name AND per_key AND (NOT g.charged OR window_size = '0' OR count_cost AND g.settled < g.cost))) AS queue
        FROM removed g
        CROSS JOIN LATERAL unnest(g.limits, g.keys) AS u (name, key)
    ) f
)`

	// An attempt without limits keeps a bound on its arrival that holds for any slack: a limit may be added later.
	closeLedger = `
INSERT INTO call_attempts (call_id, attempt, requests, cost, settled, claimed_at, started_at, arrived_by, finished_at,
    outcome, queue, task, key, worker, error, charged, result)
SELECT e.call_id, e.attempt, e.requests, e.cost, e.settled, e.claimed_at, e.started_at,
    CASE WHEN e.charged THEN coalesce(e.until, least(e.end_by, greatest(e.written, e.closed) + interval '1 minute')) END,
    e.now, e.outcome, e.queue, e.task, e.key, e.worker, e.error, coalesce(e.charges, '[]'), e.result::jsonb
FROM ended e
RETURNING call_id`
)
