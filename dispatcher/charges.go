package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// overridesOf are the units of their own that some of these keys have. It needs the limits' locks.
func overridesOf(ctx context.Context, tx pgx.Tx, limits []lockedLimit, keys []string) (map[limitKey]int64, error) {
	var names []string
	for _, l := range limits {
		if l.Overrides {
			names = append(names, l.Name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, overridesSQL, names, keys)
	if err != nil {
		return nil, fmt.Errorf("read the overrides: %w", err)
	}
	own := map[limitKey]int64{}
	var of limitKey
	var units int64
	if _, err := pgx.ForEachRow(rows, []any{&of.limit, &of.key, &units}, func() error {
		own[of] = units
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the overrides: %w", err)
	}
	return own, nil
}

const overridesSQL = `
SELECT l.name, o.key, o.value::bigint
FROM call_limits l CROSS JOIN LATERAL jsonb_each_text(l.overrides) o
WHERE l.name = ANY($1::text[]) AND o.key = ANY($2::text[])`

// readCharges reads what was given out of the token buckets among the limits, charge by charge: how much there
// is depends on when. It needs the limits' locks, and asks as occupiedSQL does.
func readCharges(ctx context.Context, tx pgx.Tx, limits []lockedLimit, names, keys []string, since []time.Time, from int64, now time.Time, uses map[limitKey]limit.Use) error {
	is := map[string]bool{}
	for _, l := range limits {
		is[l.Name] = l.rate().Algorithm == limit.TokenBucket
	}
	var ofNames, ofKeys []string
	var ofSince []time.Time
	for i, name := range names {
		if is[name] {
			ofNames, ofKeys, ofSince = append(ofNames, name), append(ofKeys, keys[i]), append(ofSince, since[i])
		}
	}
	rows, err := tx.Query(ctx, chargesSQL, ofNames, ofKeys, ofSince, from)
	if err != nil {
		return fmt.Errorf("read the charges: %w", err)
	}
	var of limitKey
	var c limit.Charge
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&of.limit, &of.key, &c.Until, &c.Units, &at}, func() error {
		if at.Before(now) {
			return errClockSetBack
		}
		use := uses[of]
		use.Charges = append(use.Charges, c)
		uses[of] = use
		return nil
	}); errors.Is(err, errClockSetBack) {
		return err
	} else if err != nil {
		return fmt.Errorf("read the charges: %w", err)
	}
	return nil
}

const chargesSQL = unitsSQL + `
SELECT name, key, least(until, now() + interval '100 years') AS until, sum(cost)::bigint, clock_timestamp() AS at
FROM units
GROUP BY 1, 2, 3`
