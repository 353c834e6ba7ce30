package ledger

import "strings"

// closeSQL closes attempts. It locks the open rows in the order of the arrays, then their calls, then its own connection's
// usage rows. What charges and what is freed stands in it only where some are: each part costs as much for no row as for ten.
func closeSQL(charges, frees bool) string {
	sql := closeAllSQL
	if !charges {
		sql = without(sql, "charges")
	}
	if !frees {
		sql = without(sql, "frees")
	}
	return sql
}

// without cuts the part of a statement between two comments that name it.
func without(sql, part string) string {
	before, rest, _ := strings.Cut(sql, "-- begin "+part+"\n")
	_, after, _ := strings.Cut(rest, "-- end "+part+"\n")
	return before + after
}

const closeAllSQL = `
-- The open rows that the closings end, unless the limits have changed since the charges were worked out, or the request
-- was acknowledged or read earlier than they say. An unstarted row of an older epoch is not closed without a charge: the former
-- server may have started it. No lock is waited for longer than @wait, as the whole batch waits with it.
WITH removed AS (
    DELETE FROM callq.call_open o
    USING unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @unstarted::bool[], @outcomes::text[], @errors::text[],
            @results::text[], @requests::smallint[], @codes::smallint[], @took::int[], @settled::bigint[], @arrived::timestamptz[], @ends::timestamptz[],
            @charges::text[], @acked::timestamptz[], @overtaken::timestamptz[], @hosts::text[], @sent_by::timestamptz[], @proofs::text[],
            @epochs::text[], @statuses::text[], @failed::bool[], @delay::interval[], @turns::interval[])
        AS c (call_id, attempt, token, unstarted, outcome, error, result, requests, code, took_ms, settled, arrived_by, ends,
            charges, acked, overtaken, host, sent_by, proof, epoch, status, failed, delay, turn)
    WHERE o.call_id BETWEEN c.call_id AND c.call_id AND o.attempt = c.attempt AND o.epoch = c.epoch
      AND (o.token = c.token OR o.started_at IS NULL AND c.unstarted AND (c.arrived_by IS NOT NULL OR o.epoch = (SELECT callq.epoch())))
      AND (o.acked_at IS NULL OR c.acked <= o.acked_at OR c.arrived_by IS NULL)
      AND (o.overtaken_at IS NULL OR c.overtaken <= o.overtaken_at OR c.arrived_by IS NULL)
      AND (SELECT set_config('lock_timeout', @wait, true)) = @wait
      AND NOT EXISTS (
        SELECT FROM unnest(@limits::text[], @versions::text[]) AS s (name, version)
        WHERE coalesce((SELECT callq.stamp(l.xmin, l.epoch, l.known_at) FROM callq.call_limits l WHERE l.name = s.name), '') <> s.version)
    RETURNING o.call_id, o.attempt, o.cost, o.claimed_at,
        CASE WHEN o.rooms IS NULL OR c.arrived_by IS NOT NULL THEN o.started_at + coalesce(c.turn, '0') END AS started_at, o.queue, o.task, o.key, o.worker, clock_timestamp() AS now,
        c.outcome, c.error, c.result, c.requests, c.code, c.took_ms, c.settled, c.arrived_by, c.ends, c.charges, c.status, c.failed, c.delay,
        c.host, c.sent_by, c.proof, CASE WHEN o.rooms IS NOT NULL THEN o.batch END AS run, o.shares
)
-- The calls go on. One that was cancelled meanwhile stays so, and has the attempt's error and failure. The subquery keeps
-- the UPDATE from carrying all columns of removed.
, call AS (
    UPDATE public.call_queue q
    SET status        = CASE q.status WHEN 'dispatched' THEN e.status ELSE q.status END,
        failed_count  = q.failed_count + (e.failed IS TRUE AND q.failed_count < 2147483647)::int,
        error_message = CASE WHEN e.status <> 'done' THEN e.error END,
        run_at        = CASE WHEN e.delay IS NULL OR q.status <> 'dispatched' THEN q.run_at ELSE e.now + e.delay END,
        finished_at   = CASE WHEN e.status = 'new' THEN q.finished_at ELSE e.now END,
        failed_at     = CASE WHEN e.status = 'failed' AND q.status = 'dispatched' THEN e.now ELSE q.failed_at END,
        unique_key    = CASE WHEN e.status IN ('new', 'error') THEN q.unique_key END,
        ended_key     = CASE WHEN e.status IN ('new', 'error') THEN q.ended_key ELSE coalesce(q.unique_key, q.ended_key) END
    FROM (SELECT call_id, attempt, status, failed, error, now, delay FROM removed OFFSET 0) e
    WHERE q.id BETWEEN e.call_id AND e.call_id AND q.attempts = e.attempt AND q.status IN ('dispatched', 'cancelled')
)
-- begin charges
-- Either all closings end a row, or none: else it errs, as a serialization failure does.
, whole AS (
    SELECT CASE count(*) WHEN cardinality(@ids::bigint[]) THEN true WHEN 0 THEN false ELSE callq.changed() END AS ok FROM removed
)
-- In the connection's shard: below 0 where a failover found the attempt open, and 0 where it is unknown until when the charge
-- counts (Prove). All statements lock rows in the order of the arrays.
, charged AS (
    INSERT INTO callq.call_usage AS u (limit_name, key, bucket, shard, used)
    SELECT name, key, bucket, side * pg_backend_pid(), cost
    FROM unnest(@used_limits::text[], @used_keys::text[], @buckets::timestamptz[], @sides::int[], @costs::bigint[])
        AS c (name, key, bucket, side, cost)
    WHERE (SELECT ok FROM whole)
    ON CONFLICT (limit_name, key, bucket, shard) DO UPDATE SET used = u.used + excluded.used
)
-- end charges
-- begin frees
-- Wakes the flows of keys whose units come free sooner than claims could foresee (internal/backlog). A trigger enters the
-- call itself if it waits again.
, freed AS (
    INSERT INTO callq.call_inbox (queue, at, key)
    SELECT queue, clock_timestamp(), key
    FROM unnest(@freed_queues::text[], @freed_keys::text[]) AS f (queue, key)
    WHERE EXISTS (SELECT FROM removed)
)
-- end frees
INSERT INTO public.call_attempts (call_id, attempt, requests, code, took_ms, cost, settled, claimed_at, started_at, arrived_by, finished_at,
    outcome, queue, task, key, worker, error, charged, result, host, sent_by, proof, run, shares)
SELECT e.call_id, e.attempt, e.requests, e.code, e.took_ms, e.cost, e.settled, e.claimed_at, e.started_at,
    CASE WHEN e.ends IS NULL THEN e.arrived_by ELSE greatest(e.arrived_by, e.ends, e.now) END, e.now, e.outcome, e.queue, e.task, e.key,
    e.worker, e.error, coalesce(CASE WHEN e.ends IS NULL THEN e.charges
        ELSE replace(e.charges, '"until":""', '"until":' || to_json(greatest(e.ends, e.now))) END::jsonb, '[]'), e.result::jsonb, e.host, e.sent_by, e.proof, e.run, e.shares
FROM removed e
RETURNING call_id`

