package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// usage is what the attempts of the ledger took of a limit within its last window, by key, in the buckets that claims
// keep. What ended before since was counted anew, as the limit counts now, with what else its queues had sent.
type usage struct {
	Name   string        `db:"name"`
	Queues []string      `db:"queues"`
	Since  time.Time     `db:"complete_since"`
	PerKey bool          `db:"per_key"`
	ByCost bool          `db:"count_cost"`
	Width  time.Duration `db:"width"`
	From   time.Time     `db:"from_then"`
	Fresh  bool          `db:"fresh"` // usage may be more: of its former queues, window or form
	byKey  map[string]int64
}

func (v *verifier) readUsed(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, usedSQL, v.now)
	if err != nil {
		return fmt.Errorf("the limits: %w", err)
	}
	limits, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[usage])
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

const usedSQL = `
SELECT name, queues, complete_since, per_key, count_cost, coalesce(bucket_width, window_size / 200) AS width, $1::timestamptz - window_size AS from_then,
    greatest(applied_at, known_at) > $1::timestamptz - 2 * window_size - interval '1 minute' AS fresh
FROM call_limits
WHERE complete_since IS NOT NULL AND window_size > '0'`

// addUsage adds what an attempt was charged, and what it was not, where its limits have counted it anew.
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
			cost = a.really()
		}
	}
	u.byKey[key] += cost
}

// compareUsage holds what claims read against what was charged.
func (v *verifier) compareUsage(ctx context.Context) error {
	names, from := sortedKeys(v.usage), []time.Time{}
	used := map[string]map[string]int64{}
	for _, name := range names {
		from, used[name] = append(from, v.usage[name].From), map[string]int64{}
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
		for key := range u.byKey {
			used[name][key] += 0
		}
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
