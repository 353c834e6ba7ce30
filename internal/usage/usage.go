// Package usage counts what is occupied of limits: for claims, which hold the limits' locks, and for screens, which hold none.
package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
)

// Of is a limit and, if it is per key, a key.
type Of struct{ Limit, Key string }

// Count is what is counted of a limit, or of a key of one.
type Count struct {
	Of
	Gained  time.Duration    // what Postgres's clock gained while anything that still counts was under way
	Use     limit.Use        // all but Rate and Missing is read
	InDoubt int64            // of Use.Occupied, by requests that ended without an answer and may still arrive
	EvenGap time.Duration    // how far apart its calls go; 0: as they come
	Shares  map[string]int64 // of a limit of concurrency with shares: what is open of each
	At      time.Time        // Postgres's clock once it was counted

	row       policy.LockedLimit
	since     time.Time // charges with a later until count
	upto      time.Time // of these, charges with no later until are listed one by one
	estimated bool
}

// New makes the question how a limit, or a key of one, is used at a moment of Postgres's clock. Charges of token buckets are listed.
func New(l policy.LockedLimit, key string, now time.Time, gains limit.Gains) *Count {
	rate, gained := l.Rate(), l.Gained(gains, now)
	c := &Count{Of: Of{l.Name, key}, Gained: gained, row: l, since: rate.Since(now, gained)}
	c.Use = limit.Use{Rate: rate, Missing: l.Missing(now, gained)}
	if units, own := l.Overrides[key]; own && l.PerKey {
		c.Use.Rate.Units = units
	}
	if l.EvenUntil != nil && l.EvenUntil.After(now) && !l.CountCost {
		c.EvenGap = c.Use.Rate.EvenGap()
	}
	if c.upto = c.since; rate.Returns() == limit.Evenly {
		c.upto = now.Add(forEver)
	}
	return c
}

const forEver = 200 * 365 * 24 * time.Hour // to occupiedSQL, which takes what has no end for a hundred years

// ListAhead has the charges listed that come free by a moment.
func (c *Count) ListAhead(by time.Time) {
	if c.Use.Rate.Returns() != limit.Evenly {
		c.upto = c.Use.Rate.Since(by, c.Gained)
	}
}

// ListAll has all charges listed. In place of an end that is not known stands when the attempt began.
func (c *Count) ListAll(now time.Time) {
	c.estimated, c.upto = c.Use.Rate.Returns() != limit.Evenly, now.Add(forEver)
}

// Lower has no more given out than remains at the API. It reports whether that is less.
func (c *Count) Lower(most int64) bool {
	if c.Use.Rate.Returns() == limit.Evenly || most >= c.Use.Rate.Units {
		return false
	}
	c.Use.Rate.Units = most
	return true
}

// Read has a batch count how many units of each are occupied, and when the first can come free. lowWater is the smallest batch of
// which an attempt may still be open; 0 reads all.
func Read(b *pgx.Batch, counts []*Count, lowWater int64) {
	if len(counts) == 0 {
		return
	}
	readShares(b, counts)
	names, keys, since := arrays(counts)
	upto, estimated := make([]time.Time, len(counts)), make([]bool, len(counts))
	of := make(map[Of]*Count, len(counts))
	for i, c := range counts {
		upto[i], estimated[i], of[c.Of] = c.upto, c.estimated, c
	}
	b.Queue(occupiedSQL, names, keys, since, lowWater, upto, estimated).Query(func(rows pgx.Rows) error {
		var row Of
		var occupied, former, inRuns, unsent, inDoubt int64
		var first, last *time.Time
		var until []time.Time
		var units []int64
		var at time.Time
		counted := 0
		_, err := pgx.ForEachRow(rows, []any{&row.Limit, &row.Key, &occupied, &former, &inRuns, &unsent, &last, &inDoubt, &first, &until, &units, &at}, func() error {
			c := of[row]
			c.Use.Occupied, c.Use.InRuns, c.Use.Unsent, c.InDoubt, c.At = occupied, inRuns, unsent, inDoubt, at
			if c.Use.Missing != nil {
				c.Use.Missing.Former = former
			}
			if first != nil {
				c.Use.FirstUntil = *first
			}
			if last != nil {
				c.Use.LastSent = *last
			}
			for i := range until {
				c.Use.Charges = append(c.Use.Charges, limit.Charge{Until: until[i], Units: units[i]})
			}
			counted++
			return nil
		})
		if err == nil && counted != len(counts) {
			err = fmt.Errorf("%d of %d limits and keys answered", counted, len(counts))
		}
		return err
	})
}

// readShares has a batch count what is open of shares of limits of concurrency.
func readShares(b *pgx.Batch, counts []*Count) {
	of := map[Of]*Count{}
	var names []string
	for _, c := range counts {
		if len(c.row.Shares) > 0 && c.row.Window == 0 {
			of[c.Of], names, c.Shares = c, append(names, c.Limit), map[string]int64{}
		}
	}
	if names == nil {
		return
	}
	b.Queue(sharesSQL, names).Query(func(rows pgx.Rows) error {
		var row Of
		var share string
		var units int64
		_, err := pgx.ForEachRow(rows, []any{&row.Limit, &row.Key, &share, &units}, func() error {
			if c := of[row]; c != nil {
				c.Shares[share] = units
			}
			return nil
		})
		return err
	})
}

