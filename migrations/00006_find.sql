-- How the calls of a queue, task or key are found among many that have ended.

-- +goose Up

-- For each 16 pages, which ids, queues, tasks and keys may be there: 1.6 MB for a million calls, filled by VACUUM.
-- What is newer is read as a whole. None of the columns ever changes, so that updates stay HOT; an insert
-- pays about a microsecond.
CREATE INDEX call_queue_find_idx ON call_queue USING brin (
    id    int8_minmax_ops,
    queue text_bloom_ops (n_distinct_per_range = 64),
    task  text_bloom_ops (n_distinct_per_range = 16),
    key   text_bloom_ops (n_distinct_per_range = 256)
) WITH (pages_per_range = 16);

-- Calls that are to be retried have such an attempt. Most attempts are done: they pay nothing.
CREATE INDEX call_attempts_not_done_idx ON call_attempts (call_id) WHERE outcome <> 'done';

-- What a range has once held stays in its summary, though the calls are gone and others have taken their room:
-- in time every range may hold everything. So the ranges that retention took calls from are summed up anew.
-- Only the index's owner may; the function runs as that.
-- +goose StatementBegin
CREATE FUNCTION callq_find_anew(pages bigint[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM brin_desummarize_range('call_queue_find_idx', page), brin_summarize_range('call_queue_find_idx', page)
    FROM unnest(pages) AS p (page);
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION callq_find_anew(bigint[]) FROM PUBLIC;

-- +goose StatementBegin
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION callq_find_anew(bigint[]) SET search_path = %I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION callq_find_anew(bigint[]);
DROP INDEX call_attempts_not_done_idx;
DROP INDEX call_queue_find_idx;
