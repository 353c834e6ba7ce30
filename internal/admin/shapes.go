package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// What limits that are no sliding windows need to be shown: since when fixed windows count, and the charges of
// token buckets. As the claim has them, but without locks.

type counted struct {
	names []string
	at    []time.Time
}

// calendarSince is since when each fixed window counts.
func calendarSince(ctx context.Context, db ledger.DB) (since counted, err error) {
	rows, err := db.Query(ctx, shapesSQL)
	if err != nil {
		return since, fmt.Errorf("read limits: %w", err)
	}
	var name string
	var r limit.Rate
	var now time.Time
	if _, err := pgx.ForEachRow(rows, []any{&name, &r.Units, &r.Window, &r.Shape, &now}, func() error {
		since.names, since.at = append(since.names, name), append(since.at, r.Since(now, 0))
		return nil
	}); err != nil {
		return since, fmt.Errorf("read limits: %w", err)
	}
	return since, nil
}

const shapesSQL = `
SELECT name, rate, window_size, shape, clock_timestamp() FROM call_limits WHERE shape ->> 'algorithm' = 'fixed_window'`

// readCharges reads what was given out of the token buckets among the limits, by limit and key; unless it is nil, of
// this key.
func readCharges(ctx context.Context, db ledger.DB, limits []Limit, key *string) (map[string]map[string][]limit.Charge, error) {
	charges := map[string]map[string][]limit.Charge{}
	var names []string
	for _, l := range limits {
		if l.Shape.Algorithm == limit.TokenBucket {
			names = append(names, l.Name)
			charges[l.Name] = map[string][]limit.Charge{}
		}
	}
	if names = slices.Compact(names); len(names) == 0 {
		return charges, nil
	}
	rows, err := db.Query(ctx, chargesSQL, names, key)
	if err != nil {
		return nil, fmt.Errorf("read charges: %w", err)
	}
	var name, of string
	var c limit.Charge
	if _, err := pgx.ForEachRow(rows, []any{&name, &of, &c.Until, &c.Units}, func() error {
		charges[name][of] = append(charges[name][of], c)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read charges: %w", err)
	}
	return charges, nil
}

// chargesSQL shows a charge that ends nobody knows when as one that ends in 100 years.
const chargesSQL = `
WITH asked AS (
    SELECT name, per_key, slack, anchor, epoch, clock_timestamp() - window_size * 1.001 AS since FROM call_limits WHERE name = ANY($1)
)
SELECT u.name, u.key, least(now() + interval '100 years',
    callq_occupied_until(o.task, o.epoch, o.started_at, o.send_within, o.acked_at, a.anchor, a.epoch, a.slack)), u.cost
FROM call_open o
CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
JOIN asked a ON a.name = u.name
WHERE $2::text IS NULL OR u.key = CASE WHEN a.per_key THEN $2 ELSE '' END
UNION ALL
SELECT u.limit_name, u.key, u.bucket, u.used
FROM call_usage u JOIN asked a ON a.name = u.limit_name AND u.bucket > a.since
WHERE $2::text IS NULL OR u.key = CASE WHEN a.per_key THEN $2 ELSE '' END`

func (l Limit) rate() limit.Rate {
	return limit.Rate{Units: l.Units, Window: l.Window, Shape: l.Shape}
}

// own are the units of the key that uses most, or that was asked about.
func (l Limit) own() int64 {
	if l.PerKey && l.Key != nil {
		if units, own := l.Overrides[*l.Key]; own {
			return units
		}
	}
	return l.Units
}

// InAll is how many units there are in all.
func (l Limit) InAll() int64 {
	if l.Shape.Algorithm == limit.TokenBucket {
		return l.Shape.Burst
	}
	return l.own()
}

// reckon says what there is room for, and when there is more.
func (l *Limit) reckon(charges map[string][]limit.Charge, missing *limit.Missing) {
	use := limit.Use{Rate: l.rate(), Occupied: l.Occupied, Missing: missing}
	use.Rate.Units = l.own()
	if l.FreedAt != nil {
		use.Freed = *l.FreedAt
	}
	room := use.Room(l.Now, 0)
	for _, of := range charges { // of a token bucket, that of the key which has least
		if one := (limit.Use{Rate: use.Rate, Charges: of, Missing: missing}); one.Room(l.Now, 0) <= room {
			use, room = one, one.Room(l.Now, 0)
		}
	}
	if l.Shape.Algorithm == limit.TokenBucket {
		l.Occupied = l.Shape.Burst - room
	}
	if missing != nil {
		l.noteMissing(use, room)
	}
	if l.Window > 0 && (l.FreedAt != nil || len(charges) > 0 || l.Shape.Algorithm == limit.FixedWindow) {
		l.next = new(use.NextLook(l.Now, 0))
	}
	if l.State == "open" {
		if l.Room = room; room == 0 {
			l.OpensAt = l.next
		}
	}
}
