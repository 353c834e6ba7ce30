package admin

import (
	"cmp"
	"fmt"
	"maps"
	"math"
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

// slotsOf are the slots of the live workers with a label, and of the task that is asked about.
type slotsOf struct {
	Label string `db:"label"`
	Slots int64  `db:"slots"`
}

const slotsSQL = `
SELECT l.label, sum(w.slots)::bigint AS slots
FROM (SELECT DISTINCT unnest($1::text[]) AS label) l
JOIN callq.call_workers w ON callq.alive(w.heartbeat_at) AND (l.label = '' OR l.label = ANY(w.labels)) AND ($2::text IS NULL OR $2 = ANY(w.tasks))
GROUP BY l.label
HAVING sum(w.slots) > 0`

// takenSlots are slots of these workers that attempts of a queue have, which run for about as long.
type takenSlots struct {
	Label string  `db:"label"`
	Queue string  `db:"queue"`
	N     int64   `db:"n"`
	Ran   float64 `db:"ran"`     // seconds
	Left  float64 `db:"left_in"` // seconds, up to their deadlines
}

// What was handed over and has not started is about to take a slot.
const takenSQL = `
WITH alive AS (SELECT id, pool, tasks, labels FROM callq.call_workers WHERE callq.alive(heartbeat_at)),
of_label AS (
    SELECT DISTINCT l.label, w.pool
    FROM unnest($1::text[]) AS l (label)
    JOIN alive w ON (l.label = '' OR l.label = ANY(w.labels)) AND ($2::text IS NULL OR $2 = ANY(w.tasks))
), open AS (
    SELECT l.label, o.queue, o.deadline, greatest(extract(epoch FROM clock_timestamp() - o.started_at), 0) AS ran
    FROM of_label l JOIN callq.call_open o USING (pool)
    WHERE o.started_at IS NULL OR o.worker IN (SELECT id FROM alive)
)
SELECT label, queue, count(*) AS n, coalesce(avg(ran), 0)::float8 AS ran,
    coalesce(avg(extract(epoch FROM deadline - clock_timestamp())), 0)::float8 AS left_in
FROM open
GROUP BY label, queue, floor(2 * ln(coalesce(ran, 0) + 0.5))`

// ends is when they come free, from now on, where attempts of their queue run for so many seconds: if they have run longer, in as
// long as they are late. nil: none ended within a day; then it is when they must.
func (s *takenSlots) ends(usual *float64) time.Duration {
	seconds := s.Left
	if usual != nil {
		seconds = max(*usual-s.Ran, s.Ran-*usual, *usual/10)
	}
	return time.Duration(max(seconds, 0.01) * float64(time.Second))
}

// addSlots adds the slots of workers, as limits of the queues whose calls they take. Where all are taken and nobody knows when one
// comes free, nobody can say when a call starts that is due now.
func (o *outlook) addSlots(slots []slotsOf, taken []takenSlots, seconds map[string]*float64, call *callqueue.Record) {
	for _, s := range slots {
		world := forecast.Limit{Name: "slots of workers", Rate: limit.Rate{Units: s.Slots}}
		running, unknown, last := int64(0), true, time.Duration(0)
		for _, t := range taken {
			if t.Label == s.Label {
				usual := seconds[t.Queue]
				at := t.ends(usual)
				running, unknown, last = running+t.N, unknown && usual == nil, max(last, at)
				world.Frees = append(world.Frees, forecast.Free{At: at, Units: float64(t.N)})
			}
		}
		slices.SortFunc(world.Frees, func(a, b forecast.Free) int { return cmp.Compare(a.At, b.At) })
		world.Units, world.Room = float64(s.Slots), float64(max(0, s.Slots-running))
		full := running >= s.Slots
		for i, q := range o.queues {
			if q.Label != s.Label {
				continue
			}
			if o.Queues[i].Holds > 0 || full {
				o.Queues[i].Limits = append(o.Queues[i].Limits, len(o.Limits))
			}
			if full && unknown && (call == nil || call.RunAt.Sub(o.Now) < last) {
				o.never[q.Name] = fmt.Sprintf("all slots of its workers are taken, %d of %d, and nobody knows when one comes free", s.Slots, s.Slots)
			}
		}
		o.Limits = append(o.Limits, world)
	}
}

// waitingKeys are keys of a queue with as many calls each.
type waitingKeys struct {
	Queue  string  `db:"queue"`
	Key    *string `db:"key"`  // of one that may differ from others
	Rank   int16   `db:"rank"` // of its flows, where the queue is split
	Calls  int64   `db:"calls"`
	Before bool    `db:"before"` // their turn comes before that of the call that is asked about
	Count  int64   `db:"count"`
	In     float64 `db:"due_in"` // seconds
}

// A claim begins behind the key that was served last. Of the call that is asked about, its own key is left out, in its part of the queue. The later calls fall
// due, the less is told of when.
const waitingKeysSQL = `
WITH due AS (
    SELECT queue, key, CASE WHEN queue = ANY($6) THEN priority ELSE 5 END AS rank, sum(calls)::bigint AS calls
    FROM (
        SELECT queue, key, priority, calls FROM callq.call_flows WHERE queue = ANY($1) AND calls > 0
        UNION ALL
        SELECT queue, key, priority, calls FROM callq.call_inbox WHERE queue = ANY($1) AND calls > 0 AND keys IS NULL AND at <= $5
    ) b
    WHERE (queue, key) IS DISTINCT FROM ($3, $4) OR priority <> ALL($7)
    GROUP BY 1, 2, 3
), later AS (
    SELECT queue, key, CASE WHEN queue = ANY($6) THEN priority ELSE 5 END AS rank, keys IS NULL AND key = ANY($2) AS apart, calls, extract(epoch FROM greatest(at, $5) - $5) AS due_in
    FROM callq.call_inbox
    WHERE queue = ANY($1) AND calls > 0 AND (keys IS NOT NULL OR at > $5) AND at < $5 + interval '90 years'
      AND ((queue, key) IS DISTINCT FROM ($3, $4) OR priority <> ALL($7))
)
SELECT d.queue, CASE WHEN d.key = ANY($2) THEN d.key END AS key, d.rank, d.calls,
    coalesce(d.queue = $3 AND (d.key <= q.served_key, d.key) < ($4 <= q.served_key, $4), false) AS before, count(*) AS count, 0::float8 AS due_in
FROM due d JOIN callq.call_queues q ON q.name = d.queue
GROUP BY 1, 2, 3, 4, 5
UNION ALL
SELECT queue, CASE WHEN apart THEN key END, rank, 1, false, sum(calls), avg(due_in)::float8
FROM later
GROUP BY queue, CASE WHEN apart THEN key END, rank, floor(20 * ln(due_in + 1))
ORDER BY before DESC`

// addKeys adds what waits, queue by queue, and the call that is asked about.
func (o *outlook) addKeys(r *reader, queues []string, call *callqueue.Record) {
	apart := o.apart(r)
	var queue, key *string
	asked := -1
	ranks := allRanks()
	if call != nil {
		queue, key, asked = &call.Queue, &call.Key, o.place(call.Queue, o.rankOf(call))
		if own := o.queues[asked].ranks; own != nil {
			ranks = own
		}
	}
	type alike struct {
		queue  int
		before bool
		calls  int64
		print  string
	}
	places := map[alike]int{}
	for _, w := range list[waitingKeys](r, "read what waits", waitingKeysSQL, queues, slices.Collect(maps.Keys(apart)), queue, key, r.now, o.splitNames(), ranks) {
		i := o.place(w.Queue, w.Rank)
		q := &o.Queues[i]
		o.waits[w.Queue] += w.Count * w.Calls
		k := forecast.Keys{Count: w.Count, Calls: w.Calls, From: time.Duration(w.In * float64(time.Second))}
		of := alike{i, w.Before, w.Calls, fmt.Sprint(k.From)}
		if w.Key != nil {
			if o.set(&k, i, *w.Key, apart[*w.Key]); k.From == never {
				continue
			}
			of.print = fmt.Sprint(k.From, k.Of)
		}
		if i == asked && !w.Before && !slices.ContainsFunc(q.Keys, isAsked) {
			o.addAsked(r, q, call, ranks)
		}
		if place, seen := places[of]; seen {
			q.Keys[place].Count += k.Count
			continue
		}
		places[of] = len(q.Keys)
		q.Keys = append(q.Keys, k)
	}
	if asked >= 0 && !slices.ContainsFunc(o.Queues[asked].Keys, isAsked) {
		o.addAsked(r, &o.Queues[asked], call, ranks)
	}
	for i, q := range o.queues {
		for _, l := range o.limits {
			if l.Window == 0 && q.Seconds == nil && slices.Contains(q.Limits, l.Name) && o.waits[q.Name] > l.roomIfOpen {
				o.never[q.Name] = "no call of queue " + q.Name + " ended within a day"
			}
		}
		if _, never := o.never[q.Name]; never && (call == nil || q.Name != call.Queue) {
			o.Queues[i].Keys = nil
		}
	}
}

func isAsked(k forecast.Keys) bool { return k.Asked != nil }

// keyApart is in what a key differs from others.
type keyApart struct {
	pauses []Pause
	used   map[string]int64 // by limit
}

// apart are the keys that differ from others: they are paused, have units of their own, or have used some.
func (o *outlook) apart(r *reader) map[string]*keyApart {
	keys := map[string]*keyApart{}
	of := func(key string) *keyApart {
		if keys[key] == nil {
			keys[key] = &keyApart{used: map[string]int64{}}
		}
		return keys[key]
	}
	var names []string
	var since []time.Time
	for _, l := range o.limits {
		if !l.PerKey {
			continue
		}
		for key := range l.Overrides {
			of(key)
		}
		names, since = append(names, l.Name), append(since, l.rate().RecentSince(r.now, l.used.Gained))
	}
	if len(names) > 0 {
		for _, u := range list[keyUsed](r, "read what keys use", keyUsageSQL, names, since) {
			of(u.Key).used[u.Name] = u.Units
		}
	}
	for _, p := range list[Pause](r, "read pauses", pausesSQL+` AND key <> ''`) {
		of(p.Key).pauses = append(of(p.Key).pauses, p)
	}
	return keys
}

// keyUsed is what a key has used of a limit.
type keyUsed struct {
	Name  string `db:"name"`
	Key   string `db:"key"`
	Units int64  `db:"units"`
}

const keyUsageSQL = `
WITH asked AS (
    SELECT l.*, a.since FROM unnest($1::text[], $2::timestamptz[]) AS a (name, since) JOIN callq.call_limits l USING (name)
)
SELECT name, key, sum(used)::bigint AS units
FROM (
    SELECT a.name, u.key, u.used FROM asked a JOIN callq.call_usage u ON u.limit_name = a.name AND u.bucket > a.since
    UNION ALL
    SELECT a.name, u.key, u.cost
    FROM callq.call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.keys, o.costs) AS u (name, key, cost)
    JOIN asked a ON a.name = u.name
    WHERE callq.occupied_until(o.task, o.epoch, o.started_at, o.send_within, o.acked_at, o.overtaken_at, a.anchor, a.epoch, a.slack, a.proof) > a.since
) b
GROUP BY name, key
ORDER BY units DESC
LIMIT 20000`

const never time.Duration = math.MaxInt64

// set says what a key of the queue has that differs from others. What it used comes free evenly, for all that is known.
func (o *outlook) set(k *forecast.Keys, place int, key string, apart *keyApart) {
	q := o.queues[place]
	for _, p := range apart.pauses {
		switch {
		case p.What == "queue" && p.Name != q.Name, p.What == "limit" && !slices.Contains(q.Limits, p.Name):
		case p.Until == nil, p.Until.Sub(o.Now) > forecast.Horizon:
			k.From = never
			return
		default:
			k.From = max(k.From, p.Until.Sub(o.Now))
		}
	}
	k.Of = make([]forecast.State, len(o.Queues[place].Limits))
	for i, at := range o.Queues[place].Limits {
		if at >= len(o.limits) || !o.limits[at].PerKey {
			continue
		}
		l := o.limits[at]
		l.key = key
		units, used := l.rate().Units, apart.used[l.Name]
		k.Of[i] = forecast.State{Units: float64(units), Room: float64(max(0, l.InAll()-used))}
		const parts = 4
		for n := range parts {
			k.Of[i].Frees = append(k.Of[i].Frees, forecast.Free{
				At: l.Window * time.Duration(n+1) / parts, Units: float64(min(used, units)) / parts,
			})
		}
	}
}

// addAsked adds the call that is asked about, behind those of its key that come before it.
func (o *outlook) addAsked(r *reader, q *forecast.Queue, call *callqueue.Record, ranks []int16) {
	before := one[struct {
		Calls int64 `db:"calls"`
	}](r, "find the place of the call", placeSQL, call.Queue, call.Key, o.rankOf(call), call.Task, call.ID, call.RunAt, ranks)
	if before == nil {
		return
	}
	k := forecast.Keys{Count: 1, Calls: before.Calls + 1, Asked: &forecast.Asked{Cost: float64(call.Cost), From: call.RunAt.Sub(o.Now)}}
	for _, p := range list[Pause](r, "read pauses", callPausesSQL, call.Key, call.Queue, o.queues[slices.IndexFunc(o.queues, func(w worldQueue) bool { return w.Name == call.Queue })].Limits) {
		if p.Key != "" && p.Until != nil {
			k.From = max(k.From, p.Until.Sub(o.Now))
		}
	}
	o.ofKey = before.Calls
	o.waits[call.Queue] += before.Calls + 1
	q.Keys = append(q.Keys, k)
}

// How many calls of a call's key come before it: lower priorities, and within its own what fell due before.
const placeSQL = `
WITH asked AS (SELECT $3::smallint AS priority, coalesce($4, 'http') AS task),
flows AS MATERIALIZED (
    SELECT f.*, f.task = a.task AND f.priority = a.priority AS own
    FROM callq.call_flows f, asked a
    WHERE f.queue = $1 AND f.key = $2 AND f.priority % 10 <= a.priority % 10 AND f.priority = ANY($7) AND f.calls > 0
), found AS MATERIALIZED ( -- the call's own segment
    SELECT s.seq, array_position(s.ids, $5) AS place
    FROM flows f JOIN callq.call_segments s ON s.queue = $1 AND s.key = $2 AND s.priority = f.priority AND s.task = f.task AND s.seq >= f.head
    WHERE f.own AND $5 = ANY(s.ids)
    LIMIT 1
)
SELECT (
    SELECT coalesce(sum(CASE
        WHEN f.priority % 10 < a.priority % 10 OR f.own AND NOT EXISTS (SELECT FROM found) THEN f.calls
        ELSE (
            SELECT coalesce(sum(CASE WHEN f.own AND s.seq = n.seq THEN n.place - 1 ELSE cardinality(s.ids) END), f.consumed) - f.consumed
            FROM callq.call_segments s LEFT JOIN found n ON f.own
            WHERE s.queue = $1 AND s.key = $2 AND s.priority = f.priority AND s.task = f.task AND s.seq >= f.head
              AND CASE WHEN f.own THEN s.seq <= n.seq ELSE s.at <= $6 END
        ) END), 0)
    FROM flows f, asked a
) + (
    SELECT coalesce(sum(CASE WHEN $5 = ANY(i.ids) THEN array_position(i.ids, $5) - 1
        WHEN i.keys IS NULL THEN i.calls ELSE (SELECT count(*) FROM unnest(i.keys) k WHERE k = $2) END), 0)
    FROM callq.call_inbox i, asked a
    WHERE i.queue = $1 AND i.calls > 0 AND (i.key = $2 AND i.keys IS NULL OR $2 = ANY(i.keys))
      AND i.priority = ANY($7) AND i.priority <= a.priority AND i.at <= greatest($6, clock_timestamp()) AND ($5 = ANY(i.ids) OR (i.priority, i.at, i.ids[1]) < (a.priority, $6, $5) IS TRUE)
) AS calls`
