package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
)

// headroom is what a queue's limits allow now, in all or to each of some keys, and when they allow more.
type headroom struct {
	limit.Admission // in the order of limits
	limits          []policy.LockedLimit
	now             time.Time
	asks            []*asked
	ahead           time.Duration          // see aheadOf
	doors           []door                 // to be probed
	next            map[limitKey]time.Time // the earliest moment at which a unit can come free
}

// limitKey is a limit and, if it is per key, a key.
type limitKey struct{ limit, key string }

// asked is a limit, of those per key one key, whose units a claim counts.
type asked struct {
	limitKey
	index  int       // among the limits
	since  time.Time // what has a later until counts
	upto   time.Time // what has no later until is listed
	gained time.Duration
	use    limit.Use
	reset  time.Time // until when the API says that less remains; zero: it does not
}

// headroom has a batch count the occupied units of the queue's limits, of those per key for these keys. It needs the limits' locks.
func (c *claimer) headroom(b *pgx.Batch, s *snapshot, keys []string) *headroom {
	h := &headroom{limits: s.queue.Limits, now: s.now, next: map[limitKey]time.Time{}, ahead: aheadOf(s.queue.Limits)}
	if s.closes != nil {
		h.ahead = min(h.ahead, s.closes.Sub(s.now)) // then nothing starts any more
	}
	for i, l := range h.limits {
		h.Admission = append(h.Admission, limit.Quota{
			PerKey: l.PerKey, CountCost: l.CountCost, Most: l.MaxCost(), MostOf: l.Overrides,
			Room: map[string]int64{}, Soon: map[string][]limit.Charge{},
		})
		of := []string{""}
		if l.PerKey {
			of = keys
		}
		rate, gained := l.Rate(), c.clock.gained(l, s.now)
		for _, key := range of {
			a := &asked{limitKey: limitKey{l.Name, key}, index: i, since: rate.Since(s.now, gained), gained: gained}
			if a.upto = rate.Since(s.now.Add(h.ahead), gained); rate.Algorithm == limit.TokenBucket {
				a.upto = s.now.Add(forEver)
			}
			a.use = limit.Use{Rate: rate, Missing: l.Missing(s.now, gained)}
			if units, own := l.Overrides[key]; own {
				a.use.Rate.Units = units
			}
			h.asks = append(h.asks, a)
		}
	}
	if len(h.asks) > 0 {
		h.count(b, s.from)
	}
	return h
}

// overOverride reports whether a call costs more than a limit ever has while an operator's rate is in force: it waits for the
// configured one.
func (h *headroom) overOverride(key string, cost int64) bool {
	return slices.ContainsFunc(h.limits, func(l policy.LockedLimit) bool {
		if _, own := l.Overrides[key]; own && l.PerKey {
			return false
		}
		return l.CountCost && l.Config != nil && cost > l.Rate().Most()
	})
}

// counted works out what the limits allow, once their units are counted.
func (h *headroom) counted(ctx context.Context, db ledger.DB) error {
	if err := addKnown(ctx, db, h.limits, h.asks); err != nil {
		return err
	}
	for _, a := range h.asks {
		q, soon := h.Admission[a.index], a.use.Soon(a.gained)
		q.Room[a.key], q.Soon[a.key] = a.use.Room(h.now, a.gained), soon
		for _, c := range soon {
			q.Room[a.key] += c.Units
		}
		h.next[a.limitKey] = a.use.NextLook(h.now, a.gained).Add(-h.ahead / 2) // so that what is given out reaches a worker in time
		if !a.reset.IsZero() && a.reset.Before(h.next[a.limitKey]) {
			h.next[a.limitKey] = a.reset
		}
	}
	return nil
}

const forEver = 200 * 365 * 24 * time.Hour // to occupiedSQL, which takes what has no end for a hundred years

// aheadOf is how long before they come free a queue's claims give out units. A call that waits for its time at a worker would
// hold a unit of a limit of concurrency.
func aheadOf(limits []policy.LockedLimit) (ahead time.Duration) {
	for i, l := range limits {
		if of := l.Rate().Ahead(); i == 0 || of < ahead {
			ahead = of
		}
	}
	return ahead
}

// errClockSetBack: what started since the claim read the clock may seem to be long over.
var errClockSetBack = errors.New("the clock of Postgres was set back within a claim")

// count counts how many units of each are occupied, and when the first can come free. What a token bucket holds depends on when
// it was charged. No attempt of a smaller batch than from is open.
func (h *headroom) count(b *pgx.Batch, from int64) {
	names, keys, since := arrays(h.asks)
	var upto []time.Time
	of := make(map[limitKey]*limit.Use, len(h.asks))
	for _, a := range h.asks {
		upto = append(upto, a.upto)
		of[a.limitKey] = &a.use
	}
	b.Queue(occupiedSQL, names, keys, since, from, upto).Query(func(rows pgx.Rows) error {
		var row limitKey
		var occupied, former int64
		var freed *time.Time
		var until []time.Time // of the charges up to upto, with their units
		var units []int64
		var at time.Time // Postgres's clock once it was counted
		counted := 0
		_, err := pgx.ForEachRow(rows, []any{&row.limit, &row.key, &occupied, &former, &freed, &until, &units, &at}, func() error {
			if at.Before(h.now) {
				return errClockSetBack
			}
			use := of[row]
			use.Occupied = occupied
			if use.Missing != nil {
				use.Missing.Former = former
			}
			if freed != nil {
				use.Freed = *freed
			}
			for i := range until {
				use.Charges = append(use.Charges, limit.Charge{Until: until[i], Units: units[i]})
			}
			counted++
			return nil
		})
		if err == nil && counted != len(h.asks) {
			err = fmt.Errorf("%d of %d limits and keys answered", counted, len(h.asks))
		}
		return err
	})
}

