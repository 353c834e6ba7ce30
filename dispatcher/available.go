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

// headroom is what a queue's limits allow at a moment, in all or for some keys, and when they allow more.
type headroom struct {
	limit.Admission // in the order of limits
	limits          []policy.LockedLimit
	now             time.Time
	next            map[limitKey]time.Time // the earliest moment that a unit can come free
}

type limitKey struct{ limit, key string }

// occupied is what a limit's units are doing at a moment.
type occupied struct {
	Name     string     `db:"name"`
	Key      string     `db:"key"`
	Occupied int64      `db:"occupied"`
	Former   int64      `db:"former"`   // of those, what a failover found open
	FreedAt  *time.Time `db:"freed_at"` // the earliest until of an occupied unit; nil: none has one yet
	At       time.Time  `db:"at"`       // Postgres's clock once it was counted
}

// errClockSetBack: what started since the claim read the clock may seem to be long over.
var errClockSetBack = errors.New("the clock of Postgres was set back within a claim")

// headroom counts what is occupied of the limits; of limits per key, for these keys. It needs the limits' locks.
func (c *claimer) headroom(ctx context.Context, tx pgx.Tx, limits []policy.LockedLimit, keys []string, from int64, now time.Time) (*headroom, error) {
	h := &headroom{limits: limits, now: now, next: map[limitKey]time.Time{}}
	own, err := overridesOf(ctx, tx, limits, keys)
	if err != nil {
		return nil, err
	}
	var names, ofKeys []string
	var since []time.Time
	uses := map[limitKey]limit.Use{}
	buckets := false
	for _, l := range limits {
		of := []string{""}
		if l.PerKey {
			of = keys
		}
		rate, gained := l.Rate(), c.clock.gained(l, now)
		counts := rate.Since(now, gained)
		buckets = buckets || rate.Algorithm == limit.TokenBucket
		for _, key := range of {
			names, ofKeys, since = append(names, l.Name), append(ofKeys, key), append(since, counts)
			if units, is := own[limitKey{l.Name, key}]; is {
				rate.Units = units
			} else {
				rate.Units = l.Units
			}
			uses[limitKey{l.Name, key}] = limit.Use{Rate: rate, Missing: l.Missing(now, gained)}
		}
	}
	if len(names) == 0 {
		return h, nil
	}
	rows, err := tx.Query(ctx, occupiedSQL, names, ofKeys, since, from)
	if err != nil {
		return nil, fmt.Errorf("count occupied units: %w", err)
	}
	counted, err := pgx.CollectRows(rows, pgx.RowToStructByName[occupied])
	if err != nil {
		return nil, fmt.Errorf("count occupied units: %w", err)
	}
	if len(counted) != len(names) {
		return nil, fmt.Errorf("count occupied units: %d of %d limits and keys answered", len(counted), len(names))
	}
	for _, o := range counted {
		if o.At.Before(now) {
			return nil, errClockSetBack
		}
		use := uses[limitKey{o.Name, o.Key}]
		use.Occupied = o.Occupied
		if use.Missing != nil {
			use.Missing.Former = o.Former
		}
		if o.FreedAt != nil {
			use.Freed = *o.FreedAt
		}
		uses[limitKey{o.Name, o.Key}] = use
	}
	if err := addKnown(ctx, tx, limits, uses); err != nil {
		return nil, err
	}
	if buckets {
		if err := readCharges(ctx, tx, limits, names, ofKeys, since, from, now, uses); err != nil {
			return nil, err
		}
	}
	for _, l := range limits {
		q := limit.Quota{
			PerKey: l.PerKey, CountCost: l.CountCost, Most: l.MaxCost(),
			MostOf: map[string]int64{}, Room: map[string]int64{},
		}
		h.Admission = append(h.Admission, q)
	}
	for i := range names {
		of := limitKey{names[i], ofKeys[i]}
		for j, l := range limits {
			if l.Name != of.limit {
				continue
			}
			if units, is := own[of]; is {
				h.Admission[j].MostOf[of.key] = units
			}
			h.Admission[j].Room[of.key] = uses[of].Room(now, c.clock.gained(l, now))
			h.next[of] = uses[of].NextLook(now, c.clock.gained(l, now))
		}
	}
	return h, nil
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

// closed reports whether no call of a key can be admitted now, and whether a limit that all keys share is the cause.
func (h *headroom) closed(key string) (closed, shared bool) {
	if h.Most(key) > 0 {
		return false, false
	}
	_, shared = h.Admit(key, 1)
	return true, shared
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

// overridesOf is the overrides of these keys. It needs the limits' locks.
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

// readCharges reads the charges of the token buckets among the limits one by one, because a token bucket's level depends on
// their times. It needs the limits' locks, and its arguments are occupiedSQL's.
func readCharges(ctx context.Context, tx pgx.Tx, limits []policy.LockedLimit, names, keys []string, since []time.Time, from int64, now time.Time, uses map[limitKey]limit.Use) error {
	is := map[string]bool{}
	for _, l := range limits {
		is[l.Name] = l.Rate().Algorithm == limit.TokenBucket
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

// addKnown adds to uses what was charged when units went missing.
func addKnown(ctx context.Context, tx pgx.Tx, limits []policy.LockedLimit, uses map[limitKey]limit.Use) error {
	var names, keys []string
	var since []time.Time
	var less []int64
	for _, l := range limits {
		for of, use := range uses {
			if l.Name == of.limit && use.Missing != nil && l.KnownAt != nil {
				names, keys, since = append(names, of.limit), append(keys, of.key), append(since, l.Rate().KnownSince(*l.KnownAt))
				less = append(less, l.KnownLess)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	known, err := policy.Known(ctx, tx, names, keys, since)
	for i, charged := range known {
		uses[limitKey{names[i], keys[i]}].Missing.Known = charged - less[i]
	}
	return err
}
