package admin

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// Status is what one screen shows, read in one snapshot.
type Status struct {
	At      time.Time `json:"at"` // Postgres's clock
	Queues  []Queue   `json:"queues"`
	Limits  []Limit   `json:"limits"`
	Budgets []Budget  `json:"budgets"`
	Workers []Worker  `json:"workers"`
	// HTTPTask names the settings of http_task in which live workers differ, and what each of them has.
	HTTPTask  []string    `json:"http_task"`
	Unhandled []Unhandled `json:"unhandled"` // tasks of waiting calls that no live worker handles
	// Dispatchers are those alive, as host/pid; `dispatch --once` is one while it runs.
	Dispatchers []string        `json:"dispatchers"`
	Others      []string        `json:"other_configuration"` // those of them whose file is not in force
	Policy      *policy.Applied `json:"policy"`              // in force; nil: none was ever applied
	Oldest      *Oldest         `json:"oldest"`              // due call; nil: none, or none among the first
}

// ReadStatus reads the status in one snapshot.
func ReadStatus(ctx context.Context, pool *pgxpool.Pool) (*Status, error) {
	s := &Status{}
	err := inSnapshot(ctx, pool, func(r *reader) {
		s.At = r.now
		var waiting []Waiting
		s.Queues, waiting = r.queues()
		s.Unhandled = unhandledOf(waiting)
		s.Workers = list[Worker](r, "read workers", workersSQL)
		s.HTTPTask = []string{}
		for _, d := range list[struct{ Text string }](r, "read the workers' http settings", httpSettingsSQL) {
			s.HTTPTask = append(s.HTTPTask, d.Text)
		}
		s.Limits = r.limits(nil, nil)
		s.Budgets = r.budgets()
		s.readDispatchers(r)
		s.Oldest = one[Oldest](r, "read the oldest call", oldestSQL)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Status) readDispatchers(r *reader) {
	var err error
	s.Dispatchers, s.Others, err = policy.Dispatchers(r.ctx, r.db)
	r.check(err)
	s.Policy, err = policy.Effective(r.ctx, r.db)
	r.check(err)
	if s.Policy != nil {
		s.Policy.At = s.Policy.At.UTC()
	}
}

// Worker is a worker that is alive, or was until recently.
type Worker struct {
	ID        string    `json:"id" db:"id"`
	Pool      string    `json:"pool" db:"pool"`
	Tasks     []string  `json:"tasks" db:"tasks"`
	Labels    []string  `json:"labels" db:"labels"`
	Slots     int       `json:"slots" db:"slots"`
	Running   int64     `json:"running" db:"running"`
	Live      bool      `json:"live" db:"live"`
	StartedAt time.Time `json:"started_at" db:"started_at"`
	BeatAt    time.Time `json:"heartbeat_at" db:"heartbeat_at"`
}

const workersSQL = `
SELECT w.id, w.pool, w.tasks, w.labels, w.slots, w.started_at, w.heartbeat_at,
    callq_alive(w.heartbeat_at) AS live, count(o.call_id) AS running
FROM call_workers w
LEFT JOIN call_open o ON o.worker = w.id AND o.started_at IS NOT NULL
GROUP BY w.id
ORDER BY live DESC, w.id`

// Oldest is the call that has been due the longest.
type Oldest struct {
	ID    int64     `json:"id" db:"id"`
	Queue string    `json:"queue" db:"queue"`
	DueAt time.Time `json:"due_at" db:"due_at"`
}

// The oldest call is among the first thousand of each of the 30 oldest segments and inbox rows. One inbox row may hold
// many calls that fell due at once. There is no row if none of those is due any more. There may be a million segments, so
// only those are sorted that are as old as the 30 oldest of some.
const oldestSQL = `
SELECT q.id, first.queue, greatest(coalesce(q.run_at, q.created_at), timestamptz '0001-01-01 00:00:00Z') AS due_at
FROM (
    (SELECT queue, at, ids FROM call_segments
     WHERE at <= coalesce((SELECT at FROM (SELECT at FROM call_segments LIMIT 10000) s ORDER BY at LIMIT 1 OFFSET 29), 'infinity')
     ORDER BY at LIMIT 30)
    UNION ALL
    (SELECT queue, at, ids FROM call_inbox WHERE calls > 0 AND at <= (SELECT clock_timestamp()) ORDER BY at LIMIT 30)
) first
CROSS JOIN LATERAL unnest(first.ids[:1000]) AS i (id)
JOIN call_queue q ON q.id = i.id
WHERE q.status IN ('new', 'error') AND coalesce(q.run_at, q.created_at) <= clock_timestamp()
ORDER BY due_at, q.id
LIMIT 1`

// Budget is a budget in force.
type Budget struct {
	Name      string        `json:"name" db:"name"`
	Rate      string        `json:"rate" db:"-"`
	Units     int64         `json:"units" db:"rate"`
	Window    time.Duration `json:"window_ns" db:"window_size"`
	Burst     int64         `json:"burst" db:"burst"`
	OnOutage  string        `json:"on_outage" db:"on_outage"`
	Free      *int64        `json:"free" db:"-"`       // now, as Redis has it; nil: it does not answer
	Waiting   time.Duration `json:"waiting_ns" db:"-"` // until the last of the draws that wait has its units
	ChangedAt time.Time     `json:"changed_at" db:"applied_at"`
	ChangedBy string        `json:"changed_by" db:"applied_by"`

	Unknown string `json:"-" db:"-"` // why Free is
}

// Rule is what Redis is asked by.
func (b Budget) Rule() budget.Rule {
	return budget.Rule{Rate: limit.Rate{Units: b.Units, Window: b.Window}, Burst: b.Burst}
}

func (r *reader) budgets() []Budget {
	budgets := list[Budget](r, "read budgets", budgetsSQL)
	for i := range budgets {
		budgets[i].Rate = budget.RateString(budgets[i].Rule().Rate)
	}
	return budgets
}

const budgetsSQL = `SELECT name, rate, window_size, burst, on_outage, applied_at, applied_by FROM call_budgets ORDER BY name`

// Of secrets workers tell names and hosts, never a value.
const httpSettingsSQL = `
SELECT format('http_task.%s (%s)', key, string_agg(who || ': ' || value, '; ' ORDER BY since, value)) AS text
FROM (
    SELECT s.key, s.value::text AS value, string_agg(w.id, ', ' ORDER BY w.started_at, w.id) AS who, min(w.started_at) AS since
    FROM call_workers w CROSS JOIN jsonb_each(w.http) s
    WHERE callq_alive(w.heartbeat_at)
    GROUP BY 1, 2
) s
GROUP BY key HAVING count(*) > 1
ORDER BY key`
