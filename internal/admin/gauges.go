package admin

import (
	"context"
	"math"
	"strings"
	"time"
)

// Gauges is what a scrape measures: how full each limit is, and what each queue holds. To read them costs a row for each
// limit, queue and flow, and none for each call.
type Gauges struct {
	Limits []LimitGauge
	Queues []QueueGauge
	Routes []Route
	Fleet
	ClockAhead float64   // seconds by which Postgres's clock is ahead of this machine's, give or take half a round trip
	Verified   *Verified // the last scheduled verify; nil: there was none
}

// Fleet is which processes are alive, and when retention last ended without an error; of a new callq: when it was set up.
type Fleet struct {
	Workers     int64    `db:"workers"`
	Dispatchers int64    `db:"dispatchers"`
	Retention   *float64 `db:"retention"` // seconds since 1970; nil: no configuration was ever applied
}

// Verified is a scheduled verify that came to its end: when it began, and how many problems it found.
type Verified struct {
	At       time.Time `json:"at" db:"at"`
	Problems int64     `json:"problems" db:"problems"`
}

const verifiedSQL = `SELECT at, position AS problems FROM callq.call_meta WHERE name = 'verified'`

// LimitGauge is a limit in numbers. Of one per key, Units are those of a key, and Used those of the key that uses most among
// keys with open attempts: to compare all keys would take too long.
type LimitGauge struct {
	Name        string
	Units, Used int64
	InDoubt     int64       // of Used: see LimitState
	Waiting     int64       // due calls of its queues
	NextUnit    float64     // seconds; 0: there is room; NaN: not known; +Inf: not until somebody opens it
	Closed      string      // one of Causes; empty: it is open
	Remote      LimitRemote // of a limit per key: nothing
	Shares      []Share
}

// Causes are why a limit may be closed.
var Causes = []string{"paused", "refused", "failover", "counting", "missing"}

// closed is which of Causes holds.
func (l Limit) closed() string {
	switch {
	case l.State == shutFailover:
		return "failover"
	case l.State == shutCounting:
		return "counting"
	case l.State == shutMissing:
		return "missing"
	case strings.HasPrefix(l.State, "paused"):
		return "paused"
	case strings.HasPrefix(l.State, "refused"), strings.HasPrefix(l.State, "probed"):
		return "refused"
	}
	return ""
}

// QueueGauge is a queue in force in numbers. Of other queues together, the name is empty.
type QueueGauge struct {
	Name       string  `db:"name"`
	Due        int64   `db:"due"`
	Scheduled  int64   `db:"scheduled"`
	Dispatched int64   `db:"dispatched"`
	Running    int64   `db:"running"`
	Unhandled  int64   `db:"unhandled"`  // of Due: no live worker handles their task and carries the queue's label
	OldestDue  float64 `db:"oldest_due"` // seconds, about; 0: none is due
}

// ReadGauges reads the gauges in one snapshot.
func ReadGauges(ctx context.Context, pool Pool) (*Gauges, error) {
	return snapshot(ctx, pool, func(r *reader) *Gauges {
		g := &Gauges{Queues: list[QueueGauge](r, "measure queues", queueGaugesSQL), Routes: r.routes(), Verified: one[Verified](r, "read the last verify", verifiedSQL)}
		asked := time.Now()
		if clock := one[struct{ Now time.Time }](r, "read the clock", `SELECT clock_timestamp() AS now`); clock != nil {
			took := time.Since(asked)
			g.ClockAhead = clock.Now.Sub(asked.Round(0).Add(took / 2)).Seconds() // without Round, it would go by the monotonic clock
		}
		if fleet := one[Fleet](r, "read who is alive", fleetSQL); fleet != nil {
			g.Fleet = *fleet
		}
		due := map[string]int64{}
		for _, q := range g.Queues {
			due[q.Name] = q.Due
		}
		r.quick = true
		for _, l := range r.limits(nil, nil) {
			gauge := LimitGauge{Name: l.Name, Units: l.InAll(), Used: l.Occupied, InDoubt: l.InDoubt, NextUnit: l.nextUnit(), Closed: l.closed(), Shares: l.Parts}
			if !l.PerKey {
				gauge.Remote = l.LimitRemote
				gauge.Remote.RemoteRemaining = l.remains()
			}
			for _, queue := range l.Queues {
				gauge.Waiting += due[queue]
			}
			g.Limits = append(g.Limits, gauge)
		}
		return g
	})
}

