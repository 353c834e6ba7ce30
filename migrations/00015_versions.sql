-- Versions of limits go with the ledger.

-- +goose Up

-- Removes the versions that no attempt of the ledger, and no window, needs any more, and says how many. The last of each
-- limit stays. Nobody may remove others, which verify goes by: so it runs as its owner, and takes no arguments. The
-- ledger is only read where something may go.
-- +goose StatementBegin
CREATE FUNCTION callq_prune_versions() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    keep timestamptz := clock_timestamp() - (SELECT 2 * coalesce(max(window_size), '0') + interval '10 minutes' FROM call_limits);
    removed bigint;
BEGIN
    IF NOT EXISTS (
        SELECT FROM (SELECT lead(in_force_from) OVER (PARTITION BY limit_name ORDER BY version) AS until FROM call_limit_changes) c
        WHERE until < keep
    ) THEN
        RETURN 0;
    END IF;
    keep := least(keep, (SELECT min(claimed_at) FROM call_attempts), (SELECT min(claimed_at) FROM call_open));
    WITH ended AS ( -- until when one, or one before it, was in force
        SELECT limit_name, version, max(until) OVER (PARTITION BY limit_name ORDER BY version) AS until
        FROM (SELECT limit_name, version, coalesce(lead(in_force_from) OVER (PARTITION BY limit_name ORDER BY version), 'infinity') AS until
              FROM call_limit_changes) c
    )
    DELETE FROM call_limit_changes c USING ended e
    WHERE c.limit_name = e.limit_name AND c.version = e.version AND e.until < keep;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION callq_prune_versions() FROM PUBLIC;

-- +goose StatementBegin
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION callq_prune_versions() SET search_path = %I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION callq_prune_versions();
