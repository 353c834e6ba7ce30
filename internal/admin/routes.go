package admin

import (
	"context"
	"encoding/json"
	"time"
)

// Route is a rule in force, and what it did so far.
type Route struct {
	Number    int        `json:"number" db:"number"`
	Rule      string     `json:"rule" db:"rule"`
	Moved     int64      `json:"moved" db:"moved"` // calls that it changed
	Discarded int64      `json:"discarded" db:"discarded"`
	Failed    int64      `json:"failed" db:"failed"` // calls that it left as they were, for an error
	Error     *string    `json:"error" db:"error"`   // the last
	At        *time.Time `json:"at" db:"at"`         // when it last did any of that
}

// ReadRoutes reads the rules in force, in order.
func ReadRoutes(ctx context.Context, pool Pool) ([]Route, error) {
	return snapshot(ctx, pool, func(r *reader) []Route { return r.routes() })
}

func (r *reader) routes() []Route { return list[Route](r, "read routes", routesSQL) }

const routesSQL = `
SELECT r.number, r.rule, coalesce(sum(d.moved), 0)::bigint AS moved, coalesce(sum(d.discarded), 0)::bigint AS discarded,
    coalesce(sum(d.failed), 0)::bigint AS failed, (array_agg(d.error ORDER BY d.at DESC) FILTER (WHERE d.error IS NOT NULL))[1] AS error, max(d.at) AS at
FROM callq.call_routes r LEFT JOIN callq.call_routed d USING (rule)
GROUP BY r.number, r.rule
ORDER BY r.number`

// Unrouted is a call that is to be put through the rules.
type Unrouted struct {
	Queue, Task, Key string
	Priority         int16
	Cost             int64
	Data             json.RawMessage
}

// Routed is what would become of a call.
type Routed struct {
	Queue     string         `json:"queue" db:"queue"`
	Task      string         `json:"task" db:"task"`
	Key       string         `json:"key" db:"key"`
	Priority  int16          `json:"priority" db:"priority"`
	Cost      int64          `json:"cost" db:"cost"`
	RunIn     *time.Duration `json:"run_in_ns" db:"run_in"`
	ExpiresIn *time.Duration `json:"expires_in_ns" db:"expires_in"`
	Discard   *string        `json:"discard" db:"discard"`     // why; nil: it is not
	Rules     []string       `json:"rules" db:"rules"`         // that it matches, in order
	Failed    []string       `json:"failed_rules" db:"failed"` // likewise, that left it as it was
	Error     *string        `json:"error" db:"error"`         // why the last of these did
}

// TestRoutes puts a call through the rules in force. Nothing is written.
func TestRoutes(ctx context.Context, pool Pool, c Unrouted) (*Routed, error) {
	return snapshot(ctx, pool, func(r *reader) *Routed {
		return one[Routed](r, "put a call through the rules", routedSQL+`callq.route(0, $1, $2, $3, $4, $5, $6) r`, c.Queue, c.Task, c.Key, c.Priority, c.Cost, string(c.Data))
	})
}

// TestRoutesOf puts a call that is there through the rules in force; nil: it is not. Nothing is written.
func TestRoutesOf(ctx context.Context, pool Pool, id int64) (*Routed, error) {
	return snapshot(ctx, pool, func(r *reader) *Routed {
		return one[Routed](r, "put a call through the rules",
			routedSQL+`callq.call_effective q CROSS JOIN LATERAL callq.route(q.id, q.queue, q.task, q.key, q.priority, q.cost, q.call_data) r WHERE q.id = $1`, id)
	})
}

const routedSQL = `
SELECT r.queue, r.task, r.key, r.priority, r.cost, r.run_in, r.expires_in, r.discard, coalesce(r.rules, '{}') AS rules, coalesce(r.failed, '{}') AS failed, r.error
FROM `
