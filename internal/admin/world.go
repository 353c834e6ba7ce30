package admin

import (
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/forecast"
	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/limit"
)

// outlook is what waits in queues that share limits, and for what, as a forecast takes it.
type outlook struct {
	forecast.World
	queues []worldQueue // by place in World.Queues
	limits []Limit      // by place in World.Limits, which has slots of workers behind them
	// never says, by queue, why nobody can say when its calls start; they are left out of the world, but for the call that is
	// asked about.
	never map[string]string
	waits map[string]int64 // calls, by queue
	ofKey int64            // calls before the one that is asked about, of its key
}

// worldQueue is a queue in force.
type worldQueue struct {
	Name    string     `db:"name"`
	Limits  []string   `db:"limits"`
	Label   string     `db:"label"`
	Hours   string     `db:"hours"`
	Paused  *string    `db:"paused"`
	Until   *time.Time `db:"paused_until"`
	Cost    *float64   `db:"cost"`    // of calls of late; nil: none ended
	Seconds *float64   `db:"seconds"` // that they ran
	Lag     *float64   `db:"lag"`     // seconds from when they could be made until they arrived
	part
}

// Of the 10,000 attempts that ended last, within a day, each queue's give what a call costs, and for how long it runs.
// call_attempts_finished_idx finds them.
const worldQueuesSQL = `
WITH recent AS (
    SELECT queue, avg(coalesce(settled, cost))::float8 AS cost, avg(extract(epoch FROM finished_at - started_at))::float8 AS seconds,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM arrived_by - claimed_at)) AS lag
    FROM (
        SELECT queue, cost, settled, claimed_at, started_at, arrived_by, finished_at FROM public.call_attempts
        WHERE finished_at > now() - interval '1 day'
        ORDER BY finished_at DESC LIMIT 10000
    ) newest
    WHERE started_at IS NOT NULL
    GROUP BY queue
)
SELECT q.name, q.limits, coalesce(q.label, '') AS label, coalesce(q.hours, '') AS hours, p.reason AS paused,
    nullif(p.until, 'infinity') AS paused_until, r.cost, r.seconds, r.lag
FROM callq.call_queues q
LEFT JOIN callq.call_pauses p ON p.what = 'queue' AND p.name = q.name AND p.key = '' AND p.until > clock_timestamp()
LEFT JOIN recent r ON r.queue = q.name
ORDER BY q.name`

