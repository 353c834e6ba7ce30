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
	Name   string
	Queues []string
	Since  time.Time
	PerKey bool
	ByCost bool
	Width  time.Duration
	From   time.Time
	Fresh  bool              // call_usage may have more, from former queues, windows or forms
	ByKey  map[string]*units `db:"-"`
}

// units of a key: what its attempts were charged, and what call_usage has.
type units struct{ charged, used int64 }

func (u *usage) of(key string) *units {
	if u.ByKey == nil {
		u.ByKey = map[string]*units{}
	}
	if u.ByKey[key] == nil {
		u.ByKey[key] = &units{}
	}
	return u.ByKey[key]
}

func (v *verifier) readUsage(ctx context.Context) error {
	limits, err := collect(ctx, v.tx, pgx.RowToAddrOfStructByName[usage], limitsSQL, v.now)
	if err != nil {
		return fmt.Errorf("the limits: %w", err)
	}
	for _, u := range limits {
		v.usage[u.Name] = u
		for _, queue := range u.Queues {
			v.counted[queue] = append(v.counted[queue], u)
		}
	}
	return nil
}

const limitsSQL = `
SELECT name, queues, complete_since AS since, per_key, count_cost AS by_cost, coalesce(bucket_width, window_size / 200) AS width,
    $1::timestamptz - window_size AS "from",
    greatest(applied_at, known_at) > $1::timestamptz - 2 * window_size - interval '1 minute' AS fresh
FROM call_limits
WHERE complete_since IS NOT NULL AND window_size > '0'`

// addUsage adds an attempt's charges, and what other limits of its queue counted anew.
func (v *verifier) addUsage(a *attempt, charges []charge) {
	if a.Arrived == nil {
		return
	}
	for _, c := range charges {
		if u := v.usage[c.Limit]; u != nil {
			u.add(a, c)
		}
	}
	for _, u := range v.counted[a.Queue] {
		if !a.Finished.After(u.Since) && !slices.ContainsFunc(charges, func(c charge) bool { return c.Limit == u.Name }) {
			u.add(a, charge{Until: a.Arrived})
		}
	}
}

func (u *usage) add(a *attempt, c charge) {
	if c.Until == nil {
		c.Until = a.Arrived
	}
	width := u.Width.Microseconds()
	if bucket := time.UnixMicro((c.Until.UnixMicro()/width + 1) * width); !bucket.After(u.From) {
		return
	}
	if !a.Finished.After(u.Since) {
		c.Key, c.Cost = "", 1
		if u.PerKey {
			c.Key = a.Key
		}
		if u.ByCost {
			c.Cost = a.reported()
		}
	}
	u.of(c.Key).charged += c.Cost
}

// compareUsage compares the usage that claims read with the charges.
func (v *verifier) compareUsage(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, usageSQL, v.now)
	if err != nil {
		return err
	}
	var name, key string
	var used int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &key, &used}, func() error {
		v.usage[name].of(key).used = used
		return nil
	}); err != nil {
		return err
	}
	for _, name := range sortedKeys(v.usage) {
		u := v.usage[name]
		for _, key := range sortedKeys(u.ByKey) {
			n := u.ByKey[key]
			if n.used == n.charged || n.used > n.charged && u.Fresh {
				continue
			}
			detail := fmt.Sprintf("usage of the last window is %d, and %d units were charged", n.used, n.charged)
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
FROM (` + limitsSQL + `) l JOIN call_usage u ON u.limit_name = l.name AND u.bucket > l."from"
GROUP BY 1, 2`
