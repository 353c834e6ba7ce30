package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/policy"
)

// Status is what one screen shows, read in one snapshot.
type Status struct {
	At      time.Time `json:"at"` // Postgres's clock
	Queues  []Queue   `json:"queues"`
	Unnamed *Unnamed  `json:"unnamed"` // what waits in queues that are in no configuration beside those; nil: nothing
	Limits  []Limit   `json:"limits"`
	Budgets []Budget  `json:"budgets"`
	Workers []Worker  `json:"workers"`
	// HTTPTask is what live workers have of http_task, by key, where they differ.
	HTTPTask  map[string][]Want `json:"http_task"`
	Unhandled []Unhandled       `json:"unhandled"` // tasks of waiting calls that no live worker handles
	// Dispatchers are those alive, as host/pid; `dispatch --once` is one while it runs.
	Dispatchers []string        `json:"dispatchers"`
	Others      []string        `json:"other_configuration"` // those of them whose file is not in force
	Policy      *policy.Applied `json:"policy"`              // in force; nil: none was ever applied
	Oldest      *Oldest         `json:"oldest"`              // due call; nil: none, or none among the first
}

// Queue is a queue that is in force or that calls wait in.
type Queue struct {
	Name       string `json:"name" db:"name"`
	Configured bool   `json:"configured" db:"configured"`
	QueueCounts
	QueuePause
	QueueHours
	QueuePolicy

	Now time.Time `json:"-" db:"now"` // Postgres's clock
}

// QueueCounts is how many calls of a queue are in which state.
type QueueCounts struct {
	Waiting    int64 `json:"waiting" db:"waiting"` // due and scheduled
	Due        int64 `json:"due" db:"due"`
	Scheduled  int64 `json:"scheduled" db:"scheduled"`
	Dispatched int64 `json:"dispatched" db:"dispatched"` // handed over and not started
	Running    int64 `json:"running" db:"running"`
	Failed     int64 `json:"failed_24h" db:"failed"`
}

// QueuePause says whether a queue is paused.
type QueuePause struct {
	Paused *string `json:"paused" db:"paused"` // why; nil: it is not
	// PausedUntil is nil also while it is paused until it is resumed.
	PausedUntil *time.Time `json:"paused_until" db:"paused_until"`
	PausedKeys  int64      `json:"paused_keys" db:"paused_keys"` // that are paused alone
}

// QueueHours is when a queue is open.
type QueueHours struct {
	// Hours must all be open; none: it is always open.
	Hours        []string   `json:"hours" db:"hours"`
	OutsideHours bool       `json:"outside_hours" db:"-"`
	HoursUntil   *time.Time `json:"hours_until" db:"-"` // when that changes; nil: it stays so
	opening      opening
}

// QueuePolicy is a queue's part of the policy in force.
type QueuePolicy struct {
	Limits      []string      `json:"limits" db:"limits"`
	On          string        `json:"on" db:"label"`
	MaxAttempts int           `json:"max_attempts" db:"max_attempts"`
	BackoffMin  time.Duration `json:"backoff_min_ns" db:"backoff_min"`
	BackoffMax  time.Duration `json:"backoff_max_ns" db:"backoff_max"`
	Timeout     time.Duration `json:"timeout_ns" db:"timeout"`
	OnLost      string        `json:"on_lost" db:"on_lost"`
}

// EachOwn is what holds of http_task where workers differ.
const EachOwn = "of a call, what the worker says that it comes to"

// Holds is what is in force, in the words of the audit.
func (q Queue) Holds() string {
	return policy.Queue{
		Limits: q.Limits, On: q.On, MaxAttempts: q.MaxAttempts, BackoffMin: q.BackoffMin, BackoffMax: q.BackoffMax,
		Timeout: q.Timeout, OnLost: q.OnLost, Hours: q.Hours,
	}.String()
}

