-- Routes: rules between an INSERT and the queue, which change a call or discard it.

-- +goose Up

-- Whether there ever were routes or caps: an INSERT looks for none before. It is a sequence, as that is read without a query.
CREATE SEQUENCE callq.call_ruled_seq;

-- Whoever inserts has the trigger's condition read it.
GRANT SELECT ON SEQUENCE callq.call_ruled_seq TO PUBLIC;

-- The rules in force, in order. What matches is NULL where it does not matter.
CREATE TABLE callq.call_routes (
    number       integer PRIMARY KEY, -- 1 is first
    rule         text    NOT NULL,    -- as a person reads it
    queues       text[],
    tasks        text[],
    keys         text[],              -- LIKE patterns
    methods      text[],              -- of call_data, in upper case
    hosts        text[],              -- of its url, in lower case
    fields       jsonb[],             -- of which call_data contains one
    set_queue    text,
    set_task     text,
    set_key      text,
    key_field    text[],              -- the path in call_data of the key
    set_priority smallint,
    set_cost     bigint,
    cost_field   text[],
    run_in       interval,
    expires_in   interval,
    discard      text,                -- why
    goes_on      boolean NOT NULL     -- with the rules after it
);

-- What rules did: a row a call and rule, which recovery adds up. They are told apart by their text, which outlives a change of the others.
CREATE TABLE callq.call_routed (
    rule      text        NOT NULL,
    moved     bigint      NOT NULL DEFAULT 0, -- calls that it changed
    discarded bigint      NOT NULL DEFAULT 0,
    failed    bigint      NOT NULL DEFAULT 0, -- calls that it left as they were, for error
    error     text,                           -- the last
    at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- It has no key. A publication of all tables refuses to delete from a table of which it cannot name the row.
ALTER TABLE callq.call_routed REPLICA IDENTITY FULL;

-- The rules that a call with these values matches, from one on. Postgres inlines it.
CREATE FUNCTION callq.matching(queue text, task text, key text, call_data jsonb, behind integer) RETURNS SETOF callq.call_routes
LANGUAGE sql STABLE AS $$
    SELECT r.* FROM callq.call_routes r
    WHERE r.number > matching.behind
      AND (r.queues IS NULL OR matching.queue = ANY (r.queues))
      AND (r.tasks IS NULL OR matching.task = ANY (r.tasks))
      AND (r.keys IS NULL OR matching.key LIKE ANY (r.keys))
      AND (r.methods IS NULL OR upper(coalesce(matching.call_data ->> 'method', 'GET')) = ANY (r.methods))
      AND (r.hosts IS NULL OR lower(substring(matching.call_data ->> 'url' FROM '^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(\[[^]]*\]|[^/?#:]*)')) = ANY (r.hosts))
      AND (r.fields IS NULL OR matching.call_data @> ANY (r.fields))
$$;

-- What becomes of a call by the rules. It stays as it is where no rule matched, or only rules that failed.
CREATE TYPE callq.routed AS (id bigint, queue text, task text, key text, priority smallint, cost bigint, run_in interval, expires_in interval,
    discard text, rules text[], failed text[], error text);

-- Puts a call through the rules. It changes nothing.
-- +goose StatementBegin
CREATE FUNCTION callq.route(id bigint, queue text, task text, key text, priority smallint, cost bigint, call_data jsonb) RETURNS callq.routed
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r      callq.call_routes;
    c      callq.routed := ROW(id, queue, task, key, priority, cost, NULL, NULL, NULL, NULL, NULL, NULL);
    behind integer := 0;
    flaw   text;
BEGIN
    LOOP
        SELECT m.* INTO r FROM callq.matching(c.queue, c.task, c.key, call_data, behind) m ORDER BY m.number LIMIT 1;
        EXIT WHEN NOT FOUND;
        behind := r.number;
        flaw := CASE
            WHEN r.key_field IS NOT NULL AND (jsonb_typeof(call_data #> r.key_field) IN ('string', 'number', 'boolean')) IS NOT TRUE THEN 'its key is no text in call_data'
            WHEN r.key_field IS NOT NULL AND octet_length(call_data #>> r.key_field) > 255 THEN 'its key in call_data is longer than 255 bytes'
            WHEN r.cost_field IS NOT NULL AND (call_data #>> r.cost_field ~ '^[1-9][0-9]{0,11}$') IS NOT TRUE
                THEN 'its cost in call_data is no whole number from 1 on'
        END;
        IF flaw IS NOT NULL THEN
            c.failed := c.failed || r.rule;
            c.error := flaw;
            CONTINUE;
        END IF;
        c.rules := c.rules || r.rule;
        c.discard := 'discarded by a route: ' || r.discard;
        EXIT WHEN c.discard IS NOT NULL;
        c.queue := coalesce(r.set_queue, c.queue);
        c.task := coalesce(r.set_task, c.task);
        c.key := coalesce(call_data #>> r.key_field, r.set_key, c.key);
        c.priority := coalesce(r.set_priority, c.priority);
        c.cost := coalesce((call_data #>> r.cost_field)::bigint, r.set_cost, c.cost);
        c.run_in := coalesce(r.run_in, c.run_in);
        c.expires_in := coalesce(r.expires_in, c.expires_in);
        EXIT WHEN NOT r.goes_on;
    END LOOP;
    RETURN c;
END $$;
-- +goose StatementEnd

-- A call that is inserted is written as the rules have it. Its unique key is unique in the queue that it comes to.
-- +goose StatementBegin
CREATE FUNCTION callq.route_call() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r callq.routed;
BEGIN
    IF TG_RELID <> 'public.call_queue'::regclass THEN
        RAISE EXCEPTION 'this function is call_queue''s alone, not %''s', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF NEW.status NOT IN ('', 'new', 'error') OR octet_length(NEW.key) > 255 THEN -- a call that has ended, or is refused
        RETURN NEW;
    END IF;
    r := callq.route(NEW.id, coalesce(nullif(NEW.queue, ''), 'default'), coalesce(nullif(NEW.task, ''), 'http'), coalesce(NEW.key, ''),
        NEW.priority, NEW.cost, coalesce(NEW.call_data, '{}'));
    IF r.rules IS NULL AND r.failed IS NULL THEN
        RETURN NEW;
    END IF;
    INSERT INTO callq.call_routed (rule, moved, discarded, failed, error) SELECT * FROM callq.routed_by(r.id, r.rules, r.discard IS NOT NULL, r.failed, r.error);
    IF r.rules IS NULL THEN
        RETURN NEW;
    END IF;
    NEW.queue := r.queue;
    NEW.task := r.task;
    NEW.key := r.key;
    NEW.priority := r.priority;
    NEW.cost := r.cost;
    NEW.run_at := coalesce(NEW.run_at, NEW.created_at, now()) + coalesce(r.run_in, '0');
    NEW.expires_at := coalesce(NEW.run_at + r.expires_in, NEW.expires_at);
    IF r.discard IS NOT NULL THEN
        NEW.status := 'cancelled';
        NEW.error_message := r.discard;
        NEW.finished_at := clock_timestamp();
        NEW.ended_key := NEW.unique_key;
        NEW.unique_key := NULL;
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd

-- What the rules did to a call, a row each.
CREATE FUNCTION callq.routed_by(id bigint, rules text[], discards boolean, failed text[], flaw text)
RETURNS TABLE (rule text, moved bigint, discarded bigint, failures bigint, error text) LANGUAGE sql STABLE AS $$
    SELECT n, (NOT discards)::int, discards::int, 0, NULL FROM unnest(rules) n
    UNION ALL
    SELECT n, 0, 0, 1, format('call %s: %s', id, flaw) FROM unnest(failed) n
$$;

-- The queue that a call comes to which is inserted so: where another one has its unique key. Of no queue (NULL) it is '' if there ever
-- were rules, else NULL.
-- +goose StatementBegin
CREATE FUNCTION public.callq_queue_of(queue text, task text, key text, call_data jsonb) RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN pg_sequence_last_value('callq.call_ruled_seq') IS NULL THEN queue
        WHEN queue IS NULL THEN ''
        ELSE (callq.route(0, queue, task, key, 5::smallint, 1, call_data)).queue END;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION callq.route_call(), public.callq_queue_of(text, text, text, jsonb) FROM PUBLIC;

CREATE TRIGGER call_queue_routed BEFORE INSERT ON public.call_queue
    FOR EACH ROW WHEN (pg_sequence_last_value('callq.call_ruled_seq') IS NOT NULL) EXECUTE FUNCTION callq.route_call();

-- Puts waiting calls through the rules, and returns what becomes of those that would be others. A call whose unique key another call of its
-- new queue has is a duplicate, and discarded. It changes nothing. (A function in SQL would be planned at each call.)
-- +goose StatementBegin
CREATE FUNCTION callq.routes_of(ids bigint[]) RETURNS SETOF callq.routed LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$ -- a plan may be older than the table is large
BEGIN
    RETURN QUERY
        SELECT n.id, n.queue, n.task, n.key, n.priority, n.cost, n.run_in, n.expires_in,
            coalesce(n.discard, CASE WHEN q.unique_key IS NOT NULL AND n.queue <> q.queue THEN (
                SELECT 'discarded by a route: call ' || o.id || ' of queue ' || n.queue || ' has its unique key'
                FROM public.call_queue o WHERE coalesce(o.queue, 'default') = n.queue AND o.unique_key = q.unique_key LIMIT 1) END),
            n.rules, n.failed, n.error
        FROM callq.call_effective q
        CROSS JOIN LATERAL callq.route(q.id, q.queue, q.task, q.key, q.priority, q.cost, q.call_data) n
        WHERE q.id = ANY (routes_of.ids) AND q.status IN ('new', 'error')
            AND (n.failed IS NOT NULL OR n.discard IS NOT NULL OR (n.queue, n.task, n.key, n.priority, n.cost) IS DISTINCT FROM (q.queue, q.task, q.key, q.priority, q.cost));
END $$;
-- +goose StatementEnd

-- Does to calls that wait what the rules make of them, and notes it. Their times stay.
-- +goose StatementBegin
CREATE FUNCTION callq.apply_routes(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c callq.routed;
BEGIN
    FOR c IN SELECT * FROM callq.routes_of(apply_routes.ids) LOOP
        UPDATE public.call_queue q
        SET queue = c.queue, task = c.task, key = c.key, priority = c.priority, cost = c.cost,
            status = CASE WHEN c.discard IS NULL THEN q.status ELSE 'cancelled' END,
            error_message = coalesce(c.discard, q.error_message),
            finished_at = CASE WHEN c.discard IS NOT NULL THEN clock_timestamp() END,
            ended_key = CASE WHEN c.discard IS NOT NULL THEN q.unique_key ELSE q.ended_key END,
            unique_key = CASE WHEN c.discard IS NULL THEN q.unique_key END
        WHERE c.rules IS NOT NULL AND q.id BETWEEN c.id AND c.id AND q.status IN ('new', 'error'); -- no plan takes another way than the primary key
        INSERT INTO callq.call_routed (rule, moved, discarded, failed, error) SELECT * FROM callq.routed_by(c.id, c.rules, c.discard IS NOT NULL, c.failed, c.error);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION callq.apply_routes(bigint[]);
DROP FUNCTION callq.routes_of(bigint[]);
DROP TRIGGER call_queue_routed ON public.call_queue;
DROP FUNCTION public.callq_queue_of(text, text, text, jsonb);
DROP FUNCTION callq.route_call();
DROP FUNCTION callq.routed_by(bigint, text[], boolean, text[], text);
DROP FUNCTION callq.route(bigint, text, text, text, smallint, bigint, jsonb);
DROP TYPE callq.routed;
DROP FUNCTION callq.matching(text, text, text, jsonb, integer);
DROP TABLE callq.call_routed, callq.call_routes;
DROP SEQUENCE callq.call_ruled_seq;
