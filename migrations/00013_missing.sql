-- After a failover known charges run off as usual, and what may be missing counts as used once.

-- +goose Up

-- What may be missing from call_usage had arrived by missing_until. Of a failover or restore that was known_at, what was
-- charged by then and is charged since says how much: the rest of the rate counts as used, less known_less, by which it
-- was lowered since. Where known_at is NULL, nothing says how much: the limit is shut for as long as it may count.
ALTER TABLE call_limits
    ADD COLUMN missing_until timestamptz,
    ADD COLUMN known_at      timestamptz,
    ADD COLUMN known_less    bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE call_limits
    DROP COLUMN missing_until,
    DROP COLUMN known_at,
    DROP COLUMN known_less;
