-- What an operator's retry leaves behind.

-- +goose Up

ALTER TABLE call_queue
    -- Set by an operator's retry: attempts up to this one count no longer, neither in failed_count nor as
    -- how the call ended. NULL: never retried.
    ADD COLUMN retried_after integer;

-- +goose Down
ALTER TABLE call_queue DROP COLUMN retried_after;
