package policy

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// Known returns what was charged to keys of limits when units went missing, of what counted then: parallel to names, keys
// and since. That much, and no more, may be given out until the missing units no longer count.
func Known(ctx context.Context, db ledger.DB, names, keys []string, since []time.Time) ([]int64, error) {
	rows, err := db.Query(ctx, knownSQL, names, keys, since)
	if err != nil {
		return nil, fmt.Errorf("read what was known to be charged: %w", err)
	}
	type of struct{ name, key string }
	charged := map[of]int64{}
	var at of
	var units int64
	if _, err := pgx.ForEachRow(rows, []any{&at.name, &at.key, &units}, func() error { charged[at] = units; return nil }); err != nil {
		return nil, fmt.Errorf("read what was known to be charged: %w", err)
	}
	known := make([]int64, len(names))
	for i := range names {
		known[i] = charged[of{names[i], keys[i]}]
	}
	return known, nil
}

// What is charged since ends in later buckets (ledger's closeSQL). What was open then is in shards below 0.
const knownSQL = `
WITH asked AS MATERIALIZED (
    SELECT a.name, a.key, a.since, l.known_at + coalesce(l.bucket_width, l.window_size / 200) AS until
    FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS a (name, key, since)
    CROSS JOIN LATERAL (SELECT * FROM call_limits WHERE name = a.name LIMIT 1) l
)
SELECT a.name, a.key, coalesce(sum(u.used) FILTER (WHERE u.shard >= 0 AND u.bucket <= a.until), 0)::bigint
FROM asked a
JOIN call_usage u ON u.limit_name = ANY (ARRAY[a.name]) AND u.key = a.key AND u.bucket > a.since
GROUP BY 1, 2`
