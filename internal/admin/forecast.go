package admin

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
)

// Forecast says how long the calls that wait now keep a limit busy.
type Forecast struct {
	Limit   string  `json:"limit"`
	Rate    string  `json:"rate"`
	State   string  `json:"state"`
	Waiting int64   `json:"waiting"`     // calls of its queues, due and scheduled
	Key     *string `json:"key"`         // that has most of them; nil: the limit is not per key
	OfKey   int64   `json:"of_key"`      // how many
	Cost    float64 `json:"cost_a_call"` // units
	// Lasts is for how long the limit is busy with them; nil: nobody can say.
	Lasts *time.Duration `json:"lasts_ns"`
	Until *time.Time     `json:"until"`
}

// demand is what waits for a limit.
type demand struct {
	Name    string            `db:"name"`
	Waiting int64             `db:"waiting"`
	Key     *string           `db:"key"`
	OfKey   int64             `db:"of_key"`
	Cost    *float64          `db:"cost"`    // of a call of late; nil: there was none
	Seconds *float64          `db:"seconds"` // that an attempt of late ran
	Hours   map[string]string `db:"hours"`   // of the queues in which calls wait, if they have some
}

// ReadForecasts makes a forecast for each limit that is named (nil: all), in the order of [ReadLimits].
func ReadForecasts(ctx context.Context, pool Pool, names []string) ([]Forecast, error) {
	return snapshot(ctx, pool, func(r *reader) (rows []Forecast) {
		demands := map[string]demand{}
		for _, d := range list[demand](r, "read what waits", demandSQL, names) {
			demands[d.Name] = d
		}
		for _, l := range r.limits(names, nil) {
			rows = append(rows, l.forecast(demands[l.Name]))
		}
		return rows
	})
}

// forecast assumes that, once what is occupied comes free, the waiting calls go at the limit's rate.
func (l Limit) forecast(d demand) Forecast {
	f := Forecast{Limit: l.Name, Rate: l.Rate, State: l.State, Waiting: d.Waiting, Cost: 1}
	calls := d.Waiting
	if l.PerKey {
		f.Key, f.OfKey, calls = d.Key, d.OfKey, d.OfKey
	}
	if l.CountCost && d.Cost != nil {
		f.Cost = *d.Cost
	}
	if l.State != "open" {
		return f
	}
	units := float64(calls) * f.Cost
	var lasts time.Duration
	switch {
	case units == 0:
	case l.Window > 0: // the first window has room for what is not occupied
		lasts = l.busyFor(units - float64(l.Room))
	case d.Seconds == nil:
		f.State = "no call of its queues ended within a day"
		return f
	default:
		lasts = time.Duration(units / float64(l.Units) * *d.Seconds * float64(time.Second))
	}
	until := l.now.Add(lasts)
	for _, queue := range slices.Sorted(maps.Keys(d.Hours)) {
		if h := hoursAt(d.Hours[queue], l.now); h.OutsideHours || h.HoursUntil != nil && h.HoursUntil.Before(until) {
			f.State = fmt.Sprintf("queue %s is %s", queue, h.state)
			return f
		}
	}
	f.Lasts, f.Until = &lasts, &until
	return f
}

// busyFor returns how long it takes until so many units come free: whole windows, and of the last its share, but no
// less than until the first occupied unit comes free. A calendar window gives out all its units at its start.
func (l Limit) busyFor(units float64) time.Duration {
	if units <= 0 {
		return 0
	}
	windows := math.Ceil(units/float64(l.Units)) - 1
	if l.Shape.Algorithm == limit.FixedWindow && l.next != nil {
		return l.rate().Later(*l.next, windows).Sub(l.now)
	}
	span := float64(l.rate().Span())
	last := time.Duration((units - windows*float64(l.Units)) / float64(l.Units) * span)
	if l.next != nil {
		last = max(last, l.next.Sub(l.now))
	}
	return time.Duration(windows*span) + last
}

// Recently ended calls give the average cost and time. Keys are told apart only for limits that are per key.
const demandSQL = `
WITH waiting AS MATERIALIZED (
    SELECT queue, sum(calls) AS calls, (SELECT hours FROM call_queues WHERE name = queue AND hours <> '') AS hours
    FROM (SELECT queue, calls FROM call_flows WHERE calls > 0 UNION ALL SELECT queue, calls FROM call_inbox WHERE calls > 0) b
    GROUP BY queue
), recent AS (
    SELECT queue, coalesce(settled, cost) AS cost, extract(epoch FROM finished_at - started_at) AS seconds
    FROM call_attempts
    WHERE call_id > (SELECT coalesce(max(id), 0) - 10000 FROM call_queue)
      AND started_at IS NOT NULL AND finished_at > clock_timestamp() - interval '1 day'
)
SELECT l.name, coalesce(w.waiting, 0)::bigint AS waiting, m.key, coalesce(m.calls, 0)::bigint AS of_key,
    r.cost::float8 AS cost, r.seconds::float8 AS seconds, w.hours
FROM call_limits l
LEFT JOIN LATERAL (
    SELECT sum(calls) AS waiting, jsonb_object_agg(queue, hours) FILTER (WHERE hours IS NOT NULL) AS hours
    FROM waiting WHERE queue = ANY(l.queues)
) w ON true
LEFT JOIN LATERAL (
    SELECT key, sum(calls) AS calls
    FROM (
        SELECT queue, key, calls FROM call_flows WHERE calls > 0
        UNION ALL
        SELECT queue, key, calls FROM call_inbox WHERE calls > 0 AND keys IS NULL
        UNION ALL
        SELECT queue, k.key, 1 FROM call_inbox CROSS JOIN LATERAL unnest(keys) AS k (key)
    ) b
    WHERE l.per_key AND queue = ANY(l.queues)
    GROUP BY key
    ORDER BY 2 DESC, 1
    LIMIT 1
) m ON true
LEFT JOIN LATERAL (SELECT avg(cost) AS cost, avg(seconds) AS seconds FROM recent c WHERE c.queue = ANY(l.queues)) r ON true
WHERE $1::text[] IS NULL OR l.name = ANY($1)`