const sharesSQL = `
SELECT u.name, u.key, o.shares ->> u.name AS share, sum(u.cost)::bigint
FROM callq.call_open o CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
WHERE o.shares ?| $1::text[] AND o.shares ? u.name AND u.name = ANY($1)
GROUP BY 1, 2, 3`

// AddKnown adds what was charged when units went missing.
func AddKnown(ctx context.Context, db ledger.DB, counts []*Count) error {
	var missing []*Count
	for _, c := range counts {
		if c.Use.Missing != nil && c.row.KnownAt != nil {
			c.since, missing = c.row.Rate().KnownSince(*c.row.KnownAt), append(missing, c)
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
	for i, c := range missing {
		c.Use.Missing.Known = known[i] - c.row.KnownLess
	}
	return nil
}

func arrays(counts []*Count) (names, keys []string, since []time.Time) {
	for _, c := range counts {
		names, keys, since = append(names, c.Limit), append(keys, c.Key), append(since, c.since)
	}
	return names, keys, since
}

// occupiedSQL adds up what is occupied of each limit ($1) and key ($2, empty where the limit is not per key) since $3
// (limit.Rate.Since), and lists its charges up to $5, if $6 by when they began where their end is not known. $4 is the batch from which
// on attempts may be open. It reads open attempts and usage in one statement, and calls nothing that takes a snapshot of its own: two readings would both miss a close between them.
//
// The unit of an open attempt can come free from its start on, or from the moment that bounds it; where only its answer can, that
// has come within the time that a close takes. Usage buckets are labelled with their end.
//
// It reads each open attempt once, however many keys are asked about (TestOccupiedIsLinear): the sessions' settings leave
// joins only nested loops, but IN within another condition is found by a hash.
const occupiedSQL = `
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[], $5::timestamptz[], $6::bool[]) AS a (name, key, since, upto, estimated)
), rules AS MATERIALIZED (
    SELECT l.name, a.since, a.upto, a.estimated, l.slack, l.proof, l.anchor, l.epoch
    FROM (SELECT name, min(since) AS since, min(upto) AS upto, bool_or(estimated) AS estimated FROM asked GROUP BY name) a
    JOIN callq.call_limits l ON l.name = a.name
), open AS (
    SELECT u.name, u.key, u.cost, l.since, l.upto, o.epoch <> l.epoch AS former, o.rooms IS NOT NULL AS in_runs, o.started_at,
        o.started_at + CASE WHEN o.rooms IS NULL THEN interval '0' ELSE ` + limit.AskedAheadSQL + ` END AS sent,
        CASE WHEN l.estimated THEN coalesce(greatest(o.started_at, o.acked_at, o.overtaken_at), now()) END AS began,
        CASE l.proof WHEN 'later' THEN greatest(o.started_at, coalesce(o.overtaken_at, now() - interval '250 ms'))
            ELSE greatest(o.started_at, o.acked_at) END AS first_until,
        l.proof = 'later' AND o.started_at IS NOT NULL AND o.send_within IS NOT NULL AS answerable,
        callq.occupied_until(o.task, o.epoch, o.started_at, o.send_within, o.acked_at, o.overtaken_at, l.anchor, l.epoch, l.slack,
            l.proof) AS until
    FROM callq.call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
    CROSS JOIN LATERAL (SELECT * FROM rules WHERE name = u.name LIMIT 1) l
    WHERE o.batch >= $4 AND o.limits && (SELECT array_agg(name) FROM rules)
      AND ((u.name, u.key) IN (SELECT name, key FROM asked)) IS TRUE
), units AS (
    SELECT name, key, 0 AS cost, false AS former, false AS in_runs, false AS unsent, NULL::timestamptz AS sent,
        NULL::timestamptz AS first_until, NULL::timestamptz AS until, NULL::bool AS listed FROM asked
    UNION ALL
    SELECT name, key, cost, former, in_runs, started_at IS NULL, sent, CASE WHEN until < 'infinity' OR answerable THEN first_until END,
        least(until, coalesce(began, upto)), least(until, now() + interval '100 years') <= upto
    FROM open WHERE until > since
    UNION ALL
    SELECT a.name, a.key, u.used, u.shard < 0, false, false, b.known, b.known, u.bucket, u.bucket <= a.upto
    FROM asked a JOIN callq.call_usage u ON u.limit_name = ANY (ARRAY[a.name]) AND u.key = a.key AND u.bucket > a.since
    CROSS JOIN LATERAL (SELECT CASE WHEN u.bucket < ` + limit.UnknownSQL + ` THEN u.bucket END AS known) b
)
SELECT name, key, sum(cost)::bigint AS occupied, coalesce(sum(cost) FILTER (WHERE former), 0)::bigint AS former,
    coalesce(sum(cost) FILTER (WHERE in_runs), 0)::bigint AS in_runs,
    coalesce(sum(cost) FILTER (WHERE unsent), 0)::bigint AS unsent, max(sent) AS last_sent,
    coalesce(sum(cost) FILTER (WHERE until = ` + limit.UnknownSQL + `), 0)::bigint AS in_doubt,
    min(first_until) FILTER (WHERE NOT listed) AS first_until,
    array_agg(until) FILTER (WHERE listed) AS until, array_agg(cost) FILTER (WHERE listed) AS units, clock_timestamp() AS at
FROM units
GROUP BY name, key`
