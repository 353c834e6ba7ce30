package admin

import (
	"fmt"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// What limits have given out. It is counted as a claim counts it, but without locks.

// usage is what of a limit is occupied by the key that uses most, or that was asked about. Of a token bucket it is one
// charge of any key.
type usage struct {
	Name    string     `db:"name"`
	Key     string     `db:"key"`
	Units   int64      `db:"units"`
	Former  int64      `db:"former"`   // of those, open when units went missing
	FreedAt *time.Time `db:"freed_at"` // the earliest until; nil: unknown
	Until   *time.Time `db:"until"`    // of a charge; of what ends nobody knows when, in 100 years
}

// count counts what the limits have given out, of those per key to this key (nil: to any).
func (r *reader) count(limits []Limit, key *string) {
	names, since := make([]string, len(limits)), make([]time.Time, len(limits))
	for i, l := range limits {
		names[i], since[i] = l.Name, l.rate().Since(l.Now, 0)
	}
	used := map[string][]usage{}
	for _, u := range list[usage](r, "count occupied units", usageSQL, names, since, key) {
		used[u.Name] = append(used[u.Name], u)
	}
	for i := range limits {
		l := &limits[i]
		of := used[l.Name]
		switch {
		case !l.PerKey:
		case key != nil:
			l.Key = *key
		case len(of) > 0 && of[0].Until == nil:
			l.Key = of[0].Key
		}
		l.reckon(of, r.missing(l))
	}
}

// A charge counts from since (limit.Rate.Since) on.
const usageSQL = `
WITH asked AS (
    SELECT l.*, a.since, shape ->> 'algorithm' = 'token_bucket' AS bucket
    FROM unnest($1::text[], $2::timestamptz[]) AS a (name, since) JOIN call_limits l USING (name)
), units AS (
    SELECT u.name, u.key, u.cost, o.epoch <> a.epoch AS former,
        CASE WHEN until < 'infinity' THEN greatest(o.started_at, o.acked_at) END AS freed_at,
        CASE WHEN bucket THEN least(until, now() + interval '100 years') END AS until
    FROM call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
    JOIN asked a ON a.name = u.name
    CROSS JOIN LATERAL (
        SELECT callq_occupied_until(o.task, o.epoch, o.started_at, o.send_within, o.acked_at, a.anchor, a.epoch, a.slack) AS until
    ) x
    WHERE x.until > since AND ($3::text IS NULL OR u.key = CASE WHEN a.per_key THEN $3 ELSE '' END)
    UNION ALL
    SELECT a.name, u.key, u.used, u.shard < 0, u.bucket, CASE WHEN a.bucket THEN u.bucket END
    FROM asked a JOIN call_usage u ON u.limit_name = a.name AND u.bucket > a.since
    WHERE $3::text IS NULL OR u.key = CASE WHEN a.per_key THEN $3 ELSE '' END
)
SELECT DISTINCT ON (name, whose, until) name, key, units, former, freed_at, until
FROM (
    SELECT name, key, CASE WHEN until IS NOT NULL THEN key END AS whose, until, sum(cost)::bigint AS units,
        coalesce(sum(cost) FILTER (WHERE former), 0)::bigint AS former, min(freed_at) AS freed_at
    FROM units
    GROUP BY name, key, until
) u
ORDER BY name, whose, until, units DESC`

// missing is what may have been given out of the limit that nobody knows of; nil: nothing that may still count.
func (r *reader) missing(l *Limit) *limit.Missing {
	m := limit.MissingAt(l.rate(), l.MayArrive, l.KnownAt, l.Now, 0)
	if m == nil || l.KnownAt == nil {
		return m
	}
	known, err := policy.Known(r.ctx, r.db, []string{l.Name}, []string{l.Key}, []time.Time{l.rate().KnownSince(*l.KnownAt)})
	if r.check(err); err == nil {
		m.Known = known[0] - l.KnownLess
	}
	return m
}

// reckon says what there is room for, and when there is more. Of a token bucket that is of the key which has least.
func (l *Limit) reckon(used []usage, missing *limit.Missing) {
	use := limit.Use{Rate: l.rate(), Missing: missing}
	use.Rate.Units = l.own()
	charges := map[string][]limit.Charge{}
	for _, u := range used {
		if u.Until != nil {
			charges[u.Key] = append(charges[u.Key], limit.Charge{Until: *u.Until, Units: u.Units})
			continue
		}
		l.Occupied, use.Occupied = u.Units, u.Units
		if u.FreedAt != nil {
			use.Freed = *u.FreedAt
		}
		if missing != nil {
			missing.Former = u.Former
		}
	}
	room := use.Room(l.Now, 0)
	for _, of := range charges {
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
	if l.Window > 0 && (!use.Freed.IsZero() || len(charges) > 0 || l.Shape.Algorithm == limit.FixedWindow) {
		l.next = new(use.NextLook(l.Now, 0).UTC())
	}
	if l.State == "open" {
		if l.Room = room; room == 0 {
			l.OpensAt = l.next
		}
	}
}

// noteMissing says how many units count as used because they are missing, and until when.
func (l *Limit) noteMissing(use limit.Use, room int64) {
	m := use.Missing
	use.Missing = nil
	l.Missing, l.MissingUntil = use.Room(l.Now, 0)-room, new(l.rate().Passed(m.Until, 0).UTC())
	if l.State == "open" && m.Known <= 0 && l.Shape.Algorithm != limit.TokenBucket {
		l.State, l.ShutUntil = shutMissing, l.MissingUntil
	}
}

const shutMissing = "shut: what it has used may be missing"

func (l Limit) missingText() string {
	return fmt.Sprintf("%d units that may be missing and count as used until %s", l.Missing, Instant(l.MissingUntil))
}

func (l Limit) rate() limit.Rate {
	return limit.Rate{Units: l.Units, Window: l.Window, Shape: l.Shape}
}

// own are the units of the key that uses most, or that was asked about.
func (l Limit) own() int64 {
	if units, own := l.Overrides[l.Key]; own && l.PerKey {
		return units
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
