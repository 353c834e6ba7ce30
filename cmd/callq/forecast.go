package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/cmd/callq/config"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/lines"
)

func (p *program) limitsForecastCommand() *cobra.Command {
	return &cobra.Command{
		Use: "forecast [LIMIT]", Short: "Say until when the calls that wait now keep each limit busy",
		Long: "Say until when the calls that wait now keep each limit busy, if it alone held them up, no others came and\n" +
			"each took one attempt. Where a limit is per key it is the key with most calls that decides; of a limit by cost,\n" +
			"calls are taken to cost what those of the last day did; of one of calls at once, to take as long.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				rows, err := readForecasts(ctx, pool)
				if err != nil {
					return err
				}
				if len(args) > 0 {
					i := slices.IndexFunc(rows, func(f forecast) bool { return f.Limit == args[0] })
					if i < 0 {
						return unknownRule("limit", args[0])
					}
					rows = rows[i : i+1]
				}
				return printRows(p, rows, forecastColumns()...)
			})
		},
	}
}

// forecast is until when a limit is kept busy by what waits for it now.
type forecast struct {
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

func forecastColumns() []column[forecast] {
	return []column[forecast]{
		{"LIMIT", func(f forecast) string { return f.Limit }},
		{"RATE", func(f forecast) string { return f.Rate }},
		{"WAITING", func(f forecast) string { return strconv.FormatInt(f.Waiting, 10) }},
		{"MOST OF A KEY", func(f forecast) string {
			if f.Key == nil || f.OfKey == 0 {
				return "-"
			}
			return fmt.Sprintf("%d (%s)", f.OfKey, printable(short(dash(*f.Key))))
		}},
		{"BUSY FOR", func(f forecast) string {
			if f.Lasts == nil {
				return "unknown: " + f.State
			}
			return "~" + f.Lasts.Round(time.Second).String()
		}},
		{"UNTIL", func(f forecast) string { return instant(f.Until) }},
	}
}

// demand is what waits for a limit.
type demand struct {
	Name    string     `db:"name"`
	Waiting int64      `db:"waiting"`
	Key     *string    `db:"key"`
	OfKey   int64      `db:"of_key"`
	Cost    *float64   `db:"cost"`    // of a call of late; nil: there was none
	Seconds *float64   `db:"seconds"` // that an attempt of late ran
	Now     *time.Time `db:"now"`
}

func readForecasts(ctx context.Context, pool *pgxpool.Pool) ([]forecast, error) {
	limits, err := readLimits(ctx, pool)
	if err != nil {
		return nil, err
	}
	demands, err := collect[demand](ctx, pool, "read what waits", demandSQL)
	if err != nil {
		return nil, err
	}
	rows := make([]forecast, 0, len(limits))
	for _, l := range limits {
		i := slices.IndexFunc(demands, func(d demand) bool { return d.Name == l.Name })
		if i < 0 {
			return nil, errors.New("limits changed meanwhile; try again")
		}
		rows = append(rows, l.forecast(demands[i]))
	}
	return rows, nil
}

// forecast reckons, without I/O: after what is occupied the waiting calls go at the limit's rate.
func (l limitRow) forecast(d demand) forecast {
	f := forecast{Limit: l.Name, Rate: l.Rate, State: l.State, Waiting: d.Waiting, Cost: 1}
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
		use := limit.Use{Rate: l.Units, Window: l.Window, Occupied: l.Occupied}
		lasts = l.busyFor(units-float64(use.Room()), d.Now)
	case d.Seconds == nil:
		f.State = "no call of its queues ended within a day"
		return f
	default:
		lasts = time.Duration(units / float64(l.Units) * *d.Seconds * float64(time.Second))
	}
	f.Lasts = &lasts
	if d.Now != nil {
		f.Until = new(d.Now.Add(lasts))
		inUTC(f.Until)
	}
	return f
}

// busyFor is how long it takes until so many units came free: whole windows, and of the last one its share,
// though not less than until the first of what is occupied comes free.
func (l limitRow) busyFor(units float64, now *time.Time) time.Duration {
	if units <= 0 {
		return 0
	}
	windows := math.Ceil(units/float64(l.Units)) - 1
	last := time.Duration((units - windows*float64(l.Units)) / float64(l.Units) * float64(l.Window))
	if l.FreedAt != nil && now != nil {
		use := limit.Use{Window: l.Window, Freed: *l.FreedAt}
		last = max(last, use.NextLook(*l.FreedAt, 0).Sub(*now))
	}
	return time.Duration(windows*float64(l.Window)) + last
}

// What ended last is looked at for cost and time.
var demandSQL = `
WITH` + lines.WaitingSQL("true") + `, recent AS (
    SELECT queue, coalesce(settled, cost) AS cost, extract(epoch FROM finished_at - started_at) AS seconds
    FROM call_attempts
    WHERE call_id > (SELECT coalesce(max(id), 0) - 10000 FROM call_queue)
      AND started_at IS NOT NULL AND finished_at > clock_timestamp() - interval '1 day'
), of_key AS (
    SELECT l.name, s.key, sum(s.calls) AS calls
    FROM call_limits l
    JOIN (SELECT queue, key, sum(calls) AS calls FROM waiting GROUP BY 1, 2) s ON s.queue = ANY(l.queues)
    GROUP BY l.name, s.key
)
SELECT l.name, coalesce(w.waiting, 0)::bigint AS waiting, m.key, coalesce(m.calls, 0)::bigint AS of_key,
    r.cost::float8 AS cost, r.seconds::float8 AS seconds, clock_timestamp() AS now
FROM call_limits l
LEFT JOIN LATERAL (SELECT sum(calls) AS waiting FROM of_key k WHERE k.name = l.name) w ON true
LEFT JOIN LATERAL (SELECT key, calls FROM of_key k WHERE k.name = l.name ORDER BY calls DESC, key LIMIT 1) m ON true
LEFT JOIN LATERAL (SELECT avg(cost) AS cost, avg(seconds) AS seconds FROM recent c WHERE c.queue = ANY(l.queues)) r ON true`
