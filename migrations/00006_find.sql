-- How the calls of a queue or key are found among many that have ended.

-- +goose Up

-- For each 16 pages, which ids, queues and keys may be there: 1.6 MB for a million calls, filled by VACUUM.
-- What is newer is read as a whole. None of the columns ever changes, so that updates stay HOT; an insert
-- pays about a microsecond.
CREATE INDEX call_queue_find_idx ON call_queue USING brin (
    id    int8_minmax_ops,
    queue text_bloom_ops (n_distinct_per_range = 64),
    key   text_bloom_ops (n_distinct_per_range = 256)
) WITH (pages_per_range = 16);

-- +goose Down
DROP INDEX call_queue_find_idx;
