-- Workers say what their task http may do; limits say whose Retry-After closes them, and for how long.

-- +goose Up

-- The settings of a worker's task http, without secrets' values. NULL: it does not take http.
ALTER TABLE call_workers ADD COLUMN http jsonb;

-- Whose answers with Retry-After close a limit ({}: anybody's), and for how long at most; 0: never.
ALTER TABLE call_limits ADD COLUMN hosts text[] NOT NULL DEFAULT '{}',
    ADD COLUMN retry_after interval NOT NULL DEFAULT '1 hour';

-- +goose Down
ALTER TABLE call_limits DROP COLUMN hosts, DROP COLUMN retry_after;
ALTER TABLE call_workers DROP COLUMN http;
