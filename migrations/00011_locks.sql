-- What no login but callq's own may change or hold.

-- +goose Up

-- What call_data may have, enqueue_call took from the setting callq.max_data, which any session may make for itself. Now
-- dispatchers note there what their config says (calls.max_data).
INSERT INTO call_marks (name, position)
SELECT 'max_data', current_setting('callq.max_data', true)::bigint
WHERE current_setting('callq.max_data', true) <> '';

-- +goose StatementBegin
DO $migration$ BEGIN
    EXECUTE replace(pg_get_functiondef('enqueue_call'::regproc),
        $$coalesce(nullif(current_setting('callq.max_data', true), '')::integer, 262144)$$,
        format($$coalesce((SELECT m.position FROM %I.call_marks m WHERE m.name = 'max_data'), 262144)$$, current_schema()));
END $migration$;
-- +goose StatementEnd

-- What one process at a time may do: who holds a row's lock does it (dispatcher/mutex.go). Only daemons may lock a row, and
-- nobody but the owner may add, change or remove one. held is never written: who may update it may lock the row.
CREATE TABLE call_locks (
    name text    PRIMARY KEY,
    held boolean
);

INSERT INTO call_locks (name) VALUES ('room'), ('publish');

-- +goose Down
DROP TABLE call_locks;
-- +goose StatementBegin
DO $migration$ BEGIN
    EXECUTE regexp_replace(pg_get_functiondef('enqueue_call'::regproc), $$coalesce\(\(SELECT m.position .*?\), 262144\)$$,
        $$coalesce(nullif(current_setting('callq.max_data', true), '')::integer, 262144)$$);
END $migration$;
-- +goose StatementEnd
DELETE FROM call_marks WHERE name = 'max_data';