// StateText says whether the queue is paused or outside its hours, and until when.
func (q Queue) StateText() string {
	state := q.opening.String()
	switch {
	case q.PausedUntil != nil:
		state = "paused until " + Instant(q.PausedUntil) + ": " + Short(*q.Paused)
	case q.Paused != nil:
		state = "paused: " + Short(*q.Paused)
	}
	if q.Paused != nil && q.opening.holdsUp() {
		state += ", " + q.opening.String()
	}
	return state + keysPaused(q.PausedKeys)
}

// ReadQueues reads the queues in force and those that calls wait in, as [ReadWaiting] counted them. Of other queues it
// reads those in which most calls failed.
func ReadQueues(ctx context.Context, db ledger.DB, waiting []Waiting) ([]Queue, error) {
	var names []string
	var calls, due []int64
	for _, w := range waiting {
		if w.Unnamed > 0 && w.Queue == "" {
			continue
		}
		names, calls, due = append(names, w.Queue), append(calls, w.Waiting), append(due, w.Due)
	}
	queues, err := collect[Queue](ctx, db, "read queues", queuesSQL, names, calls, due)
	if err != nil {
		return nil, err
	}
	for i := range queues {
		q := &queues[i]
		q.opening = openingAt(q.Hours, q.Now)
		q.OutsideHours, q.HoursUntil = q.opening.outside, q.opening.at()
	}
	return queues, nil
}

// Worker is a worker that is alive, or was until recently.
type Worker struct {
	ID        string    `json:"id" db:"id"`
	Pool      string    `json:"pool" db:"pool"`
	Tasks     []string  `json:"tasks" db:"tasks"`
	Labels    []string  `json:"labels" db:"labels"`
	Slots     int       `json:"slots" db:"slots"` // 0: its Asynq queue is paused
	Running   int64     `json:"running" db:"running"`
	Live      bool      `json:"live" db:"live"`
	StartedAt time.Time `json:"started_at" db:"started_at"`
	BeatAt    time.Time `json:"heartbeat_at" db:"heartbeat_at"`
}

// StateText says why it takes nothing; "" where it does.
func (w Worker) StateText() string {
	switch {
	case !w.Live:
		return "stopped or dead"
	case w.Slots == 0:
		return "its Asynq queue is paused"
	}
	return ""
}

// Oldest is the call that has been due the longest.
type Oldest struct {
	ID    int64     `json:"id" db:"id"`
	Queue string    `json:"queue" db:"queue"`
	DueAt time.Time `json:"due_at" db:"due_at"`
}

