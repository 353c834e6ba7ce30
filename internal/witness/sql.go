package witness

// heartbeatSQL writes nothing in another epoch than the one in which the worker last spoke: its row is evidence there.
const heartbeatSQL = `
INSERT INTO callq.call_workers AS w (id, pool, tasks, labels, slots, http, started_at, heartbeat_at, epoch)
SELECT @id, @pool, @tasks::text[], @labels::text[], @slots, @http::jsonb, clock_timestamp(), clock_timestamp(), @former
WHERE @former = callq.epoch()
ON CONFLICT (id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, http = excluded.http
RETURNING epoch, heartbeat_at`

// wordSQL writes the first heartbeat in an epoch. A worker that lived in another tells what its row was, and whether anything is
// missing. That stays as it was first said, for the heartbeat itself changes what there is to see.
const wordSQL = `
WITH found AS MATERIALIZED (
    SELECT (SELECT heartbeat_at FROM callq.call_workers WHERE id = @id) AS lived_at,
        EXISTS (
            SELECT FROM unnest(@ids::bigint[], @started::timestamptz[]) AS s (call_id, started_at)
            WHERE NOT EXISTS (
                SELECT FROM callq.call_open o
                WHERE o.call_id = s.call_id AND o.started_at = s.started_at AND o.worker = @id)
            AND NOT EXISTS (
                SELECT FROM public.call_attempts a
                WHERE a.call_id = s.call_id AND a.started_at = s.started_at AND a.worker = @id)
        ) AS lacks_starts
)
INSERT INTO callq.call_workers AS w (id, pool, tasks, labels, slots, http, started_at, heartbeat_at, epoch, former, lived_at, lacks)
SELECT @id, @pool, @tasks::text[], @labels::text[], @slots, @http::jsonb, clock_timestamp(), clock_timestamp(), callq.epoch(),
    nullif(@former, ''), lived_at,
    CASE WHEN @former <> '' THEN lacks_starts OR (lived_at >= @heartbeat_at::timestamptz) IS NOT TRUE
        WHEN lacks_starts THEN true END
FROM found
ON CONFLICT (id) DO UPDATE
SET heartbeat_at = excluded.heartbeat_at, http = excluded.http, epoch = excluded.epoch,
    former = CASE WHEN w.epoch = excluded.epoch THEN w.former ELSE excluded.former END,
    lived_at = CASE WHEN w.epoch = excluded.epoch THEN w.lived_at ELSE excluded.lived_at END,
    lacks = CASE WHEN w.epoch = excluded.epoch THEN w.lacks ELSE excluded.lacks END
RETURNING epoch, heartbeat_at`