// lockOpenSQL locks the open rows that closings end by the same conditions as closeSQL, and reads what their charges are worked
// out from: by rulesSQL, too.
const lockOpenSQL = `
SELECT c.nth, o.epoch, o.task, o.cost, o.limits, o.keys, o.costs, coalesce(o.started_at, o.claimed_at) AS from,
    CASE WHEN o.started_at IS NOT NULL THEN o.send_within END AS send_within,
    o.acked_at - o.started_at AS acked, o.overtaken_at - o.started_at AS overtaken, o.epoch <> (SELECT callq.epoch()) AS former
FROM unnest(@ids::bigint[], @attempts::int[], @tokens::bigint[], @unstarted::bool[], @charged::bool[])
    WITH ORDINALITY AS c (call_id, attempt, token, unstarted, charged, nth)
JOIN callq.call_open o ON o.call_id BETWEEN c.call_id AND c.call_id AND o.attempt = c.attempt
WHERE (o.token = c.token OR o.started_at IS NULL AND c.unstarted AND (c.charged OR o.epoch = (SELECT callq.epoch())))
  AND (SELECT set_config('lock_timeout', @wait, true)) = @wait
FOR UPDATE OF o`

const rulesSQL = `
SELECT l.name, callq.stamp(l.xmin, l.epoch, l.known_at) AS version, l.epoch, coalesce(l.anchor, '') AS anchor, l.window_size, l.proof, l.slack, l.arrive_within,
    l.bucket_width AS width, l.per_key, l.count_cost, l.known_at, l.queues
FROM callq.call_limits l`
