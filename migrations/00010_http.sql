-- Workers say what their task http may do.

-- +goose Up

-- The settings of a worker's task http, without secrets' values. NULL: it does not take http, or is of an older
-- version.
ALTER TABLE call_workers ADD COLUMN http jsonb;

-- +goose Down
ALTER TABLE call_workers DROP COLUMN http;
