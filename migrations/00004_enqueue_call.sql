-- enqueue_call: an insert for a role that may do nothing but execute it.

-- +goose Up

-- enqueue_call inserts a call and returns its id. Where an unfinished call of the queue has the same unique
-- key, nothing is inserted: the id is that call's, and duplicate is true. An explicit NULL means the
-- default. What could never be made is refused with 22023, and call_data beyond the bound that the
-- configuration sets (calls.max_data, 256 KiB) with 54000.
--
-- It runs with its owner's rights. So the table is named with its schema, and nothing else but Postgres's
-- own is searched for anywhere; and PUBLIC, which may execute a new function, may not execute this one.
-- It does not wake the dispatchers: a NOTIFY per insert makes all committing producers wait for one
-- another (0.37x). They find the call within 80 ms, or when the producer runs NOTIFY callq_wake.
-- +goose StatementBegin
CREATE FUNCTION public.enqueue_call(
    task         text        DEFAULT 'http',
    call_data    jsonb       DEFAULT '{}',
    queue        text        DEFAULT 'default',
    key          text        DEFAULT '',
    cost         bigint      DEFAULT 1,
    priority     integer     DEFAULT 5,
    run_at       timestamptz DEFAULT NULL, -- now
    expires_at   timestamptz DEFAULT NULL,
    unique_key   text        DEFAULT NULL,
    max_attempts integer     DEFAULT NULL, -- the queue's
    OUT id        bigint,
    OUT duplicate boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    flaw text;
    most bigint := coalesce((SELECT m.position FROM callq.call_meta m WHERE m.name = 'max_data'), 262144);
BEGIN
    -- An empty queue, task or unique key is none, as for the Go client.
    task       := coalesce(nullif(task, ''), 'http');
    call_data  := coalesce(call_data, '{}');
    queue      := coalesce(nullif(queue, ''), 'default');
    key        := coalesce(key, '');
    cost       := coalesce(cost, 1);
    priority   := coalesce(priority, 5);
    unique_key := nullif(unique_key, '');

    flaw := CASE
        WHEN octet_length(task) > 255 THEN 'task is longer than 255 bytes'
        WHEN octet_length(queue) > 255 THEN 'queue is longer than 255 bytes'
        WHEN octet_length(key) > 255 THEN 'key is longer than 255 bytes'
        WHEN octet_length(unique_key) > 255 THEN 'unique_key is longer than 255 bytes'
        WHEN cost < 1 THEN 'cost is ' || cost || ', less than 1'
        WHEN priority NOT BETWEEN 0 AND 9 THEN 'priority is ' || priority || ', outside 0 to 9'
        WHEN max_attempts < 1 THEN 'max_attempts is ' || max_attempts || ', less than 1'
        WHEN run_at < '0001-01-01Z' OR run_at >= '10000-01-01Z' THEN 'run_at is outside the years 1 to 9999'
        WHEN expires_at < '0001-01-01Z' OR expires_at >= '10000-01-01Z' THEN 'expires_at is outside the years 1 to 9999'
        WHEN expires_at < run_at THEN 'expires_at is before run_at'
    END;
    IF flaw IS NOT NULL THEN
        RAISE EXCEPTION 'enqueue_call: %', flaw USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(call_data::text) > most THEN
        RAISE EXCEPTION 'enqueue_call: call_data has % bytes, of at most %', octet_length(call_data::text), most
            USING ERRCODE = 'program_limit_exceeded';
    END IF;

    duplicate := false;
    IF unique_key IS NULL THEN
        INSERT INTO public.call_queue AS q
            (task, call_data, queue, key, cost, priority, run_at, expires_at, max_attempts)
        VALUES (task, call_data, queue, key, cost, priority, coalesce(run_at, now()), expires_at, max_attempts)
        RETURNING q.id INTO id;
        RETURN;
    END IF;
    -- The insert waits for a transaction that has inserted the same key; where that rolls back, it goes on.
    -- A turn without an id means that the other call ended between the two statements.
    LOOP
        INSERT INTO public.call_queue AS q
            (task, call_data, queue, key, cost, priority, run_at, expires_at, unique_key, max_attempts)
        VALUES
            (task, call_data, queue, key, cost, priority, coalesce(run_at, now()), expires_at, unique_key, max_attempts)
        ON CONFLICT (coalesce(queue, 'default'), unique_key) WHERE unique_key IS NOT NULL DO NOTHING
        RETURNING q.id INTO id;
        EXIT WHEN FOUND;
        SELECT e.id INTO id FROM callq.call_effective e
        WHERE e.queue = public.callq_queue_of(enqueue_call.queue, enqueue_call.task, enqueue_call.key, enqueue_call.call_data) AND e.unique_key = enqueue_call.unique_key;
        duplicate := FOUND;
        EXIT WHEN FOUND;
    END LOOP;
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION public.enqueue_call FROM PUBLIC;

-- +goose Down
DROP FUNCTION public.enqueue_call;
