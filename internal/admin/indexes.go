package admin

import (
	"context"
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// AuditEntry is a change that somebody made.
type AuditEntry struct {
	ID     int64     `json:"id" db:"id"`
	At     time.Time `json:"at" db:"at"`
	By     string    `json:"by" db:"by"`
	What   string    `json:"what" db:"what"` // queue, limit, budget or calls
	Name   string    `json:"name" db:"name"`
	Change string    `json:"change" db:"change"`
	Reason string    `json:"reason" db:"reason"`
}

// ReadAudit returns the newest entries whose ids are below before, if that is above 0, newest first.
func ReadAudit(ctx context.Context, db ledger.DB, before int64, most int) ([]AuditEntry, error) {
	return Collect[AuditEntry](ctx, db, "read the audit", auditEntriesSQL, before, most)
}

const auditEntriesSQL = `
SELECT id, at, by, what, name, change, reason FROM callq.call_audit WHERE $1 <= 0 OR id < $1 ORDER BY id DESC LIMIT $2`

// Task is a handler's name, with who handles it and what waits for it.
type Task struct {
	Name    string   `json:"name" db:"name"`
	Workers []string `json:"workers" db:"workers"` // live ones
	Slots   int64    `json:"slots" db:"slots"`     // of these
	Running int64    `json:"running" db:"running"`
	Due     int64    `json:"due" db:"due"`
	Waiting int64    `json:"waiting" db:"waiting"` // due and scheduled
	Queues  []string `json:"queues" db:"queues"`   // in which calls wait
}

// ReadTasks returns the tasks that a live worker handles, or that calls wait for.
func ReadTasks(ctx context.Context, pool Pool) ([]Task, error) {
	return snapshot(ctx, pool, func(r *reader) []Task {
		return list[Task](r, "read tasks", tasksSQL, list[Waiting](r, "count what waits", waitingSQL))
	})
}

// What waits comes as JSON ([]Waiting).
const tasksSQL = `
WITH waiting AS (
    SELECT task AS name, sum(waiting)::bigint AS waiting, sum(due)::bigint AS due, array_agg(DISTINCT queue ORDER BY queue) AS queues
    FROM jsonb_to_recordset($1) AS w (queue text, task text, waiting bigint, due bigint)
    GROUP BY task
), handled AS (
    SELECT task AS name, array_agg(id ORDER BY id) AS workers, sum(slots)::bigint AS slots
    FROM callq.call_workers CROSS JOIN LATERAL unnest(tasks) AS task
    WHERE callq.alive(heartbeat_at)
    GROUP BY task
), running AS (
    SELECT task AS name, count(*) AS running FROM callq.call_open WHERE started_at IS NOT NULL GROUP BY task
)
SELECT name, coalesce(workers, '{}') AS workers, coalesce(slots, 0) AS slots, coalesce(running, 0) AS running,
    coalesce(due, 0) AS due, coalesce(waiting, 0) AS waiting, coalesce(queues, '{}') AS queues
FROM waiting FULL JOIN handled USING (name) FULL JOIN running USING (name)
ORDER BY due DESC, waiting DESC, name
LIMIT 1000`

// Key is a key whose calls wait.
type Key struct {
	Key     string     `json:"key" db:"key"`
	Waiting int64      `json:"waiting" db:"waiting"` // due
	Queues  []string   `json:"queues" db:"queues"`
	WakeAt  *time.Time `json:"wake_at" db:"wake_at"` // when a limit has room for it again; nil: one may, or that is not known
	Paused  bool       `json:"paused" db:"paused"`
}

// ReadKeys returns the keys with the most due calls, of the queues of a limit if it has a name; an empty key is left out.
func ReadKeys(ctx context.Context, db ledger.DB, limitName string, most int) ([]Key, error) {
	return Collect[Key](ctx, db, "read keys", keysSQL, limitName, most)
}

const keysSQL = `
WITH most AS (
    SELECT key, sum(calls)::bigint AS waiting, array_agg(DISTINCT queue ORDER BY queue) AS queues, min(wake_at) AS wake_at
    FROM callq.call_flows
    WHERE calls > 0 AND key <> '' AND ($1 = '' OR queue IN (SELECT unnest(queues) FROM callq.call_limits WHERE name = $1))
    GROUP BY key
    ORDER BY waiting DESC, key
    LIMIT $2
)
SELECT m.key, m.waiting, m.queues, nullif(m.wake_at, 'infinity') AS wake_at,
    EXISTS (SELECT FROM callq.call_pauses p WHERE p.key = m.key AND p.until > clock_timestamp()) AS paused
FROM most m
ORDER BY m.waiting DESC, m.key`

// FullKey is a key of a limit per key, and what it uses.
type FullKey struct {
	Key   string `json:"key" db:"key"`
	Used  int64  `json:"used" db:"used"` // about
	Units int64  `json:"units" db:"units"`
}

// ReadFullKeys returns the keys that use most of what a limit per key gives each, fullest first. It goes by what was sent within
// the window, and leaves out what is open.
func ReadFullKeys(ctx context.Context, db ledger.DB, l Limit, most int) ([]FullKey, error) {
	if !l.PerKey || l.Window == 0 {
		return nil, nil
	}
	return Collect[FullKey](ctx, db, "read the fullest keys", readFullKeysSQL, l.Name, l.rate().Since(l.now, 0), l.InAll(), l.Overrides, most)
}

const readFullKeysSQL = `
SELECT key, sum(used)::bigint AS used, coalesce(($4::jsonb->>key)::bigint, $3) AS units
FROM callq.call_usage
WHERE limit_name = $1 AND bucket > $2
GROUP BY key
ORDER BY sum(used)::float8 / greatest(coalesce(($4::jsonb->>key)::bigint, $3), 1) DESC, key
LIMIT $5`

// KeyDetails is what holds for one key.
type KeyDetails struct {
	Key    string
	Limits []Limit // those per key, with what the key uses of them
	Pauses []Pause
	Due    int64
}

// ReadKey reads what holds for a key. Any text may be one.
func ReadKey(ctx context.Context, pool Pool, key string) (*KeyDetails, error) {
	return snapshot(ctx, pool, func(r *reader) *KeyDetails {
		d := &KeyDetails{Key: key, Pauses: list[Pause](r, "read pauses", pausesSQL+` AND key = $1 ORDER BY what, name LIMIT 1000`, key)}
		for _, l := range r.limits(nil, &key) {
			if l.PerKey && !l.Idle() {
				d.Limits = append(d.Limits, l)
			}
		}
		if due := one[struct{ Due int64 }](r, "count what waits", `SELECT coalesce(sum(calls), 0)::bigint AS due FROM callq.call_flows WHERE key = $1`, key); due != nil {
			d.Due = due.Due
		}
		return d
	})
}

// ReadWorkers returns the workers that are alive, or were until recently.
func ReadWorkers(ctx context.Context, pool Pool) ([]Worker, error) {
	return snapshot(ctx, pool, func(r *reader) []Worker { return list[Worker](r, "read workers", workersSQL) })
}

// Running is an attempt that a worker runs.
type Running struct {
	CallID    int64     `json:"call_id" db:"call_id"`
	Attempt   int       `json:"attempt" db:"attempt"`
	Queue     string    `json:"queue" db:"queue"`
	Task      string    `json:"task" db:"task"`
	Key       string    `json:"key" db:"key"`
	StartedAt time.Time `json:"started_at" db:"started_at"`
	Deadline  time.Time `json:"deadline" db:"deadline"`
}

// WorkerDetails is a worker with what it runs.
type WorkerDetails struct {
	Worker
	Runs []Running // the longest first, 1,000 at most
}

// ReadWorker reads a worker; nil: none of this ID has run of late.
func ReadWorker(ctx context.Context, pool Pool, id string) (*WorkerDetails, error) {
	return snapshot(ctx, pool, func(r *reader) *WorkerDetails {
		for _, w := range list[Worker](r, "read workers", workersSQL) {
			if w.ID == id {
				return &WorkerDetails{w, list[Running](r, "read what runs", runningSQL, id)}
			}
		}
		return nil
	})
}

const runningSQL = `
SELECT call_id, attempt, queue, task, key, started_at, deadline FROM callq.call_open
WHERE worker = $1 AND started_at IS NOT NULL ORDER BY started_at LIMIT 1000`

// TaskDetails is a task with what waits for it, by queue.
type TaskDetails struct {
	Task
	In []Waiting
}

// ReadTask reads a task; nil: no live worker handles it, and no call waits for it.
func ReadTask(ctx context.Context, pool Pool, name string) (*TaskDetails, error) {
	return snapshot(ctx, pool, func(r *reader) *TaskDetails {
		waiting := list[Waiting](r, "count what waits", waitingSQL)
		for _, t := range list[Task](r, "read tasks", tasksSQL, waiting) {
			if t.Name == name {
				return &TaskDetails{t, slices.DeleteFunc(waiting, func(w Waiting) bool { return w.Task != name })}
			}
		}
		return nil
	})
}
