-- Where waiting calls are found. They only say where to look: whether a call waits, its own row says.

-- +goose Up

-- What has become known of a queue and is not yet in its lines: calls that wait, from "at" on; or, without
-- calls, that a key may no longer be blocked. Written by the transaction that makes it so, hence visible
-- exactly when that is; taken out by the queue's next claim (intake).
CREATE TABLE call_news (
    queue    text        NOT NULL,
    at       timestamptz NOT NULL,
    task     text,
    key      text        NOT NULL,
    priority smallint,   -- as the row says, within 0..9
    calls    integer     NOT NULL DEFAULT 0,
    ids      bigint[],
    keys     text[],     -- of each of ids; NULL: they are all of key
    again    boolean     NOT NULL DEFAULT false, -- they were claimed or moved before: their place may be in front
    onward   boolean     NOT NULL DEFAULT false -- without calls: key and every key after it
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX call_news_at_idx ON call_news (queue, at);

-- A line for each queue, key, priority and task in which calls wait: from which place in which of its
-- chunks on. A key that no limit has room for is parked until wake_at, with its lines from a priority on.
-- Everything in this table and the next two is written under the lock of the queue's row.
CREATE TABLE call_lines (
    queue    text     NOT NULL,
    key      text     NOT NULL,
    priority smallint NOT NULL,
    task     text     NOT NULL,
    calls    bigint   NOT NULL,           -- that have not left it; 0: it is empty
    head     bigint   NOT NULL DEFAULT 1, -- its first chunk
    taken    integer  NOT NULL DEFAULT 0, -- calls of that which have left
    tail     bigint   NOT NULL,           -- its last chunk
    wake_at  timestamptz,
    PRIMARY KEY (queue, key, priority, task)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX call_lines_active_idx ON call_lines (queue, task, key, priority) WHERE wake_at IS NULL;

CREATE INDEX call_lines_wake_idx ON call_lines (queue, wake_at) WHERE wake_at IS NOT NULL;

-- Chunks of at most 256 calls of a line, in the order in which they fell due. Rewritten only where what comes
-- back unsent goes in front, for the chunk that was begun is cut.
CREATE TABLE call_waiting (
    queue    text        NOT NULL,
    key      text        NOT NULL,
    priority smallint    NOT NULL,
    task     text        NOT NULL,
    seq      bigint      NOT NULL,
    at       timestamptz NOT NULL, -- when its first call fell due, or one that was before it
    ids      bigint[]    NOT NULL,
    PRIMARY KEY (queue, key, priority, task, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- Each call that lines or news speak of. It may have ended since, and may be here twice.
CREATE VIEW call_in_line AS
SELECT l.queue, l.key, l.priority, l.task, w.at, i.id
FROM call_lines l
JOIN call_waiting w ON w.queue = l.queue AND w.key = l.key AND w.priority = l.priority AND w.task = l.task AND w.seq >= l.head
CROSS JOIN LATERAL unnest(w.ids) WITH ORDINALITY AS i (id, place)
WHERE l.calls > 0 AND (w.seq > l.head OR i.place > l.taken)
UNION ALL
SELECT n.queue, coalesce(i.key, n.key), n.priority, n.task, n.at, i.id
FROM call_news n CROSS JOIN LATERAL unnest(n.ids, n.keys) AS i (id, key);

-- How news and lines call a call's queue, key or task. One beyond 255 bytes, with which no call can be made,
-- is cut: an index takes in no more than 2,704 bytes, and such a call must keep no other from its line.
CREATE FUNCTION callq_line_name(name text, unset text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN octet_length(name) > 255 THEN left(name, 63) ELSE coalesce(name, unset) END
$$;

-- The triggers run as the owner: a producer needs no right to these tables. Ids are cut in ranges of
-- 65,536, so that no row of a large COPY is too large to take in. Where that would be a row for each few calls, which the
-- first 500 tell, and keys are what it is for, news are folded: ranges of 2,048 ids with the keys beside them.
-- +goose StatementBegin
CREATE FUNCTION callq_calls_inserted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    counted   bigint; -- of the first 500 calls
    news      bigint; -- rows for those
    news_keys bigint; -- rows if their keys are set aside
BEGIN
    -- One call, as most statements insert: grouping would cost more than all the rest.
    INSERT INTO call_news (queue, at, task, key, priority, calls, ids)
    SELECT callq_line_name(queue, 'default'), coalesce(run_at, created_at), callq_line_name(task, 'http'), callq_line_name(key, ''),
        least(greatest(coalesce(priority, 5), 0), 9), 1, ARRAY[id]
    FROM inserted
    WHERE status IN ('new', 'error') AND NOT EXISTS (SELECT FROM inserted OFFSET 1);
    IF FOUND THEN
        RETURN NULL;
    END IF;
    SELECT sum(n), sum(keys), count(*) INTO counted, news, news_keys
    FROM (
        SELECT sum(n) AS n, count(*) AS keys
        FROM (
            SELECT queue, task, priority, at, key, count(*) AS n
            FROM (SELECT queue, coalesce(run_at, created_at) AS at, task, key, priority FROM inserted LIMIT 500) AS first
            GROUP BY queue, task, priority, at, key
        ) AS each
        GROUP BY queue, task, priority, at
    ) AS together;
    IF 4 * news > counted AND news_keys < news THEN
        INSERT INTO call_news (queue, at, task, key, priority, calls, ids, keys)
        SELECT callq_line_name(queue, 'default'), coalesce(run_at, created_at), callq_line_name(task, 'http'), '',
            least(greatest(coalesce(priority, 5), 0), 9), count(*), array_agg(id), array_agg(callq_line_name(key, ''))
        FROM inserted
        WHERE status IN ('new', 'error')
        GROUP BY 1, 2, 3, 5, id >> 11;
    ELSE
        INSERT INTO call_news (queue, at, task, key, priority, calls, ids)
        SELECT callq_line_name(queue, 'default'), coalesce(run_at, created_at), callq_line_name(task, 'http'), callq_line_name(key, ''),
            least(greatest(coalesce(priority, 5), 0), 9), count(*), array_agg(id)
        FROM inserted
        WHERE status IN ('new', 'error')
        GROUP BY 1, 2, 3, 4, 5, id >> 16;
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION callq_call_waits_again() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO call_news (queue, at, task, key, priority, calls, ids, again)
    VALUES (callq_line_name(NEW.queue, 'default'), coalesce(NEW.run_at, NEW.created_at), callq_line_name(NEW.task, 'http'),
        callq_line_name(NEW.key, ''), least(greatest(coalesce(NEW.priority, 5), 0), 9), 1, ARRAY[NEW.id], true);
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- Whatever a producer's search_path is, the functions mean callq's own tables.
-- +goose StatementBegin
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION callq_calls_inserted() SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION callq_call_waits_again() SET search_path = %I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd

CREATE TRIGGER call_queue_inserted AFTER INSERT ON call_queue
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION callq_calls_inserted();

-- A call that waits again, or elsewhere: whoever changed it, callq or plain SQL.
CREATE TRIGGER call_queue_waits_again AFTER UPDATE ON call_queue
    FOR EACH ROW
    WHEN (NEW.status IN ('new', 'error') AND (OLD.status NOT IN ('new', 'error')
        OR (OLD.queue, OLD.task, OLD.key, OLD.priority, OLD.run_at) IS DISTINCT FROM (NEW.queue, NEW.task, NEW.key, NEW.priority, NEW.run_at)))
    EXECUTE FUNCTION callq_call_waits_again();

-- Calls that wait already.
INSERT INTO call_news (queue, at, task, key, priority, calls, ids)
SELECT callq_line_name(queue, 'default'), coalesce(run_at, created_at), callq_line_name(task, 'http'), callq_line_name(key, ''),
    least(greatest(coalesce(priority, 5), 0), 9), count(*), array_agg(id)
FROM call_queue
WHERE status IN ('new', 'error')
GROUP BY 1, 2, 3, 4, 5, id >> 16;

-- +goose Down
DROP TRIGGER call_queue_waits_again ON call_queue;
DROP TRIGGER call_queue_inserted ON call_queue;
DROP FUNCTION callq_call_waits_again();
DROP FUNCTION callq_calls_inserted();
DROP FUNCTION callq_line_name(text, text);
DROP VIEW call_in_line;
DROP TABLE call_waiting, call_lines, call_news;
