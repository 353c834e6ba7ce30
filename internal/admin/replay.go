package admin

import (
	"context"
	"slices"
	"time"

	"github.com/callq/callq/internal/forecast"
	"github.com/callq/callq/internal/limit"
)

// Replay is what became of the requests of a limit, and what would have under rates.
type Replay struct {
	Limit    string    `json:"limit"`
	Since    time.Time `json:"since"`
	Requests int64     `json:"requests"`
	Retries  int64     `json:"retries"` // of these, which take units; when they could be made is not known
	Was      Outcome   `json:"was"`     // as it was
	Rates    []Outcome `json:"rates"`   // first the limit's own
}

// Outcome is how requests fared under a rate.
type Outcome struct {
	Rate    string        `json:"rate"` // empty: as it was
	P50     time.Duration `json:"wait_p50_ns"`
	P99     time.Duration `json:"wait_p99_ns"`
	Longest time.Duration `json:"wait_longest_ns"`
	Waiting int64         `json:"most_waiting"` // at once
	Used    float64       `json:"used"`         // of what there was, from 0 to 1; of a limit per key, by the busiest key
}

// pastRequest is a request of the limit. Of retries the ledger does not have when they could be made: that is when they were claimed.
type pastRequest struct {
	Key     string    `db:"key"`
	Units   float64   `db:"units"`
	Due     time.Time `db:"due_at"`
	Started time.Time `db:"started_at"`
	Seconds float64   `db:"seconds"`
	Retry   bool      `db:"retry"`
	N       int64     `db:"n"` // the newest is 1
}

// The attempts that ended last: call_attempts_finished_idx finds them.
const pastRequestsSQL = `
SELECT CASE WHEN l.per_key THEN a.key ELSE '' END AS key, c.cost::float8 AS units, d.due_at, a.started_at, a.attempt > 1 AS retry,
    extract(epoch FROM a.finished_at - a.started_at)::float8 AS seconds, a.n
FROM (
    SELECT call_id, attempt, key, charged, claimed_at, started_at, finished_at, row_number() OVER (ORDER BY finished_at DESC) AS n
    FROM public.call_attempts
    WHERE finished_at >= $2 AND started_at IS NOT NULL AND queue IN (SELECT unnest(queues) FROM callq.call_limits WHERE name = $1)
    ORDER BY finished_at DESC LIMIT $3
) a
CROSS JOIN LATERAL jsonb_to_recordset(a.charged) AS c ("limit" text, cost bigint)
JOIN callq.call_limits l ON l.name = c."limit"
JOIN public.call_queue q ON q.id = a.call_id
CROSS JOIN LATERAL (
    SELECT CASE WHEN a.attempt > 1 THEN a.claimed_at WHEN q.attempts > 1 THEN q.created_at ELSE greatest(q.run_at, q.created_at) END AS due_at
) d
WHERE c."limit" = $1 AND d.due_at BETWEEN $2 AND a.started_at
ORDER BY due_at`

// ReadReplayText is ReadReplay under a rate as `limits set` takes it.
func ReadReplayText(ctx context.Context, pool Pool, name, text string, since time.Duration, newest int) (*Replay, error) {
	given, err := limit.ParseSetting(text)
	if err != nil {
		return nil, err
	}
	limits, err := ReadLimits(ctx, pool)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(limits, func(l Limit) bool { return l.Name == name })
	if i < 0 {
		return nil, nil
	}
	rate, err := limits[i].rateSet(given)
	if err != nil {
		return nil, err
	}
	return ReadReplay(ctx, pool, name, rate, since, newest)
}

// rateSet is the rate that `limits set` would put in force.
func (l Limit) rateSet(given limit.Rate) (limit.Rate, error) {
	return limit.Rate{Units: l.Units, Window: l.Window, Shape: l.Shape}.Set(given)
}

// ReadReplay replays the newest requests of a limit that could be made since then, and ended, under its own rate and another; nil: there is
// no such limit.
func ReadReplay(ctx context.Context, pool Pool, name string, rate limit.Rate, since time.Duration, newest int) (*Replay, error) {
	return snapshot(ctx, pool, func(r *reader) *Replay {
		limits := r.limits([]string{name}, nil)
		if len(limits) == 0 {
			return nil
		}
		l := limits[0]
		begin := r.now.Add(-since)
		past := list[pastRequest](r, "read the limit's requests", pastRequestsSQL, name, begin, newest)
		if slices.ContainsFunc(past, func(p pastRequest) bool { return p.N == int64(newest) }) { // there were more
			begin = past[0].Due
		}
		replay := &Replay{Limit: name, Since: begin, Requests: int64(len(past))}
		if len(past) == 0 {
			return replay
		}
		var requests []forecast.Request
		var waits []time.Duration
		seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
		for _, p := range past {
			requests = append(requests, forecast.Request{Due: p.Due.Sub(begin), Key: p.Key, Units: p.Units, Holds: seconds(p.Seconds), Fills: p.Retry})
			if !p.Retry {
				waits = append(waits, p.Started.Sub(p.Due))
			}
		}
		replay.Retries = int64(len(past) - len(waits))
		if len(waits) == 0 {
			return replay
		}
		slices.Sort(waits)
		n, own := len(waits), limit.Rate{Units: l.Units, Window: l.Window, Shape: l.Shape}
		replay.Was = Outcome{P50: waits[n/2], P99: waits[n*99/100], Longest: waits[n-1]}
		world := forecast.Limit{Name: name, Rate: own, PerKey: l.PerKey, CountCost: l.CountCost}
		lag := forecast.Turnaround(world, l.Overrides, begin, requests, replay.Was.P50)
		for _, rate := range []limit.Rate{own, rate} {
			world.Rate = rate
			of := forecast.Replay(world, l.Overrides, begin, requests, lag)
			replay.Rates = append(replay.Rates, Outcome{rate.String(), of.P50, of.P99, of.Longest, of.Most, of.Used})
		}
		return replay
	})
}
