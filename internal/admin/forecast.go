package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/forecast"
	"github.com/callq/callq/internal/words"
)

// Forecast says how long the calls that wait now keep a limit busy.
type Forecast struct {
	Limit   string  `json:"limit"`
	Rate    string  `json:"rate"`
	State   string  `json:"state"`       // why nobody can say, if so
	Waiting int64   `json:"waiting"`     // calls of its queues, due and scheduled
	Key     *string `json:"key"`         // that has most of them; nil: the limit is not per key
	OfKey   int64   `json:"of_key"`      // how many
	Cost    float64 `json:"cost_a_call"` // units
	// Lasts is in how long the last of them starts; nil: nobody can say.
	Lasts *time.Duration `json:"lasts_ns"`
	Until *time.Time     `json:"until"`
}

// QueueForecast says when the calls that wait now in a queue have started, or when another of a key does.
type QueueForecast struct {
	Queue   string  `json:"queue"`
	Key     *string `json:"key"` // nil: all
	Waiting int64   `json:"waiting"`
	// StartsAt is when the last of them starts, or of a key, a call that is inserted now; nil: nobody can say, or none waits.
	StartsAt *time.Time `json:"starts_at"`
	Because  string     `json:"because"`
}

// ReadForecasts makes a forecast for each limit that is named (nil: all), in the order of [ReadLimits].
func ReadForecasts(ctx context.Context, pool Pool, names []string) ([]Forecast, error) {
	return snapshot(ctx, pool, func(r *reader) (rows []Forecast) {
		most := map[string]mostOf{}
		for _, m := range list[mostOf](r, "find the keys with most calls", mostOfSQL, names) {
			most[m.Name] = m
		}
		outlooks := r.outlooks(func(q worldQueue) bool {
			return names == nil || slices.ContainsFunc(q.Limits, func(l string) bool { return slices.Contains(names, l) })
		})
		for _, l := range r.limits(names, nil) {
			f := Forecast{Limit: l.Name, Rate: l.Rate, State: l.State, Cost: 1, Lasts: new(time.Duration), Until: &r.now}
			if m, is := most[l.Name]; is && l.PerKey {
				f.Key, f.OfKey = m.Key, m.OfKey
			}
			for _, o := range outlooks {
				if slices.ContainsFunc(o.limits, func(other Limit) bool { return other.Name == l.Name }) {
					o.tell(&f, l)
				}
			}
			if f.Lasts != nil {
				f.Until = new(l.now.Add(*f.Lasts))
			}
			rows = append(rows, f)
		}
		return rows
	})
}

// foreseen is an outlook with what comes of it.
type foreseen struct {
	*outlook
	forecast.Result
}

// outlooks are those of the queues that are asked for, which share no limit with each other.
func (r *reader) outlooks(asked func(worldQueue) bool) (all []foreseen) {
	queues := list[worldQueue](r, "read queues", worldQueuesSQL)
	seen := map[string]bool{}
	for _, q := range queues {
		if seen[q.Name] || !asked(q) {
			continue
		}
		together := sharing(queues, q.Name)
		for _, other := range together {
			seen[other.Name] = true
		}
		o := r.outlook(queues, together, nil)
		if r.err != nil {
			return nil
		}
		all = append(all, foreseen{o, o.Run()})
	}
	return all
}

// tell adds to a forecast what comes of the limit's queues.
func (o foreseen) tell(f *Forecast, l Limit) {
	var cost, waiting float64
	for i, q := range o.queues {
		if !slices.Contains(q.Limits, l.Name) || o.waits[q.Name] == 0 {
			continue
		}
		if i == 0 || q.Name != o.queues[i-1].Name { // else it is another part of it
			f.Waiting += o.waits[q.Name]
			waiting, cost = waiting+float64(o.waits[q.Name]), cost+float64(o.waits[q.Name])*o.Queues[i].Cost
		}
		switch why := o.unknown(q.Name); {
		case f.Lasts == nil:
		case why != "":
			f.State, f.Lasts, f.Until = why, nil, nil
		default:
			f.Lasts = new(max(*f.Lasts, o.Last[i]))
		}
	}
	if l.CountCost && waiting > 0 {
		f.Cost = cost / waiting
	}
}

// unknown is why nobody can say when the calls of a queue start; empty: somebody can.
func (o foreseen) unknown(queue string) string {
	switch why, is := o.never[queue]; {
	case is:
		return why
	case !o.Known:
		return "too much waits to say"
	}
	return ""
}

// mostOf is the key that has most calls in the queues of a limit.
type mostOf struct {
	Name  string  `db:"name"`
	Key   *string `db:"key"`
	OfKey int64   `db:"of_key"`
}

