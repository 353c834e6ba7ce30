package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
)

// headroom is what a queue's limits allow at a moment, in all or to each of some keys, and when they allow more.
type headroom struct {
	limit.Admission // in the order of limits
	limits          []policy.LockedLimit
	now             time.Time
	next            map[limitKey]time.Time // the earliest moment at which a unit can come free
}

// limitKey is a limit and, if it is per key, a key.
type limitKey struct{ limit, key string }

// asked is a limit, of those per key one key, whose units a claim counts.
type asked struct {
	limitKey
	index int       // among the limits
	since time.Time // what has a later until counts
	use   limit.Use
}

// errClockSetBack: what started since the claim read the clock may seem to be long over.
var errClockSetBack = errors.New("the clock of Postgres was set back within a claim")

// headroom counts the occupied units of the limits, of those per key for these keys. It needs the limits' locks. No attempt
// of a smaller batch than from is open.
func (c *claimer) headroom(ctx context.Context, tx pgx.Tx, limits []policy.LockedLimit, keys []string, from int64, now time.Time) (*headroom, error) {
	h := &headroom{limits: limits, now: now, next: map[limitKey]time.Time{}}
	own, err := overridesOf(ctx, tx, limits, keys)
	if err != nil {
		return nil, err
	}
	var asks []*asked
	for i, l := range limits {
		of := []string{""}
		if l.PerKey {
			of = keys
		}
		rate, gained := l.Rate(), c.clock.gained(l, now)
		for _, key := range of {
			a := &asked{limitKey: limitKey{l.Name, key}, index: i, since: rate.Since(now, gained)}
			a.use = limit.Use{Rate: rate, Missing: l.Missing(now, gained)}
			if units, is := own[a.limitKey]; is {
				a.use.Rate.Units = units
			}
			asks = append(asks, a)
		}
		h.Admission = append(h.Admission, limit.Quota{
			PerKey: l.PerKey, CountCost: l.CountCost, Most: l.MaxCost(), MostOf: map[string]int64{}, Room: map[string]int64{},
		})
	}
	if len(asks) == 0 {
		return h, nil
	}
	for _, count := range []func(context.Context, pgx.Tx, []*asked, int64, time.Time) error{countOccupied, countCharges} {
		if err := count(ctx, tx, asks, from, now); err != nil {
			return nil, err
		}
	}
	if err := addKnown(ctx, tx, limits, asks); err != nil {
		return nil, err
	}
	for _, a := range asks {
		gained := c.clock.gained(limits[a.index], now)
		if units, is := own[a.limitKey]; is {
			h.Admission[a.index].MostOf[a.key] = units
		}
		h.Admission[a.index].Room[a.key] = a.use.Room(now, gained)
		h.next[a.limitKey] = a.use.NextLook(now, gained)
	}
	return h, nil
}

// countOccupied counts how many units of each are occupied, and when the first can come free.
func countOccupied(ctx context.Context, tx pgx.Tx, asks []*asked, from int64, now time.Time) error {
	names, keys, since := arrays(asks)
	rows, err := tx.Query(ctx, occupiedSQL, names, keys, since, from)
	if err != nil {
		return fmt.Errorf("count occupied units: %w", err)
	}
	counted, err := pgx.CollectRows(rows, pgx.RowToStructByName[occupied])
	if err != nil {
		return fmt.Errorf("count occupied units: %w", err)
	}
	if len(counted) != len(asks) {
		return fmt.Errorf("count occupied units: %d of %d limits and keys answered", len(counted), len(asks))
	}
	of := byKey(asks)
	for _, o := range counted {
		if o.At.Before(now) {
			return errClockSetBack
		}
		use := &of[limitKey{o.Name, o.Key}].use
		use.Occupied = o.Occupied
		if use.Missing != nil {
			use.Missing.Former = o.Former
		}
		if o.FreedAt != nil {
			use.Freed = *o.FreedAt
		}
	}
	return nil
}

// occupied is what a limit's units are doing at a moment.
type occupied struct {
	Name     string     `db:"name"`
	Key      string     `db:"key"`
	Occupied int64      `db:"occupied"`
	Former   int64      `db:"former"`   // of those, what a failover found open
	FreedAt  *time.Time `db:"freed_at"` // when the first can come free; nil: that is not known of any
	At       time.Time  `db:"at"`       // Postgres's clock once it was counted
}

// countCharges reads what was given out of token buckets charge by charge: how much they hold depends on when.
func countCharges(ctx context.Context, tx pgx.Tx, asks []*asked, from int64, now time.Time) error {
	var buckets []*asked
	for _, a := range asks {
		if a.use.Rate.Algorithm == limit.TokenBucket {
			buckets = append(buckets, a)
		}
	}
	if len(buckets) == 0 {
		return nil
	}
	names, keys, since := arrays(buckets)
	rows, err := tx.Query(ctx, chargesSQL, names, keys, since, from)
	if err != nil {
		return fmt.Errorf("read the charges: %w", err)
	}
	of := byKey(buckets)
	var key limitKey
	var charge limit.Charge
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&key.limit, &key.key, &charge.Until, &charge.Units, &at}, func() error {
		if at.Before(now) {
			return errClockSetBack
		}
		of[key].use.Charges = append(of[key].use.Charges, charge)
		return nil
	}); errors.Is(err, errClockSetBack) {
		return err
	} else if err != nil {
		return fmt.Errorf("read the charges: %w", err)
	}
	return nil
}

