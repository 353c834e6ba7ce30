-- Caps: how many calls of a queue may wait (max_waiting), in all and of each key.

-- +goose Up

-- The queues that have caps. Policies write it, with call_queues.
CREATE TABLE callq.call_caps (
    queue       text    PRIMARY KEY,
    most        bigint, -- calls that may wait; NULL: any number
    most_of_key bigint, -- likewise, of each key
    when_full   text    NOT NULL, -- refuse, discard_new or discard_oldest
    since       xid8    NOT NULL, -- transactions from this one on note in call_waiting what they do
    counted     boolean NOT NULL DEFAULT false -- so were those before: the cap is in force
);

-- How many calls of these queues wait, in all and, if keys have a cap, of each key: the sum of what statements have added. It is only
-- added to, so producers do not wait for one another, and what a transaction adds vanishes with it.
CREATE TABLE callq.call_waiting (
    queue  text    NOT NULL,
    of_key boolean NOT NULL, -- of one key; else of all
    key    text    NOT NULL,
    calls  bigint  NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- It has no key. A publication of all tables refuses to delete from a table of which it cannot name the row.
ALTER TABLE callq.call_waiting REPLICA IDENTITY FULL;

CREATE INDEX call_waiting_idx ON callq.call_waiting (queue, of_key, key);

-- Adds up the rows of one sum, as reads would become slow: not while another transaction does so, or counts anew.
-- +goose StatementBegin
CREATE FUNCTION callq.fold_waiting(queue text, of_key boolean, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM callq.call_caps c WHERE c.queue = fold_waiting.queue FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        WITH had AS (
            DELETE FROM callq.call_waiting w
            WHERE w.queue = fold_waiting.queue AND w.of_key = fold_waiting.of_key AND w.key = fold_waiting.key
            RETURNING calls
        )
        INSERT INTO callq.call_waiting SELECT fold_waiting.queue, fold_waiting.of_key, fold_waiting.key, sum(calls)
        FROM had HAVING sum(calls) <> 0;
    END IF;
END $$;
-- +goose StatementEnd

-- Notes that so many more calls of a queue wait, or fewer, if it has a cap.
-- +goose StatementBegin
CREATE FUNCTION callq.note_waiting(queue text, key text, calls bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO callq.call_waiting
    SELECT c.queue, e.of_key, CASE WHEN e.of_key THEN note_waiting.key ELSE '' END, note_waiting.calls
    FROM callq.call_caps c CROSS JOIN (VALUES (false), (true)) AS e (of_key)
    WHERE c.queue = note_waiting.queue AND (c.most_of_key IS NOT NULL OR NOT e.of_key);
END $$;
-- +goose StatementEnd

-- Keeps a queue's cap, or that of a key of it, for a statement that has inserted these calls of it: refuses the statement, or
-- discards as many calls as are too many. A discarded call is cancelled, and its error_message has the reason.
-- +goose StatementBegin
CREATE FUNCTION callq.keep_cap(queue text, of_key boolean, key text, ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    cap     callq.call_caps := (SELECT c FROM callq.call_caps c WHERE c.queue = keep_cap.queue);
    most    CONSTANT bigint := CASE WHEN of_key THEN cap.most_of_key ELSE cap.most END;
    rows    bigint;
    waiting bigint;
    reason  text;
    doomed  bigint[];
BEGIN
    SELECT count(*), sum(calls) INTO rows, waiting
    FROM callq.call_waiting w
    WHERE w.queue = keep_cap.queue AND w.of_key = keep_cap.of_key AND w.key = keep_cap.key;
    IF rows > 64 THEN
        PERFORM callq.fold_waiting(queue, of_key, key);
    END IF;
    IF NOT cap.counted OR waiting <= most IS NOT FALSE THEN
        RETURN;
    END IF;
    IF cap.when_full = 'refuse' THEN
        RAISE EXCEPTION '% is full: % calls wait, of at most %', CASE WHEN of_key THEN format('key %L of queue %L', key, queue)
                ELSE format('queue %L', queue) END, waiting - cardinality(ids), most
            USING ERRCODE = 'CQ001',
                HINT = format('Nothing was written. Insert again when fewer wait: public.callq_backlog(%L) tells how many.', queue);
    END IF;
    reason := format('discarded: %s had %s calls waiting, the most that %s allows', CASE WHEN of_key THEN 'its key' ELSE 'its queue' END,
        most, CASE WHEN of_key THEN 'max_waiting_per_key' ELSE 'max_waiting' END);
    IF cap.when_full = 'discard_new' THEN
        doomed := ARRAY(SELECT q.id FROM public.call_queue q WHERE q.id = ANY (ids) AND q.status IN ('new', 'error')
            ORDER BY q.id DESC LIMIT waiting - most);
    ELSE
        doomed := ARRAY(
            SELECT q.id
            FROM (
                SELECT b.id, b.at FROM callq.call_backlog b
                WHERE b.queue = keep_cap.queue AND (b.key = keep_cap.key OR NOT keep_cap.of_key)
                UNION
                SELECT unnest(keep_cap.ids), 'infinity'
            ) b
            JOIN public.call_queue q ON q.id BETWEEN b.id AND b.id
            WHERE q.status IN ('new', 'error') AND coalesce(q.queue, 'default') = keep_cap.queue
            ORDER BY b.at, b.id LIMIT waiting - most
            FOR UPDATE OF q SKIP LOCKED);
    END IF;
    UPDATE public.call_queue q
    SET status = 'cancelled', error_message = reason, finished_at = clock_timestamp(), ended_key = unique_key, unique_key = NULL
    WHERE q.id = ANY (doomed) AND q.status IN ('new', 'error');
END $$;
-- +goose StatementEnd

-- Keeps the caps of the queues that a statement has inserted these calls into.
-- +goose StatementBegin
CREATE FUNCTION callq.keep_caps(ids bigint[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$ -- a plan may be older than the table is large
DECLARE
    s record;
BEGIN
    FOR s IN
        SELECT c.queue, e.of_key, CASE WHEN e.of_key THEN q.key ELSE '' END AS key, array_agg(q.id) AS ids
        FROM callq.call_effective q
        JOIN callq.call_caps c ON c.queue = q.queue
        CROSS JOIN (VALUES (false), (true)) AS e (of_key)
        WHERE q.id = ANY (keep_caps.ids) AND q.status IN ('new', 'error') AND (c.most_of_key IS NOT NULL OR NOT e.of_key)
        GROUP BY 1, 2, 3
    LOOP
        INSERT INTO callq.call_waiting VALUES (s.queue, s.of_key, s.key, cardinality(s.ids));
        PERFORM callq.keep_cap(s.queue, s.of_key, s.key, s.ids);
    END LOOP;
END $$;
-- +goose StatementEnd

-- Counts the calls of a queue that wait, once all transactions see that it has a cap, and puts the cap in force. It also mends what
-- the sums missed, as after a TRUNCATE. false: some transactions are older, or another adds sums up.
-- +goose StatementBegin
CREATE FUNCTION callq.count_waiting(queue text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    since xid8;
BEGIN
    SELECT c.since INTO since FROM callq.call_caps c WHERE c.queue = count_waiting.queue FOR UPDATE SKIP LOCKED;
    IF since < pg_snapshot_xmin(pg_current_snapshot()) IS NOT TRUE THEN
        RETURN false;
    END IF;
    -- One snapshot: what a transaction did is in the sums and in the calls, or in neither.
    WITH had AS (
        DELETE FROM callq.call_waiting w WHERE w.queue = count_waiting.queue
    ), waits AS (
        SELECT coalesce(q.key, '') AS key, count(*) AS calls
        FROM (SELECT DISTINCT b.id FROM callq.call_backlog b WHERE b.queue = count_waiting.queue) b
        JOIN public.call_queue q ON q.id BETWEEN b.id AND b.id
        WHERE q.status IN ('new', 'error') AND coalesce(q.queue, 'default') = count_waiting.queue
        GROUP BY 1
    )
    INSERT INTO callq.call_waiting
    SELECT count_waiting.queue, false, '', sum(calls) FROM waits HAVING sum(calls) > 0
    UNION ALL
    SELECT c.queue, true, w.key, w.calls FROM waits w JOIN callq.call_caps c ON c.queue = count_waiting.queue AND c.most_of_key IS NOT NULL;
    UPDATE callq.call_caps c SET counted = true WHERE c.queue = count_waiting.queue AND NOT c.counted;
    RETURN true;
END $$;
-- +goose StatementEnd

-- A call that is deleted waits no longer.
-- +goose StatementBegin
CREATE FUNCTION callq.call_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_RELID <> 'public.call_queue'::regclass THEN
        RAISE EXCEPTION 'this function is call_queue''s alone, not %''s', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM callq.note_waiting(coalesce(OLD.queue, 'default'), coalesce(OLD.key, ''), -1);
    RETURN NULL;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION callq.call_deleted() FROM PUBLIC;

CREATE TRIGGER call_queue_deleted AFTER DELETE ON public.call_queue
    FOR EACH ROW WHEN (OLD.status IN ('new', 'error'))
    EXECUTE FUNCTION callq.call_deleted();

-- callq_backlog tells a producer how many calls of a queue wait, how many may (NULL: any number), and about when one that is inserted
-- now would start: when its limits have let through what waits, as fast as they may. Queues that share a limit take turns, or have their
-- shares. NULL: that is not known, as while it is paused.
-- +goose StatementBegin
CREATE FUNCTION public.callq_backlog(queue text DEFAULT 'default', OUT waiting bigint, OUT cap bigint, OUT starts_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH waits AS (
        SELECT CASE WHEN EXISTS (SELECT FROM callq.call_caps c WHERE c.queue = callq_backlog.queue AND c.counted)
            THEN (SELECT sum(w.calls) FROM callq.call_waiting w WHERE w.queue = callq_backlog.queue AND NOT w.of_key)
            ELSE coalesce((SELECT sum(f.calls) FROM callq.call_flows f WHERE f.queue = callq_backlog.queue), 0)
                + coalesce((SELECT sum(i.calls) FROM callq.call_inbox i WHERE i.queue = callq_backlog.queue), 0)
            END AS calls
    ), limits AS (
        SELECT extract(epoch FROM CASE WHEN l.shape ? 'burst' THEN (l.shape ->> 'period')::interval ELSE l.window_size END) / l.rate AS each_s,
            CASE WHEN l.shape ? 'burst' THEN -(l.shape ->> 'burst')::bigint
                ELSE (SELECT coalesce(sum(u.used), 0) FROM callq.call_usage u
                        WHERE u.limit_name = l.name AND u.bucket > clock_timestamp() - l.window_size)
                    + (SELECT count(*) FROM callq.call_open o WHERE l.name = ANY (o.limits)) - l.rate END AS over,
            coalesce((SELECT sum(CASE l.shares WHEN '{}' THEN least(b.calls, w.calls + 1) ELSE b.calls END) FROM (
                SELECT sum(f.calls) AS calls FROM callq.call_flows f WHERE f.queue = ANY (l.queues) AND f.queue <> callq_backlog.queue GROUP BY f.queue
            ) b), 0) AS others,
            100 / nullif(coalesce(l.shares -> callq_backlog.queue, l.shares -> 'rest')::float8, 0) - 1 AS most_others -- for each of its own
        FROM callq.call_queues q JOIN callq.call_limits l ON l.name = ANY (q.limits) CROSS JOIN waits w
        WHERE q.name = callq_backlog.queue AND l.window_size > '0' AND NOT l.per_key
    )
    SELECT coalesce(greatest(w.calls, 0), 0)::bigint, (SELECT c.most FROM callq.call_caps c WHERE c.queue = callq_backlog.queue),
        CASE WHEN EXISTS (SELECT FROM callq.call_queues q WHERE q.name = callq_backlog.queue) AND NOT EXISTS (
            SELECT FROM callq.call_pauses p
            WHERE p.key = '' AND p.until > clock_timestamp() AND (p.what = 'queue' AND p.name = callq_backlog.queue
                OR p.what = 'limit' AND p.name IN (SELECT unnest(q.limits) FROM callq.call_queues q WHERE q.name = callq_backlog.queue)))
        THEN clock_timestamp() + make_interval(secs => coalesce(
            (SELECT max(greatest(0, coalesce(w.calls, 0) + 1 + l.over + least(l.others, (coalesce(w.calls, 0) + 1) * l.most_others)) * l.each_s)
             FROM limits l), 0)::double precision) END
    FROM waits w
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION public.callq_backlog FROM PUBLIC;

-- +goose Down
DROP FUNCTION public.callq_backlog;
DROP TRIGGER call_queue_deleted ON public.call_queue;
DROP FUNCTION callq.call_deleted();
DROP FUNCTION callq.count_waiting(text);
DROP FUNCTION callq.keep_caps(bigint[]);
DROP FUNCTION callq.keep_cap(text, boolean, text, bigint[]);
DROP FUNCTION callq.note_waiting(text, text, bigint);
DROP FUNCTION callq.fold_waiting(text, boolean, text);
DROP TABLE callq.call_waiting, callq.call_caps;