// sharing returns a queue and those that share limits with it, directly or through others; none: it is not in force.
func sharing(all []worldQueue, name string) []worldQueue {
	limits := map[string]bool{}
	shares := func(q worldQueue) bool {
		return q.Name == name || slices.ContainsFunc(q.Limits, func(l string) bool { return limits[l] })
	}
	for known := -1; known < len(limits); {
		known = len(limits)
		for _, q := range all {
			if shares(q) {
				for _, l := range q.Limits {
					limits[l] = true
				}
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(q worldQueue) bool { return !shares(q) })
}

// outlook reads the world of these queues, of all that are in force. call is the one that is asked about; nil: all are.
func (r *reader) outlook(all, queues []worldQueue, call *callqueue.Record) *outlook {
	o := &outlook{World: forecast.World{Now: r.now}, queues: queues, never: map[string]string{}, waits: map[string]int64{}}
	var names, limits, labels []string
	for _, q := range queues {
		names, labels = append(names, q.Name), append(labels, q.Label)
		limits = append(limits, q.Limits...)
	}
	var key *string
	if call != nil {
		key = &call.Key
	}
	r.listed = true
	o.limits = r.limits(limits, key)
	o.queues = o.split(queues)
	costs := map[string]float64{}
	for _, c := range list[costOf](r, "read costs", costsSQL, names) {
		costs[c.Queue] = c.Cost
	}
	for _, q := range o.queues {
		o.addQueue(q, costs[q.Name])
	}
	for _, l := range o.limits {
		o.addLimit(l)
	}
	seconds := map[string]*float64{}
	for _, q := range all {
		seconds[q.Name] = q.Seconds
	}
	var task *string
	if call != nil && call.Task != "" {
		task = &call.Task
	}
	o.addSlots(list[slotsOf](r, "count slots", slotsSQL, labels, task), list[takenSlots](r, "read what runs", takenSQL, labels, task), seconds, call)
	o.addKeys(r, names, call)
	o.weigh()
	return o
}

type costOf struct {
	Queue string  `db:"queue"`
	Cost  float64 `db:"cost"`
}

// What calls cost on average, by some of those that wait.
const costsSQL = `
SELECT i.queue, avg(greatest(c.cost, 1))::float8 AS cost
FROM unnest($1::text[]) AS n (name)
CROSS JOIN LATERAL (
    (SELECT n.name AS queue, unnest(ids[1:20]) AS id FROM callq.call_segments WHERE queue = n.name LIMIT 400)
    UNION ALL
    (SELECT n.name, unnest(ids[1:20]) FROM callq.call_inbox WHERE queue = n.name AND calls > 0 LIMIT 400)
) i
JOIN callq.call_effective c ON c.id = i.id
WHERE EXISTS (SELECT FROM callq.call_queues q JOIN callq.call_limits l ON l.name = ANY(q.limits) WHERE q.name = n.name AND l.count_cost)
GROUP BY i.queue`

func (o *outlook) addQueue(q worldQueue, cost float64) {
	world := forecast.Queue{Cost: 1}
	if cost > 0 {
		world.Cost = cost
	} else if q.Cost != nil {
		world.Cost = *q.Cost
	}
	if q.Seconds != nil {
		world.Holds = time.Duration(*q.Seconds * float64(time.Second))
	}
	if q.Lag != nil {
		world.Lag = time.Duration(min(max(*q.Lag, 0), 1) * float64(time.Second))
	}
	var err error
	if world.Hours, err = hours.Parse(q.Hours); err != nil {
		o.never[q.Name] = "queue " + q.Name + " is " + hoursAt(q.Hours, o.Now).state
	}
	switch {
	case q.Until != nil:
		world.Opens = q.Until.Sub(o.Now)
	case q.Paused != nil:
		o.never[q.Name] = "queue " + q.Name + " is paused: " + *q.Paused
	}
	for _, name := range q.Limits {
		if place := slices.IndexFunc(o.limits, func(l Limit) bool { return l.Name == name }); place >= 0 {
			l := o.limits[place]
			world.Limits = append(world.Limits, place)
			if l.State != "open" && l.ShutUntil == nil {
				o.never[q.Name] = "limit " + l.Name + " is " + l.State
			}
		}
	}
	for _, name := range without(q.Limits, o.limits) {
		o.never[q.Name] = "queue " + q.Name + " names limit " + name + ", which is gone"
	}
	o.Queues = append(o.Queues, world)
}

func (o *outlook) addLimit(l Limit) {
	world := forecast.Limit{
		Name: l.Name, Rate: limit.Rate{Units: l.Units, Window: l.Window, Shape: l.Shape}, PerKey: l.PerKey, CountCost: l.CountCost,
		State: forecast.State{Units: float64(l.rate().Units), Room: float64(l.roomIfOpen)},
	}
	if l.State != "open" && l.ShutUntil != nil {
		world.Opens = l.ShutUntil.Sub(o.Now)
	}
	var holds time.Duration
	for i, q := range o.queues {
		if slices.Contains(q.Limits, l.Name) {
			holds = max(holds, o.Queues[i].Holds)
		}
	}
	for _, c := range l.used.Use.Charges {
		at := c.Until.Add(holds)
		if l.Window > 0 {
			at = l.rate().Passed(c.Until, l.used.Gained)
		}
		world.Frees = append(world.Frees, forecast.Free{At: max(0, at.Sub(o.Now)), Units: float64(c.Units)})
	}
	if l.MissingUntil != nil && l.State == "open" {
		world.Frees = append(world.Frees, forecast.Free{At: l.MissingUntil.Sub(o.Now), Units: float64(l.Missing)})
	}
	slices.SortFunc(world.Frees, func(a, b forecast.Free) int { return int(min(max(a.At-b.At, -1), 1)) })
	o.Limits = append(o.Limits, world)
}