// ReadStatus reads the status in one snapshot.
func ReadStatus(ctx context.Context, pool *pgxpool.Pool) (*Status, error) {
	s := &Status{}
	err := InSnapshot(ctx, pool, func(tx pgx.Tx) (err error) {
		if s.At, err = begin(ctx, tx); err != nil {
			return err
		}
		waiting, err := ReadWaiting(ctx, tx)
		if err != nil {
			return err
		}
		s.Unhandled, s.Unnamed = unhandledOf(waiting), UnnamedOf(waiting)
		if s.Queues, err = ReadQueues(ctx, tx, waiting); err != nil {
			return err
		}
		if s.Workers, err = collect[Worker](ctx, tx, "read workers", workersSQL); err != nil {
			return err
		}
		if s.HTTPTask, err = HTTPDifferences(ctx, tx); err != nil {
			return err
		}
		if s.Limits, err = ReadLimits(ctx, tx); err != nil {
			return err
		}
		if s.Budgets, err = ReadBudgets(ctx, tx); err != nil {
			return err
		}
		if err := s.readDispatchers(ctx, tx); err != nil {
			return err
		}
		s.Oldest, err = collectOne[Oldest](ctx, tx, "read the oldest call", oldestSQL)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Status) readDispatchers(ctx context.Context, db ledger.DB) error {
	var err error
	if s.Dispatchers, s.Others, err = policy.Dispatchers(ctx, db); err != nil {
		return err
	}
	if s.Policy, err = policy.Effective(ctx, db); s.Policy != nil {
		inUTC(&s.Policy.At)
	}
	return err
}

// OthersText says which live dispatchers have another file than what is in force; "": none has.
func (s *Status) OthersText() string {
	if len(s.Others) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: another configuration than the one in force, which %s", strings.Join(s.Others, ", "), s.Policy)
}

// Failures are read through an index. Calls that ended well are not read, however many there are.
const queuesSQL = `
WITH waiting AS (
    SELECT name, sum(calls) AS waiting, sum(due) AS due
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS w (name, calls, due)
    GROUP BY 1
), open AS (
    SELECT queue AS name, count(*) FILTER (WHERE started_at IS NULL) AS dispatched,
        count(*) FILTER (WHERE started_at IS NOT NULL) AS running
    FROM call_open GROUP BY 1
), failed AS (
    SELECT name, count(*) AS failed, name IN (SELECT name FROM call_queues) AS in_force
    FROM (SELECT coalesce(queue, 'default') AS name FROM call_queue WHERE failed_at > now() - interval '24 hours') c
    GROUP BY name
), failed_named AS (
    SELECT name, failed FROM failed WHERE in_force
    UNION ALL
    (SELECT name, failed FROM failed WHERE NOT in_force ORDER BY failed DESC, name LIMIT 100)
)
SELECT name, q.name IS NOT NULL AS configured, coalesce(q.limits, '{}') AS limits,
    coalesce(w.waiting, 0) AS waiting, coalesce(w.due, 0) AS due, coalesce(w.waiting - w.due, 0) AS scheduled,
    coalesce(o.dispatched, 0) AS dispatched, coalesce(o.running, 0) AS running, coalesce(f.failed, 0) AS failed,
    p.reason AS paused, nullif(p.until, 'infinity') AS paused_until,
    coalesce(k.paused, 0) AS paused_keys,
    coalesce(q.label, '') AS label, coalesce(q.max_attempts, 0) AS max_attempts, coalesce(q.backoff_min, '0') AS backoff_min,
    coalesce(q.backoff_max, '0') AS backoff_max, coalesce(q.timeout, '0') AS timeout, coalesce(q.on_lost, '') AS on_lost,
    coalesce(q.hours, '{}') AS hours, clock_timestamp() AS now
FROM call_queues q
FULL JOIN waiting w USING (name)
FULL JOIN open o USING (name)
FULL JOIN failed_named f USING (name)
LEFT JOIN (SELECT name, reason, until FROM call_pauses WHERE what = 'queue' AND key = '' AND until > clock_timestamp()) p USING (name)
LEFT JOIN (
    SELECT name, count(*) AS paused FROM call_pauses
    WHERE what = 'queue' AND key <> '' AND until > clock_timestamp() GROUP BY name
) k USING (name)
ORDER BY name`

const workersSQL = `
SELECT w.id, w.pool, w.tasks, w.labels, w.slots, w.started_at, w.heartbeat_at,
    callq_alive(w.heartbeat_at) AS live, count(o.call_id) AS running
FROM call_workers w
LEFT JOIN call_open o ON o.worker = w.id AND o.started_at IS NOT NULL
GROUP BY w.id
ORDER BY live DESC, w.id`

// The oldest call is among the first thousand of each of the 30 oldest segments and inbox rows. One inbox row may hold
// many calls that fell due at once. There is no row if none of those is due any more.
const oldestSQL = `
SELECT q.id, first.queue, greatest(coalesce(q.run_at, q.created_at), timestamptz '0001-01-01 00:00:00Z') AS due_at
FROM (
    (SELECT queue, at, ids FROM call_segments ORDER BY at LIMIT 30)
    UNION ALL
    (SELECT queue, at, ids FROM call_inbox WHERE calls > 0 AND at <= (SELECT clock_timestamp()) ORDER BY at LIMIT 30)
) first
CROSS JOIN LATERAL unnest(first.ids[:1000]) AS i (id)
JOIN call_queue q ON q.id = i.id
WHERE q.status IN ('new', 'error') AND coalesce(q.run_at, q.created_at) <= clock_timestamp()
ORDER BY due_at, q.id
LIMIT 1`
