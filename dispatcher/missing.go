package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// missing is what may have been given out of a limit that nobody knows of, if it may still count; else nil.
func (l lockedLimit) missing(now time.Time, gained time.Duration) *limit.Missing {
	return limit.MissingAt(l.rate(), l.MissingUntil, l.KnownAt, now, gained)
}

// readKnown reads what was charged, by limit and key, when units went missing: that much, and no more, may be given out
// until those no longer count. It needs the limits' locks.
func readKnown(ctx context.Context, tx pgx.Tx, limits []lockedLimit, uses map[limitKey]limit.Use) error {
	var names, keys []string
	var since []time.Time
	less := map[string]int64{}
	for of, use := range uses {
		for _, l := range limits {
			if l.Name == of.limit && use.Missing != nil && l.KnownAt != nil {
				names, keys, since = append(names, of.limit), append(keys, of.key), append(since, l.rate().KnownSince(*l.KnownAt))
				less[l.Name] = l.KnownLess
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, knownSQL, names, keys, since)
	if err != nil {
		return fmt.Errorf("read what was known to be charged: %w", err)
	}
	var of limitKey
	var known int64
	if _, err := pgx.ForEachRow(rows, []any{&of.limit, &of.key, &known}, func() error {
		uses[of].Missing.Known = known - less[of.limit]
		return nil
	}); err != nil {
		return fmt.Errorf("read what was known to be charged: %w", err)
	}
	return nil
}

// Known is what was charged to one key of a limit when units went missing, of what counted then.
func Known(ctx context.Context, db ledger.DB, name, key string, since time.Time) (int64, error) {
	rows, err := db.Query(ctx, knownSQL, []string{name}, []string{key}, []time.Time{since})
	if err != nil {
		return 0, fmt.Errorf("read what was known to be charged: %w", err)
	}
	var known int64
	_, err = pgx.ForEachRow(rows, []any{new(string), new(string), &known}, func() error { return nil })
	return known, err
}

// What is charged since ends in later buckets (internal/ledger's closeSQL), and what was open then is in shards below 0.
const knownSQL = `
SELECT a.name, a.key, sum(u.used)::bigint
FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS a (name, key, since)
CROSS JOIN LATERAL (SELECT * FROM call_limits WHERE name = a.name LIMIT 1) l
JOIN call_usage u ON u.limit_name = ANY (ARRAY[a.name]) AND u.key = a.key AND u.bucket > a.since
    AND u.bucket <= l.known_at + coalesce(l.bucket_width, l.window_size / 200) AND u.shard >= 0
GROUP BY 1, 2`
