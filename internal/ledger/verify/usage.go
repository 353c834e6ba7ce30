package verify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// usage is what a limit's attempts consumed within its last window, in the buckets that claims keep. When a limit
// changes, callq counts anew, as the limit counts now, what its queues sent before Since.
type usage struct {
	Name   string        `db:"name"`
	Queues []string      `db:"queues"`
	Since  time.Time     `db:"complete_since"`
	PerKey bool          `db:"per_key"`
	ByCost bool          `db:"count_cost"`
	Width  time.Duration `db:"width"`
	From   time.Time     `db:"from_then"`
	Fresh  bool          `db:"fresh"` // call_usage may have more, from former queues, windows or forms
	byKey  map[string]int64
}

func (v *verifier) readUsage(ctx context.Context) error {
	limits, err := collect(ctx, v.tx, pgx.RowToAddrOfStructByName[usage], limitsSQL, v.now)
	if err != nil {
		return fmt.Errorf("the limits: %w", err)
	}
	for _, u := range limits {
		u.byKey = map[string]int64{}
		v.usage[u.Name] = u
		for _, queue := range u.Queues {
			v.counted[queue] = append(v.counted[queue], u)
		}
	}
	return nil
}

const limitsSQL = `
SELECT name, queues, complete_since, per_key, count_cost, coalesce(bucket_width, window_size / 200) AS width, $1::timestamptz - window_size AS from_then,
    greatest(applied_at, known_at) > $1::timestamptz - 2 * window_size - interval '1 minute' AS fresh
FROM call_limits
WHERE complete_since IS NOT NULL AND window_size > '0'`

// addUsage adds an attempt's charges, and what other limits of its queue counted anew.
func (v *verifier) addUsage(a *attempt, charges []charge) {
	if a.Arrived == nil {
		return
	}
	for i := range charges {
		if u := v.usage[charges[i].Limit]; u != nil {
			u.add(a, &charges[i])
		}
	}
	for _, u := range v.counted[a.Queue] {
		if !a.Finished.After(u.Since) && !slices.ContainsFunc(charges, func(c charge) bool { return c.Limit == u.Name }) {
			u.add(a, &charge{})
		}
	}
}

func (u *usage) add(a *attempt, c *charge) {
	until := *a.Arrived
	if c.Until != nil {
		until = *c.Until
	}
	width := u.Width.Microseconds()
	bucket := time.UnixMicro((until.UnixMicro()/width + 1) * width)
	if !bucket.After(u.From) {
		return
	}
	key, cost := c.Key, c.Cost
	if !a.Finished.After(u.Since) {
		key, cost = "", 1
		if u.PerKey {
			key = a.Key
		}
		if u.ByCost {
			cost = a.reported()
		}
	}
	u.byKey[key] += cost
}

// compareUsage compares the usage that claims read with the charges.
func (v *verifier) compareUsage(ctx context.Context) error {
	names, from := sortedKeys(v.usage), []time.Time{}
	used := map[string]map[string]int64{}
	for _, name := range names {
		u := v.usage[name]
		from, used[name] = append(from, u.From), map[string]int64{}
		for key := range u.byKey {
			used[name][key] = 0
		}
	}
	rows, err := v.tx.Query(ctx, usageSQL, names, from)
	if err != nil {
		return err
	}
	var name, key string
	var units int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &key, &units}, func() error {
		used[name][key] = units
		return nil
	}); err != nil {
		return err
	}
	for _, name := range names {
		u := v.usage[name]
		for _, key := range sortedKeys(used[name]) {
			is, charged := used[name][key], u.byKey[key]
			if is == charged || is > charged && u.Fresh {
				continue
			}
			detail := fmt.Sprintf("usage of the last window is %d, and %d units were charged", is, charged)
			if key != "" {
				detail += " to key " + key
			}
			v.found("the usage of a limit is what its attempts were charged", Violation{Limit: name, Detail: detail})
		}
	}
	return nil
}

const usageSQL = `
SELECT u.limit_name, u.key, sum(u.used)::bigint
FROM unnest($1::text[], $2::timestamptz[]) AS l (name, from_then)
JOIN call_usage u ON u.limit_name = l.name AND u.bucket > l.from_then
GROUP BY 1, 2`
