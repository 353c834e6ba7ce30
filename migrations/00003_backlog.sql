-- The backlog: where waiting calls are found. It only says where to look: whether a call waits, its own row says.

-- +goose Up

-- What has become known of a queue and is not yet in its flows: calls that wait, from "at" on; or, without calls, that a key
-- may no longer be blocked. Written by the transaction that makes it so, hence visible exactly when that is. The queue's next
-- claim drains it.
CREATE TABLE callq.call_inbox (
    queue    text        NOT NULL,
    at       timestamptz NOT NULL,
    task     text,
    key      text        NOT NULL,
    priority smallint,   -- the row's, within 0..9, or that of a retry (callq.call_flows)
    calls    integer     NOT NULL DEFAULT 0,
    ids      bigint[],
    keys     text[],     -- of each of ids; NULL: they are all of key
    again    boolean     NOT NULL DEFAULT false, -- they were claimed or moved before: their place may be in front
    all_keys boolean     NOT NULL DEFAULT false -- without calls: neither key nor any after it may be blocked any longer
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- It has no key. A publication of all tables refuses to delete from a table of which it cannot name the row.
ALTER TABLE callq.call_inbox REPLICA IDENTITY FULL;

-- To compress ids takes longer than to write them as they are.
ALTER TABLE callq.call_inbox ALTER COLUMN ids SET STORAGE EXTERNAL;

CREATE INDEX call_inbox_due_idx ON callq.call_inbox (queue, at);

-- A flow for each queue, key, priority and task in which calls wait: from which place in which of its segments on. A key that no
-- limit has room for is parked until wake_at, with its flows from a priority on. Where a limit of the queue has a share for retries,
-- calls in error have flows of their own: their priority is 10 more. This table and the next are written under the lock of the
-- queue's row.
CREATE TABLE callq.call_flows (
    queue    text     NOT NULL,
    key      text     NOT NULL,
    priority smallint NOT NULL,
    task     text     NOT NULL,
    calls    bigint   NOT NULL,           -- not consumed; 0: it is empty
    head     bigint   NOT NULL DEFAULT 1, -- its first segment
    consumed integer  NOT NULL DEFAULT 0, -- calls of the first segment
    tail     bigint   NOT NULL,           -- its last segment
    wake_at  timestamptz,
    PRIMARY KEY (queue, key, priority, task)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX call_flows_active_idx ON callq.call_flows (queue, task, key, priority) WHERE wake_at IS NULL;

CREATE INDEX call_flows_wake_idx ON callq.call_flows (queue, wake_at) WHERE wake_at IS NOT NULL;

-- Segments of at most 256 calls of a flow, in the order in which they fell due. A segment is rewritten only if calls that come back
-- unsent go in front of it: then what was consumed is cut off.
CREATE TABLE callq.call_segments (
    queue    text        NOT NULL,
    key      text        NOT NULL,
    priority smallint    NOT NULL,
    task     text        NOT NULL,
    seq      bigint      NOT NULL,
    at       timestamptz NOT NULL, -- when its first call fell due, or one that was before it
    ids      bigint[]    NOT NULL,
    PRIMARY KEY (queue, key, priority, task, seq)
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- The calls of a flow that are not consumed, in their order. Postgres inlines it: with a LIMIT behind it, it reads no more segments
-- than it needs, through their primary key, and sorts nothing.
CREATE FUNCTION callq.unconsumed(queue text, key text, priority smallint, task text, head bigint, consumed integer)
RETURNS TABLE (seq bigint, place bigint, id bigint) LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT w.seq, i.place, i.id
    FROM (
        SELECT s.seq, s.ids FROM callq.call_segments s
        WHERE s.queue = unconsumed.queue AND s.key = unconsumed.key AND s.priority = unconsumed.priority AND s.task = unconsumed.task
          AND s.seq >= unconsumed.head
        ORDER BY s.seq
    ) w
    CROSS JOIN LATERAL unnest(w.ids) WITH ORDINALITY AS i (id, place)
    WHERE w.seq > unconsumed.head OR i.place > unconsumed.consumed
$$;

-- Each call that a flow or the inbox names. It may have ended since, and may be here twice.
CREATE VIEW callq.call_backlog AS
SELECT l.queue, l.key, l.priority, l.task, w.at, i.id
FROM callq.call_flows l
JOIN callq.call_segments w ON w.queue = l.queue AND w.key = l.key AND w.priority = l.priority AND w.task = l.task AND w.seq >= l.head
CROSS JOIN LATERAL unnest(w.ids) WITH ORDINALITY AS i (id, place)
WHERE l.calls > 0 AND (w.seq > l.head OR i.place > l.consumed)
UNION ALL
SELECT n.queue, coalesce(i.key, n.key), n.priority, n.task, n.at, i.id
FROM callq.call_inbox n CROSS JOIN LATERAL unnest(n.ids, n.keys) AS i (id, key);

-- Flows that do not add up: their segments do not lie between head and tail, or do not hold as many calls as the flow has.
-- Segments without a flow would be in the way of a later one's.
CREATE VIEW callq.call_broken_flows AS
SELECT queue, key, priority, task
FROM callq.call_flows l FULL JOIN callq.call_segments w USING (queue, key, priority, task)
GROUP BY queue, key, priority, task
HAVING bool_or(l.calls IS NULL OR w.seq < l.head OR w.seq > l.tail)
    OR max(l.calls) <> coalesce(sum(cardinality(w.ids) - CASE w.seq WHEN l.head THEN l.consumed ELSE 0 END), 0);

-- The priority that a call waits with: 0 is first, 9 last, 5 the default.
CREATE FUNCTION callq.priority(priority smallint) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(greatest(coalesce(priority, 5), 0), 9)::smallint
$$;

-- When a dispatcher last heard that there are new calls, in ms. A sequence, since all see its value at once.
CREATE SEQUENCE callq.call_wake_seq;

-- Wakes the dispatchers, unless they have heard of new calls within 80 ms, or this transaction has done so: a NOTIFY in each insert would
-- make all committing producers wait for one another. What is committed in between without a wake, their early polls find. A
-- dispatcher notes what it heard. The notifying transaction must not, for it may roll back; but while no dispatcher is alive it has to.
-- +goose StatementBegin
CREATE FUNCTION callq.wake() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := date_part('epoch', clock_timestamp()) * 1000;
BEGIN
    IF abs(now_ms - coalesce(pg_sequence_last_value('callq.call_wake_seq'), 0)) < 80 OR current_setting('callq.woke', true) = 'on' THEN
        RETURN;
    END IF;
    PERFORM pg_notify('callq_wake', ''), set_config('callq.woke', 'on', true);
    IF NOT EXISTS (SELECT FROM callq.call_dispatchers WHERE callq.alive(heartbeat_at)) THEN
        PERFORM setval('callq.call_wake_seq', now_ms);
    END IF;
END $$;
-- +goose StatementEnd

-- An empty unique key is none, as for enqueue_call. Each INSERT parses the condition, so it is short: what else ORMs insert for what
-- is not set, callq.calls_inserted repairs.
-- +goose StatementBegin
CREATE FUNCTION callq.no_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.unique_key := NULL;
    RETURN NEW;
END $$;
-- +goose StatementEnd

-- What ORMs insert for what is not set means the default: '' where a text has one, NULL where AutoMigrate has dropped it, or a copy of
-- another call's columns.
CREATE FUNCTION callq.normalizes() RETURNS boolean LANGUAGE sql STABLE AS $$ SELECT current_setting('callq.repair', true) IS DISTINCT FROM 'on' $$;

-- +goose StatementBegin
CREATE FUNCTION callq.normalize_calls(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    repair text := coalesce(current_setting('callq.repair', true), '');
BEGIN
    PERFORM set_config('callq.repair', 'own', true);
    UPDATE public.call_queue
    SET status = CASE WHEN status IN ('dispatched', 'done', 'failed', 'cancelled') THEN status ELSE 'new' END, attempts = 0, failed_count = 0,
        queue = nullif(queue, ''), task = nullif(task, ''), dispatched_at = NULL, finished_at = NULL, failed_at = NULL, error_message = NULL,
        retried_after = NULL
    WHERE id = ANY (ids);
    PERFORM set_config('callq.repair', repair, true);
END $$;
-- +goose StatementEnd

-- Files calls that were inserted and have been changed since in the inbox, as callq.calls_inserted does with others.
-- +goose StatementBegin
CREATE FUNCTION callq.file_calls(ids bigint[]) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    INSERT INTO callq.call_inbox (queue, at, task, key, priority, calls, ids)
    SELECT q.queue, q.run_at, q.task, q.key, callq.priority(q.priority), count(*), array_agg(q.id)
    FROM callq.call_effective q
    WHERE q.id = ANY (file_calls.ids) AND q.status IN ('new', 'error')
    GROUP BY 1, 2, 3, 4, 5, q.id >> 16;
END $$;
-- +goose StatementEnd

-- Who may only insert writes no id of its own making: one that comes next would pass for others.
-- +goose StatementBegin
CREATE FUNCTION callq.refuse_id(id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT has_table_privilege(session_user, 'public.call_queue', 'UPDATE') THEN
        RAISE EXCEPTION 'the id % is none that Postgres gave', id
            USING ERRCODE = 'insufficient_privilege', HINT = 'Nothing was written. Leave id out, or DEFAULT.';
    END IF;
    RETURN false;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION callq.refuse_status(status text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '"%" is no status of a call', status
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Nothing was written. Leave status out: a call that is inserted is new.';
END $$;
-- +goose StatementEnd

-- The triggers run as the owner: a producer needs no right to these tables. No other role may execute their functions, and they
-- refuse other tables: as a trigger of a temporary table whose columns have casts of its owner's own, they would run those
-- casts as the owner of callq's tables.
--
-- Ids are cut in ranges of 65,536, so that no row of a large COPY is too large to drain. Rows are coalesced if the first 500 calls
-- show that most have a key of their own: then ranges of 2,048 ids have the keys beside them.
-- +goose StatementBegin
CREATE FUNCTION callq.calls_inserted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    counted    bigint; -- of the first 500 calls
    inbox_rows bigint; -- for those
    coalesced  bigint; -- inbox rows if their keys stand beside them
    last_id    bigint; -- that Postgres gave
    capped     boolean := pg_sequence_last_value('callq.call_ruled_seq') IS NOT NULL; -- some queue is
    changed    boolean := false; -- some calls are no longer as they were inserted
BEGIN
    IF TG_RELID <> 'public.call_queue'::regclass THEN
        RAISE EXCEPTION 'this function is call_queue''s alone, not %''s', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF (abs(date_part('epoch', clock_timestamp()) * 1000 - pg_sequence_last_value('callq.call_wake_seq')) < 80
        OR current_setting('callq.woke', true) = 'on') IS NOT TRUE THEN
        PERFORM callq.wake();
    END IF;
    -- One call, as most statements insert: grouping would cost more than all the rest.
    capped := capped AND EXISTS (SELECT FROM callq.call_caps); -- a query, where there ever were rules
    IF NOT capped THEN
        INSERT INTO callq.call_inbox (queue, at, task, key, priority, calls, ids)
        SELECT coalesce(queue, 'default'), coalesce(run_at, created_at), coalesce(task, 'http'), coalesce(key, ''),
            callq.priority(priority), 1, ARRAY[id]
        FROM inserted
        WHERE status IN ('new', 'error') AND attempts = 0 AND (queue = '' OR task = '') IS NOT TRUE
          AND id <= pg_sequence_last_value('public.call_queue_id_seq') AND NOT EXISTS (SELECT FROM inserted OFFSET 1)
          AND callq.bounded(queue, task, key, unique_key, max_attempts);
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    last_id := coalesce(pg_sequence_last_value('public.call_queue_id_seq'), 0);
    PERFORM FROM inserted
    WHERE id > last_id AND callq.refuse_id(id) OR CASE
        WHEN NOT callq.bounded(queue, task, key, unique_key, max_attempts) THEN NULL -- not reached: it is refused
        WHEN status = 'new' THEN attempts > 0 AND callq.normalizes() OR queue = '' OR task = ''
        WHEN status = 'error' THEN callq.normalizes()
        WHEN status = '' OR status IS NULL THEN true
        WHEN status NOT IN ('dispatched', 'done', 'failed', 'cancelled') THEN callq.refuse_status(status)
        ELSE false END;
    changed := FOUND;
    IF changed THEN
        PERFORM callq.normalize_calls(array(SELECT id FROM inserted WHERE status IN ('', 'new', 'error') OR status IS NULL));
    END IF;
    IF capped THEN
        PERFORM callq.keep_caps(array(SELECT id FROM inserted));
    END IF;
    IF changed THEN
        PERFORM callq.file_calls(array(SELECT id FROM inserted));
        RETURN NULL;
    END IF;
    SELECT sum(n), sum(keys), count(*) INTO counted, inbox_rows, coalesced
    FROM (
        SELECT sum(n) AS n, count(*) AS keys
        FROM (
            SELECT queue, task, priority, at, key, count(*) AS n
            FROM (SELECT queue, coalesce(run_at, created_at) AS at, task, key, priority FROM inserted LIMIT 500) AS first
            GROUP BY queue, task, priority, at, key
        ) AS each
        GROUP BY queue, task, priority, at
    ) AS together;
    IF 4 * inbox_rows > counted AND coalesced < inbox_rows THEN
        INSERT INTO callq.call_inbox (queue, at, task, key, priority, calls, ids, keys)
        SELECT coalesce(queue, 'default'), coalesce(run_at, created_at), coalesce(task, 'http'), '',
            callq.priority(priority), count(*), array_agg(id), array_agg(coalesce(key, ''))
        FROM inserted
        WHERE status IN ('new', 'error')
        GROUP BY 1, 2, 3, 5, id >> 11;
    ELSE
        INSERT INTO callq.call_inbox (queue, at, task, key, priority, calls, ids)
        SELECT coalesce(queue, 'default'), coalesce(run_at, created_at), coalesce(task, 'http'), coalesce(key, ''),
            callq.priority(priority), count(*), array_agg(id)
        FROM inserted
        WHERE status IN ('new', 'error')
        GROUP BY 1, 2, 3, 4, 5, id >> 16;
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- What was updated otherwise than by a claim or a close. A call that waits again, or elsewhere, enters the inbox, changed by
-- callq or plain SQL. An ended call holds no unique key, and what is empty means the default, as in an INSERT. callq's own columns
-- keep to what it does: an ORM that writes a stale copy back would have a call made twice, or never. To repair rows by hand, set
-- callq.repair.
-- +goose StatementBegin
CREATE FUNCTION callq.call_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended  CONSTANT text[] := '{done,failed,cancelled}';
    flaw   text;
    column_name text := 'status';
BEGIN
    IF TG_RELID <> 'public.call_queue'::regclass THEN
        RAISE EXCEPTION 'this function is call_queue''s alone, not %''s', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF current_setting('callq.repair', true) = 'own' THEN -- callq.normalize_calls does the rest
        RETURN NULL;
    END IF;
    -- What is there already may stay.
    IF NOT callq.bounded(nullif(NEW.queue, OLD.queue), nullif(NEW.task, OLD.task), nullif(NEW.key, OLD.key),
        nullif(NEW.unique_key, OLD.unique_key), nullif(NEW.max_attempts, OLD.max_attempts)) THEN
        RETURN NULL; -- not reached: it is refused
    END IF;
    CASE
    WHEN NEW.status IS DISTINCT FROM OLD.status THEN
        flaw := CASE
            WHEN NEW.status IS NULL OR NEW.status <> ALL (ended || '{new,error,dispatched}') THEN 'it is no status'
            WHEN NEW.status = 'dispatched' AND NEW.attempts = OLD.attempts
                AND NOT EXISTS (SELECT FROM callq.call_open WHERE call_id = NEW.id) THEN 'only a dispatcher hands calls over'
            WHEN NEW.status = 'done' AND OLD.status <> 'dispatched' THEN 'only an attempt makes a call done: cancel it (callq calls cancel), or delete it'
            WHEN NEW.status = ANY (ended) AND OLD.status = ANY (ended) THEN 'the call has ended'
            WHEN NEW.status = ANY (ended) AND (NEW.finished_at IS NULL OR NEW.status = 'failed' AND NEW.failed_at IS NULL) THEN
                'cancel it (callq calls cancel), or delete it (callq calls delete)'
            WHEN OLD.status = ANY (ended) AND (NEW.retried_after IS DISTINCT FROM NEW.attempts OR NEW.failed_count <> 0 OR NEW.finished_at IS NOT NULL) THEN
                'to make it again: callq calls retry'
        END;
    WHEN NEW.status = ANY (ended) AND NEW.finished_at IS NULL AND OLD.finished_at IS NOT NULL THEN
        flaw := 'it says since when the call has ended';
        column_name := 'finished_at';
    ELSE
        NULL;
    END CASE;
    IF flaw IS NULL AND NEW.attempts IS DISTINCT FROM OLD.attempts
        AND NOT (NEW.status = 'dispatched' AND OLD.status IN ('new', 'error') AND NEW.attempts = OLD.attempts + 1) THEN
        flaw := 'it numbers the attempts in the ledger';
        column_name := 'attempts';
    ELSIF flaw IS NULL AND NEW.failed_count < OLD.failed_count AND NEW.retried_after IS NOT DISTINCT FROM OLD.retried_after THEN
        flaw := 'to try it again: callq calls retry';
        column_name := 'failed_count';
    END IF;
    IF flaw IS NOT NULL AND callq.normalizes() THEN
        RAISE EXCEPTION 'call % is %: its % is callq''s own', NEW.id, OLD.status, column_name
            USING ERRCODE = 'CQ002', COLUMN = column_name, DETAIL = format('%s: from %L to %L: %s.', column_name,
                to_jsonb(OLD) ->> column_name, to_jsonb(NEW) ->> column_name, flaw),
            HINT = 'Nothing was written. Update only the columns that producers set (docs/producers.md); a model that saves all of them was loaded too early.';
    END IF;
    IF (OLD.status IN ('new', 'error') OR NEW.status IN ('new', 'error')) AND pg_sequence_last_value('callq.call_ruled_seq') IS NOT NULL THEN
        PERFORM callq.note_waiting(coalesce(nullif(w.queue, ''), 'default'), coalesce(w.key, ''), w.calls)
        FROM (VALUES (OLD.status, OLD.queue, OLD.key, -1), (NEW.status, NEW.queue, NEW.key, 1)) AS w (status, queue, key, calls)
        WHERE w.status IN ('new', 'error') AND ((OLD.status IN ('new', 'error')) <> (NEW.status IN ('new', 'error'))
            OR (OLD.queue, OLD.key) IS DISTINCT FROM (NEW.queue, NEW.key));
    END IF;
    IF NEW.unique_key IS NOT NULL AND NEW.status = ANY (ended) OR NEW.unique_key = '' OR NEW.queue = '' OR NEW.task = '' THEN
        UPDATE public.call_queue
        SET queue = nullif(queue, ''), task = nullif(task, ''), unique_key = CASE WHEN NEW.status = ANY (ended) THEN NULL ELSE nullif(unique_key, '') END
        WHERE id = NEW.id;
        IF NEW.queue = '' OR NEW.task = '' THEN -- that update came here too, as a call that waits elsewhere
            RETURN NULL;
        END IF;
    END IF;
    IF NEW.status IN ('new', 'error') AND (OLD.status NOT IN ('new', 'error')
        OR (OLD.queue, OLD.task, OLD.key, OLD.priority, OLD.run_at) IS DISTINCT FROM (NEW.queue, NEW.task, NEW.key, NEW.priority, NEW.run_at)) THEN
        INSERT INTO callq.call_inbox (queue, at, task, key, priority, calls, ids, again)
        VALUES (coalesce(NEW.queue, 'default'), coalesce(NEW.run_at, NEW.created_at), coalesce(NEW.task, 'http'),
            coalesce(NEW.key, ''), callq.priority(NEW.priority) + CASE WHEN NEW.status = 'error' AND EXISTS (
                SELECT FROM callq.call_limits l WHERE l.shares ? 'retries' AND coalesce(NEW.queue, 'default') = ANY (l.queues)) THEN 10 ELSE 0 END,
            1, ARRAY[NEW.id], true);
        IF coalesce(NEW.run_at, NEW.created_at) <= clock_timestamp() THEN
            PERFORM callq.wake();
        END IF;
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION callq.calls_inserted(), callq.call_changed(), callq.wake() FROM PUBLIC;

CREATE TRIGGER call_queue_no_key BEFORE INSERT ON public.call_queue
    FOR EACH ROW WHEN (NEW.unique_key = '') EXECUTE FUNCTION callq.no_key();

CREATE TRIGGER call_queue_inserted AFTER INSERT ON public.call_queue
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION callq.calls_inserted();

-- What is neither a claim nor the end of a call: callq's own statements that are one parse this, and do no more.
CREATE TRIGGER call_queue_changed AFTER UPDATE ON public.call_queue
    FOR EACH ROW
    WHEN ((NEW.status = 'dispatched' AND NEW.attempts = OLD.attempts + 1
        OR NEW.status NOT IN ('new', 'error', 'dispatched') AND OLD.status = 'dispatched' AND NEW.attempts = OLD.attempts
            AND NEW.unique_key IS NULL AND NEW.finished_at IS NOT NULL) IS NOT TRUE)
    EXECUTE FUNCTION callq.call_changed();

-- +goose Down
DROP TRIGGER call_queue_changed ON public.call_queue;
DROP TRIGGER call_queue_inserted ON public.call_queue;
DROP TRIGGER call_queue_no_key ON public.call_queue;
DROP FUNCTION callq.call_changed();
DROP FUNCTION callq.calls_inserted();
DROP FUNCTION callq.refuse_status(text);
DROP FUNCTION callq.refuse_id(bigint);
DROP FUNCTION callq.file_calls(bigint[]);
DROP FUNCTION callq.normalize_calls(bigint[]);
DROP FUNCTION callq.normalizes();
DROP FUNCTION callq.no_key();
DROP FUNCTION callq.wake();
DROP SEQUENCE callq.call_wake_seq;
DROP FUNCTION callq.priority(smallint);
DROP VIEW callq.call_broken_flows;
DROP VIEW callq.call_backlog;
DROP FUNCTION callq.unconsumed(text, text, smallint, text, bigint, integer);
DROP TABLE callq.call_segments, callq.call_flows, callq.call_inbox;
