package admin

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/forecast"
)

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