// nextUnit is in how many seconds a call that takes one unit can go.
func (l Limit) nextUnit() float64 {
	at := l.OpensAt
	switch {
	case l.State != "open" && l.ShutUntil == nil:
		return math.Inf(1)
	case l.State != "open":
		at = l.ShutUntil
	case l.Room > 0:
		return 0
	case at == nil:
		return math.NaN()
	}
	return max(0, at.Sub(l.now)).Seconds()
}

const fleetSQL = `
SELECT (SELECT count(*) FROM callq.call_workers WHERE callq.alive(heartbeat_at)) AS workers,
    (SELECT count(*) FROM callq.call_dispatchers WHERE callq.alive(heartbeat_at)) AS dispatchers,
    extract(epoch FROM coalesce((SELECT at FROM callq.call_meta WHERE name = 'retention'),
        (SELECT min(applied_at) FROM callq.call_policies)))::float8 AS retention`

// There may be a million segments, so the oldest call is sought where it is likely: in a queue's longest flows.
const queueGaugesSQL = `
WITH tasks AS (
    SELECT queue, task, sum(due) AS due, sum(scheduled) AS scheduled
    FROM (
        SELECT queue, task, sum(calls) AS due, 0 AS scheduled FROM callq.call_flows WHERE calls > 0 GROUP BY queue, task
        UNION ALL
        SELECT queue, task, sum(calls) FILTER (WHERE at <= now()), sum(calls) FILTER (WHERE at > now())
        FROM callq.call_inbox WHERE calls > 0 GROUP BY queue, task
    ) b
    GROUP BY queue, task
), waiting AS (
    SELECT t.queue, sum(t.due) AS due, sum(t.scheduled) AS scheduled, sum(t.due) FILTER (WHERE NOT EXISTS (
        SELECT FROM callq.call_workers k
        WHERE callq.alive(k.heartbeat_at) AND t.task = ANY (k.tasks) AND (coalesce(q.label, '') = '' OR q.label = ANY (k.labels))
    )) AS unhandled
    FROM tasks t LEFT JOIN callq.call_queues q ON q.name = t.queue
    GROUP BY t.queue
), oldest AS (
    SELECT queue, min(at) AS at
    FROM (
        SELECT s.queue, s.at
        FROM callq.call_queues q
        CROSS JOIN LATERAL (SELECT * FROM callq.call_flows WHERE queue = q.name AND calls > 0 ORDER BY calls DESC LIMIT 50) f
        JOIN callq.call_segments s ON s.queue = f.queue AND s.key = f.key AND s.priority = f.priority AND s.task = f.task AND s.seq = f.head
        UNION ALL
        SELECT queue, at FROM callq.call_inbox WHERE calls > 0
    ) b
    GROUP BY queue
), open AS (
    SELECT queue, count(*) FILTER (WHERE started_at IS NULL) AS dispatched, count(*) FILTER (WHERE started_at IS NOT NULL) AS running
    FROM callq.call_open GROUP BY queue
)
SELECT coalesce(q.name, '') AS name, coalesce(sum(w.due), 0)::bigint AS due, coalesce(sum(w.scheduled), 0)::bigint AS scheduled,
    coalesce(sum(o.dispatched), 0)::bigint AS dispatched, coalesce(sum(o.running), 0)::bigint AS running,
    coalesce(sum(w.unhandled), 0)::bigint AS unhandled,
    CASE WHEN sum(w.due) > 0 THEN greatest(0, extract(epoch FROM now() - min(nullif(f.at, '-infinity')))) ELSE 0 END::float8 AS oldest_due
FROM callq.call_queues q
FULL JOIN waiting w ON w.queue = q.name
FULL JOIN open o ON o.queue = coalesce(q.name, w.queue)
LEFT JOIN oldest f ON f.queue = w.queue
GROUP BY 1
ORDER BY 1`