// addKnown adds what was charged when units went missing.
func addKnown(ctx context.Context, tx pgx.Tx, limits []policy.LockedLimit, asks []*asked) error {
	var missing []*asked
	for _, a := range asks {
		if l := limits[a.index]; a.use.Missing != nil && l.KnownAt != nil {
			missing = append(missing, a)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	names, keys, since := arrays(missing)
	for i, a := range missing {
		l := limits[a.index]
		since[i] = l.Rate().KnownSince(*l.KnownAt)
	}
	known, err := policy.Known(ctx, tx, names, keys, since)
	if err != nil {
		return err
	}
	for i, a := range missing {
		a.use.Missing.Known = known[i] - limits[a.index].KnownLess
	}
	return nil
}

// arrays are the arguments of a statement that asks.
func arrays(asks []*asked) (names, keys []string, since []time.Time) {
	for _, a := range asks {
		names, keys, since = append(names, a.limit), append(keys, a.key), append(since, a.since)
	}
	return names, keys, since
}

func byKey(asks []*asked) map[limitKey]*asked {
	of := make(map[limitKey]*asked, len(asks))
	for _, a := range asks {
		of[a.limitKey] = a
	}
	return of
}

// wait is how long a held call cannot be admitted. When a unit of a concurrency limit comes free is not known: whoever frees
// it wakes the dispatchers.
func (h *headroom) wait(c held) (wait time.Duration, known bool) {
	known = true
	for i, l := range h.limits {
		of := limitKey{l.Name, ""}
		if l.PerKey {
			of.key = c.key
		}
		units := int64(1)
		if l.CountCost {
			units = c.cost
		}
		switch {
		case h.Admission[i].Room[of.key] >= units:
		case l.Window == 0 && l.Missing(h.now, 0) == nil:
			known = false
		default:
			wait = max(wait, minGap, h.next[of].Sub(h.now))
		}
	}
	return wait, known
}

// occupiedSQL adds up what is occupied of each limit ($1) and key ($2, empty where the limit is not per key) since $3
// (limit.Rate.Since); $4 is the batch from which on attempts may be open. It reads open attempts and usage in one statement, and
// calls nothing that takes a snapshot of its own: two readings would both miss a close that commits between them.
//
// The unit of an open attempt can come free from its start on, or from its acknowledgement, where that bounds it. Else its
// until is unknown, and so is when it comes free. Usage buckets are labelled with their end.
//
// It reads each open attempt once, however many keys are asked about (TestOccupiedIsLinear): the sessions' settings leave
// joins only nested loops, but IN within another condition is looked up in a hash.
const occupiedSQL = unitsSQL + `
SELECT name, key, sum(cost)::bigint AS occupied, coalesce(sum(cost) FILTER (WHERE former), 0)::bigint AS former, min(freed_at) AS freed_at, clock_timestamp() AS at
FROM units
GROUP BY name, key`

const unitsSQL = `
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS a (name, key, since)
), rules AS MATERIALIZED (
    SELECT l.name, a.since, l.slack, l.anchor, l.epoch
    FROM (SELECT name, min(since) AS since FROM asked GROUP BY name) a
    JOIN call_limits l ON l.name = a.name
), open AS (
    SELECT u.name, u.key, u.cost, l.since, o.epoch <> l.epoch AS former, greatest(o.started_at, o.acked_at) AS freed_at,
        callq_occupied_until(o.task, o.epoch, o.started_at, o.send_within, o.acked_at, l.anchor, l.epoch, l.slack) AS until
    FROM call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
    CROSS JOIN LATERAL (SELECT * FROM rules WHERE name = u.name LIMIT 1) l
    WHERE o.batch >= $4 AND o.limits && (SELECT array_agg(name) FROM rules)
      AND ((u.name, u.key) IN (SELECT name, key FROM asked)) IS TRUE
), units AS (
    SELECT name, key, 0 AS cost, false AS former, NULL::timestamptz AS freed_at, NULL::timestamptz AS until FROM asked
    UNION ALL
    SELECT name, key, cost, former, CASE WHEN until < 'infinity' THEN freed_at END, until FROM open WHERE until > since
    UNION ALL
    SELECT a.name, a.key, u.used, u.shard < 0, u.bucket, u.bucket
    FROM asked a JOIN call_usage u ON u.limit_name = ANY (ARRAY[a.name]) AND u.key = a.key AND u.bucket > a.since
)`

// overridesOf returns the units of those keys that have an override. It needs the limits' locks.
func overridesOf(ctx context.Context, tx pgx.Tx, limits []policy.LockedLimit, keys []string) (map[limitKey]int64, error) {
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

const chargesSQL = unitsSQL + `
SELECT name, key, least(until, now() + interval '100 years') AS until, sum(cost)::bigint, clock_timestamp() AS at
FROM units
GROUP BY 1, 2, 3`
