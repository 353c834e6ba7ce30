-- What a worker has written and nobody has acknowledged may yet be sent again by TCP.

-- +goose Up

-- acked_at is when the API's machine was seen to have all of an open attempt's request. NULL: that is not known.
ALTER TABLE call_open ADD COLUMN acked_at timestamptz;

-- +goose StatementBegin
-- The latest moment at which an open attempt's request can reach the API: limit.Arrival.Until's formula for an
-- attempt that is anchored at its start and has not ended. 5 seconds is limit.ResendMost. It is plain SQL, so that
-- Postgres puts it in the place of its call.
CREATE FUNCTION callq_open_until(started_at timestamptz, send_within interval, acked_at timestamptz, slack interval)
RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN acked_at IS NULL THEN started_at + send_within + interval '5 seconds' + slack
        ELSE greatest(acked_at, started_at + send_within + slack) END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION callq_open_until(timestamptz, interval, timestamptz, interval);
ALTER TABLE call_open DROP COLUMN acked_at;