// addKnown adds what was charged when units went missing.
func addKnown(ctx context.Context, db ledger.DB, limits []policy.LockedLimit, asks []*asked) error {
	var missing []*asked
	for _, a := range asks {
		if l := limits[a.index]; a.use.Missing != nil && l.KnownAt != nil {
			a.since, missing = l.Rate().KnownSince(*l.KnownAt), append(missing, a)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	names, keys, since := arrays(missing)
	known, err := policy.Known(ctx, db, names, keys, since)
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

// lacking yields the limits that have no room for a held call, with its key where they are per key.
func (h *headroom) lacking(c held) iter.Seq2[limitKey, policy.LockedLimit] {
	return func(yield func(limitKey, policy.LockedLimit) bool) {
		for i, l := range h.limits {
			of, units := limitKey{l.Name, ""}, int64(1)
			if l.PerKey {
				of.key = c.key
			}
			if l.CountCost {
				units = c.cost
			}
			if h.Admission[i].Room[of.key] < units && !yield(of, l) {
				return
			}
		}
	}
}

// shared is the headroom of the limits that all keys share.
func (h *headroom) shared() *headroom {
	s := &headroom{now: h.now, next: h.next}
	for i, l := range h.limits {
		if !l.PerKey {
			s.limits, s.Admission = append(s.limits, l), append(s.Admission, h.Admission[i])
		}
	}
	return s
}

// wait is how long a held call cannot be admitted. When a unit of a concurrency limit comes free is not known: whoever frees
// it wakes the dispatchers.
func (h *headroom) wait(c held) (wait time.Duration, known bool) {
	known = true
	for of, l := range h.lacking(c) {
		if l.Window == 0 && l.Missing(h.now, 0) == nil {
			known = false
			continue
		}
		wait = max(wait, minGap, h.next[of].Sub(h.now))
	}
	return wait, known
}

// occupiedSQL adds up what is occupied of each limit ($1) and key ($2, empty where the limit is not per key) since $3
// (limit.Rate.Since), and lists its charges up to $5. $4 is the batch from which on attempts may be open. It reads open attempts and
// usage in one statement, and calls nothing that takes a snapshot of its own: two readings would both miss a close between them.
//
// The unit of an open attempt can come free from its start on, or from the moment that bounds it; where only its answer can, that
// has come within the time that a close takes. Usage buckets are labelled with their end.
//
// It reads each open attempt once, however many keys are asked about (TestOccupiedIsLinear): the sessions' settings leave
// joins only nested loops, but IN within another condition is looked up in a hash.
const occupiedSQL = `
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[], $5::timestamptz[]) AS a (name, key, since, upto)
), rules AS MATERIALIZED (
    SELECT l.name, a.since, a.upto, l.slack, l.proof, l.anchor, l.epoch
    FROM (SELECT name, min(since) AS since, min(upto) AS upto FROM asked GROUP BY name) a
    JOIN callq.call_limits l ON l.name = a.name
), open AS (
    SELECT u.name, u.key, u.cost, l.since, l.upto, o.epoch <> l.epoch AS former,
        CASE l.proof WHEN 'later' THEN greatest(o.started_at, coalesce(o.overtaken_at, now() - interval '250 ms'))
            ELSE greatest(o.started_at, o.acked_at) END AS freed_at,
        l.proof = 'later' AND o.started_at IS NOT NULL AND o.send_within IS NOT NULL AS answerable,
        callq.occupied_until(o.task, o.epoch, o.started_at, o.send_within, o.acked_at, o.overtaken_at, l.anchor, l.epoch, l.slack,
            l.proof) AS until
    FROM callq.call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
    CROSS JOIN LATERAL (SELECT * FROM rules WHERE name = u.name LIMIT 1) l
    WHERE o.batch >= $4 AND o.limits && (SELECT array_agg(name) FROM rules)
      AND ((u.name, u.key) IN (SELECT name, key FROM asked)) IS TRUE
), units AS (
    SELECT name, key, 0 AS cost, false AS former, NULL::timestamptz AS freed_at, NULL::timestamptz AS until, NULL::bool AS listed FROM asked
    UNION ALL
    SELECT name, key, cost, former, CASE WHEN until < 'infinity' OR answerable THEN freed_at END, least(until, upto),
        least(until, now() + interval '100 years') <= upto
    FROM open WHERE until > since
    UNION ALL
    SELECT a.name, a.key, u.used, u.shard < 0, CASE WHEN u.bucket < ` + limit.UnknownSQL + ` THEN u.bucket END, u.bucket, u.bucket <= a.upto
    FROM asked a JOIN callq.call_usage u ON u.limit_name = ANY (ARRAY[a.name]) AND u.key = a.key AND u.bucket > a.since
)
SELECT name, key, sum(cost)::bigint AS occupied, coalesce(sum(cost) FILTER (WHERE former), 0)::bigint AS former,
    min(freed_at) FILTER (WHERE NOT listed) AS freed_at,
    array_agg(until) FILTER (WHERE listed) AS until, array_agg(cost) FILTER (WHERE listed) AS units, clock_timestamp() AS at
FROM units
GROUP BY name, key`
