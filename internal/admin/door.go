package admin

import (
	"context"
	"time"

	"github.com/callq/callq/internal/limit"
)

// Door is what an API can have seen of a limit's requests around now: each counts from its start until its units are free again.
type Door struct {
	Now      time.Time
	Since    time.Time // from when on
	Until    time.Time // until when units that come free are known
	Most     int64     // what may be counted at once
	Key      string    // of a limit per key: whose requests these are
	Arrivals []Arrival // in the order of their starts
	Closed   []Closing
	Cut      bool // there were more requests than are read: Since is when the oldest of them came
}

// Arrival is a request at the API.
type Arrival struct {
	At      time.Time  `db:"started_at"`
	By      *time.Time `db:"arrived_by"` // when it had arrived; of a concurrency, when it ended; nil: that is not known yet
	Units   int64      `db:"units"`
	Refused bool       `db:"refused"` // by the API
	Free    *time.Time `db:"-"`       // when its units are free again; nil likewise
}

// Closing is a time in which the limit let nothing through.
type Closing struct {
	From   time.Time  `db:"from_at"`
	Until  *time.Time `db:"until_at"` // nil: it is not known
	Reason string     `db:"reason"`
}

// mostArrivals is how many requests are read, and drawn as a picture.
const mostArrivals = 10_000

// ReadDoor reads the requests of a limit, of a key if it is per key, that may have arrived within some windows before now; nil: there is
// no such limit. Without a key it takes the one that uses most.
func ReadDoor(ctx context.Context, pool Pool, name string, key *string) (*Door, error) {
	return snapshot(ctx, pool, func(r *reader) *Door {
		limits := r.limits([]string{name}, key)
		if len(limits) == 0 {
			return nil
		}
		l := limits[0]
		back, ahead := doorSpan(l.rate())
		d := &Door{Now: r.now, Since: r.now.Add(-back), Until: r.now.Add(ahead), Most: l.InAll(), Key: l.key}
		// One more window before, whose requests count at Since.
		from := d.Since.Add(-ahead)
		d.Arrivals = list[Arrival](r, "read the limit's requests", doorSQL, name, from, l.key, l.PerKey, mostArrivals)
		for i := range d.Arrivals {
			d.Arrivals[i].Free = l.freeAgain(d.Arrivals[i])
		}
		if l.rate().Returns() == limit.Evenly { // at most a burst more than the rate in any window
			d.Most += l.Units
		}
		if len(d.Arrivals) == mostArrivals {
			d.Cut, d.Since = true, d.Arrivals[0].At.Add(ahead)
		}
		d.Closed = list[Closing](r, "read what is closed", doorClosedSQL, name)
		return d
	})
}

// doorSpan is how much is drawn: four windows, and one ahead; of a concurrency a minute.
func doorSpan(r limit.Rate) (back, ahead time.Duration) {
	if r.Window == 0 {
		return time.Minute, 15 * time.Second
	}
	return 4 * r.Window, r.Window
}

// freeAgain is when the units of a request are free again. Those of a bucket come back little by little: its requests are counted
// over a window.
func (l Limit) freeAgain(a Arrival) *time.Time {
	switch {
	case a.By == nil || l.Window == 0:
		return a.By
	case l.rate().Returns() == limit.Evenly:
		return new(a.At.Add(l.Window))
	}
	return new(l.rate().Passed(*a.By, 0))
}

// The newest requests, oldest first. What ended before cannot have begun later (call_attempts_finished_idx).
const doorSQL = `
SELECT started_at, arrived_by, units, refused
FROM (
    SELECT a.started_at, nullif(c."until", ` + limit.UnknownSQL + `) AS arrived_by, c.cost AS units, a.outcome = 'refused' OR a.code IS NOT DISTINCT FROM 429 AS refused
    FROM public.call_attempts a
    CROSS JOIN LATERAL jsonb_to_recordset(a.charged) AS c ("limit" text, key text, cost bigint, "until" timestamptz)
    WHERE a.finished_at >= $2 AND a.started_at >= $2 AND c."limit" = $1 AND (NOT $4 OR c.key = $3)
      AND a.queue IN (SELECT unnest(queues) FROM callq.call_limits WHERE name = $1) -- of others the charges need not be read
    UNION ALL
    SELECT o.started_at, NULL, u.cost, false
    FROM callq.call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
    WHERE o.started_at IS NOT NULL AND u.name = $1 AND (NOT $4 OR u.key = $3)
    ORDER BY started_at DESC
    LIMIT $5
) newest
ORDER BY started_at`

// What is closed now.
const doorClosedSQL = `
SELECT at AS from_at, nullif(until, 'infinity') AS until_at, reason FROM callq.call_pauses
WHERE what = 'limit' AND name = $1 AND key = '' AND until > clock_timestamp()
ORDER BY at`
