-- What an operator's retry leaves behind, and how ended calls are found among many.

-- +goose Up

ALTER TABLE call_queue
    -- Set by an operator's retry: attempts up to this one count no longer, neither in failed_count nor as
    -- how the call ended. NULL: never retried.
    ADD COLUMN retried_after integer,
    -- Set only when a call is cancelled, for the index.
    ADD COLUMN cancelled_at  timestamptz;

UPDATE call_queue SET cancelled_at = coalesce(finished_at, clock_timestamp()) WHERE status = 'cancelled';

-- Lists of them, newest first, however many calls are done beside them. Neither names what an insert, a
-- claim, a start or a finish that goes well changes.
CREATE INDEX call_queue_dead_idx ON call_queue (id) WHERE failed_at IS NOT NULL;

CREATE INDEX call_queue_cancelled_idx ON call_queue (id) WHERE cancelled_at IS NOT NULL;

-- +goose Down
ALTER TABLE call_queue DROP COLUMN retried_after, DROP COLUMN cancelled_at;
DROP INDEX call_queue_dead_idx;