const mostOfSQL = `
SELECT l.name, m.key, m.calls::bigint AS of_key
FROM callq.call_limits l
CROSS JOIN LATERAL (
    SELECT key, sum(calls) AS calls
    FROM (
        SELECT queue, key, calls FROM callq.call_flows WHERE calls > 0
        UNION ALL
        SELECT queue, key, calls FROM callq.call_inbox WHERE calls > 0 AND keys IS NULL
        UNION ALL
        SELECT queue, k.key, 1 FROM callq.call_inbox CROSS JOIN LATERAL unnest(keys) AS k (key)
    ) b
    WHERE queue = ANY(l.queues)
    GROUP BY key
    ORDER BY 2 DESC, 1
    LIMIT 1
) m
WHERE l.per_key AND ($1::text[] IS NULL OR l.name = ANY($1))`

// ReadQueueForecasts makes a forecast for each queue in force, or for the one that is named, and its calls of one key.
func ReadQueueForecasts(ctx context.Context, pool Pool, queue, key *string) ([]QueueForecast, error) {
	return snapshot(ctx, pool, func(r *reader) (rows []QueueForecast) {
		if key != nil {
			return r.keyForecast(*queue, *key)
		}
		for _, o := range r.outlooks(func(q worldQueue) bool { return queue == nil || q.Name == *queue }) {
			for i, q := range o.queues {
				if queue != nil && q.Name != *queue {
					continue
				}
				f := QueueForecast{Queue: q.Name, Waiting: o.waits[q.Name]}
				switch why := o.unknown(q.Name); {
				case f.Waiting == 0:
					f.Because = "nothing waits"
				case why != "":
					f.Because = "unknown: " + why
				default:
					f.StartsAt = new(r.now.Add(o.Last[i]))
					f.Because = "the last starts in about " + About(o.Last[i]) + o.held(o.queues[i], o.Result)
				}
				if last := len(rows) - 1; last >= 0 && rows[last].Queue == q.Name { // another part of it
					if f.StartsAt != nil && rows[last].StartsAt.Before(*f.StartsAt) {
						rows[last] = f
					}
					continue
				}
				rows = append(rows, f)
			}
		}
		slices.SortFunc(rows, func(a, b QueueForecast) int { return strings.Compare(a.Queue, b.Queue) })
		return rows
	})
}

// keyForecast says when a call of the key would start that is inserted now.
func (r *reader) keyForecast(queue, key string) []QueueForecast {
	next := &callqueue.Record{Queue: queue, Key: key, Priority: callqueue.DefaultPriority, Cost: 1, RunAt: r.now}
	f := r.foresee(next)
	if f.Position == nil {
		return nil
	}
	return []QueueForecast{{Queue: queue, Key: &key, Waiting: f.ofKey, StartsAt: f.StartsAt, Because: f.Because}}
}

// Foresight is when a waiting call is made.
type Foresight struct {
	// Position is its place among the calls of its queue, in the order in which they start; nil: its queue is not in force, or
	// it does not wait.
	Position *int64     `json:"position"`
	StartsAt *time.Time `json:"starts_at"` // about; nil: nobody can say, or it does not wait
	Because  string     `json:"because"`   // in how long that is, what comes before it, and which limit decides; or why nobody can say

	ofKey int64 // calls of its key before it
}

// foresee says when a call that waits is made.
func (r *reader) foresee(call *callqueue.Record) (f Foresight) {
	all := list[worldQueue](r, "read queues", worldQueuesSQL)
	queues := sharing(all, call.Queue)
	if len(queues) == 0 {
		return Foresight{Because: "unknown: queue " + call.Queue + " is not in force"}
	}
	if call.RunAt.Sub(r.now) >= forecast.Horizon {
		return Foresight{Because: "unknown: it is not due until " + Text(call.RunAt)}
	}
	o := r.outlook(all, queues, call)
	if r.err != nil {
		return Foresight{}
	}
	ran := foreseen{o, o.Run()}
	f.Position, f.ofKey = new(ran.Before+1), o.ofKey
	if why := ran.unknown(call.Queue); why != "" {
		f.Because = "unknown: " + why
		return f
	}
	others := ""
	if ran.Others > 0 {
		others = fmt.Sprintf(" and %s of other queues", words.Number(ran.Others))
		if len(ran.splitNames()) > 0 {
			others += " and shares"
		}
	}
	i := slices.IndexFunc(queues, func(q worldQueue) bool { return q.Name == call.Queue })
	f.StartsAt = new(r.now.Add(ran.Start))
	f.Because = fmt.Sprintf("in about %s: %s before it%s%s", About(ran.Start), words.Count(ran.Before, "call"), others, o.held(queues[i], ran.Result))
	return f
}

// held names the limit that keeps the queue's calls waiting longest.
func (o *outlook) held(q worldQueue, result forecast.Result) string {
	longest, held := time.Duration(0), -1
	for i, d := range result.Held {
		if d > longest && (i >= len(o.limits) || slices.Contains(q.Limits, o.limits[i].Name)) {
			longest, held = d, i
		}
	}
	switch {
	case held < 0:
		return ""
	case held < len(o.limits):
		return ", " + o.limits[held].Rate
	}
	return ", " + words.Count(o.Limits[held].Rate.Units, "slot") + " of workers"
}
