package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// survey is what a claim sees before it looks at calls: the workers, and what is paused.
type survey struct {
	from      int64 // the batch from which on attempts are open
	roster    *roster
	pausedFor time.Duration // the queue, or one of its limits, as a whole
	keyPauses bool          // some keys may be paused
}

func (d *Dispatcher) survey(ctx context.Context, tx pgx.Tx, queue string, limits []lockedLimit, from int64) (*survey, error) {
	s := &survey{from: from}
	var asks pgx.Batch
	asks.Queue(rosterSQL, from).Query(func(rows pgx.Rows) error {
		pools, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByNameLax[pool])
		s.roster = newRoster(pools)
		return err
	})
	asks.Queue(pausedSQL, queue, names(limits)).QueryRow(func(row pgx.Row) error { return row.Scan(&s.pausedFor, &s.keyPauses) })
	if err := tx.SendBatch(ctx, &asks).Close(); err != nil {
		return nil, fmt.Errorf("look at workers and pauses: %w", err)
	}
	return s, nil
}

func names(limits []lockedLimit) []string {
	names := make([]string, len(limits))
	for i, l := range limits {
		names[i] = l.Name
	}
	return names
}

// A pause without an end is looked at again in a day.
const pausedSQL = `
WITH rules AS (
    SELECT 'queue' AS what, $1 AS name UNION ALL SELECT 'limit', unnest($2::text[])
)
SELECT
    (SELECT coalesce(max(least(p.until, clock_timestamp() + interval '1 day')) - clock_timestamp(), '0')
     FROM rules r JOIN call_pauses p ON p.what = r.what AND p.name = r.name AND p.key = '' AND p.until > clock_timestamp()),
    EXISTS (SELECT FROM rules r JOIN call_pauses p ON p.what = r.what AND p.name = r.name AND p.key > '')`

// pausedKeys is which of these keys are paused, and for how long.
func (s *survey) pausedKeys(ctx context.Context, tx pgx.Tx, queue string, limits []lockedLimit, keys []string) (map[string]time.Duration, error) {
	paused := map[string]time.Duration{}
	if !s.keyPauses || len(keys) == 0 {
		return paused, nil
	}
	rows, err := tx.Query(ctx, pausedKeysSQL, queue, names(limits), keys)
	if err != nil {
		return nil, fmt.Errorf("look at the pauses of keys: %w", err)
	}
	var key string
	var wait time.Duration
	if _, err := pgx.ForEachRow(rows, []any{&key, &wait}, func() error {
		paused[key] = max(paused[key], wait)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("look at the pauses of keys: %w", err)
	}
	return paused, nil
}

const pausedKeysSQL = `
SELECT p.key, least(p.until, clock_timestamp() + interval '1 day') - clock_timestamp()
FROM (SELECT 'queue' AS what, $1 AS name UNION ALL SELECT 'limit', unnest($2::text[])) r
CROSS JOIN unnest($3::text[]) AS k (key)
JOIN call_pauses p ON p.what = r.what AND p.name = r.name AND p.key = k.key
WHERE k.key <> '' AND p.until > clock_timestamp()`
