package admin

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/policy"
)

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
	Hours        string     `json:"hours" db:"hours"`     // empty: it is always open
	OutsideHours bool       `json:"outside_hours" db:"-"` // or this machine does not know their zone
	HoursUntil   *time.Time `json:"hours_until" db:"-"`   // when that changes; nil: it stays so
	state        string     // in words
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

// Holds is what is in force, in the words of the audit.
func (q Queue) Holds() string {
	return policy.Queue{
		Limits: q.Limits, On: q.On, MaxAttempts: q.MaxAttempts, BackoffMin: q.BackoffMin, BackoffMax: q.BackoffMax,
		Timeout: q.Timeout, OnLost: q.OnLost, Hours: q.Hours,
	}.String()
}

// StateText says whether the queue is paused or outside its hours, and until when.
func (q Queue) StateText() string {
	if q.Paused == nil {
		return q.state + keysPaused(q.PausedKeys)
	}
	state := "paused"
	if q.PausedUntil != nil {
		state += " until " + Instant(q.PausedUntil)
	}
	state += ": " + Short(*q.Paused)
	if q.OutsideHours {
		state += ", " + q.state
	}
	return state + keysPaused(q.PausedKeys)
}

// QueueDetails is a queue with what waits in it and what became of it.
type QueueDetails struct {
	Queue
	Tasks []Waiting // waiting calls by task
	History
}

// ReadQueue reads a queue that is in force or that calls wait in; nil: it is neither.
func ReadQueue(ctx context.Context, pool *pgxpool.Pool, name string) (d *QueueDetails, err error) {
	err = inSnapshot(ctx, pool, func(r *reader) {
		queues, waiting := r.queues()
		if i := slices.IndexFunc(queues, func(q Queue) bool { return q.Name == name }); i >= 0 {
			tasks := slices.DeleteFunc(waiting, func(w Waiting) bool { return w.Queue != name })
			d = &QueueDetails{queues[i], tasks, r.history("queue", name)}
		}
	})
	return d, err
}

// ReadQueues reads the queues in force and those that calls wait in. Of other queues it reads those in which most calls
// failed.
func ReadQueues(ctx context.Context, db ledger.DB) ([]Queue, error) {
	r := &reader{ctx: ctx, db: db}
	queues, _ := r.queues()
	return queues, r.err
}

func (r *reader) queues() ([]Queue, []Waiting) {
	var names []string
	var calls, due []int64
	waiting := list[Waiting](r, "count what waits", waitingSQL)
	for _, w := range waiting {
		names, calls, due = append(names, w.Queue), append(calls, w.Waiting), append(due, w.Due)
	}
	queues := list[Queue](r, "read queues", queuesSQL, names, calls, due)
	for i := range queues {
		queues[i].QueueHours = hoursAt(queues[i].Hours, queues[i].Now)
	}
	return queues, waiting
}

// Failures are read through an index. Calls that ended well are not read, however many there are. Of queues that are not
// in force, of which a producer may name any number, those with the most failures are shown.
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
    SELECT name, count(*) AS failed
    FROM (SELECT coalesce(queue, 'default') AS name FROM call_queue WHERE failed_at > now() - interval '24 hours') c
    GROUP BY name
    ORDER BY name IN (SELECT name FROM call_queues) DESC, failed DESC, name
    LIMIT 100 + (SELECT count(*) FROM call_queues)
), pauses AS (
    SELECT name, min(reason) FILTER (WHERE key = '') AS paused,
        nullif(min(until) FILTER (WHERE key = ''), 'infinity') AS paused_until,
        count(*) FILTER (WHERE key <> '') AS paused_keys
    FROM call_pauses WHERE what = 'queue' AND until > clock_timestamp() GROUP BY name
)
SELECT name, q.name IS NOT NULL AS configured, coalesce(limits, '{}') AS limits,
    coalesce(waiting, 0) AS waiting, coalesce(due, 0) AS due, coalesce(waiting - due, 0) AS scheduled,
    coalesce(dispatched, 0) AS dispatched, coalesce(running, 0) AS running, coalesce(failed, 0) AS failed,
    paused, paused_until, coalesce(paused_keys, 0) AS paused_keys,
    coalesce(label, '') AS label, coalesce(max_attempts, 0) AS max_attempts, coalesce(backoff_min, '0') AS backoff_min,
    coalesce(backoff_max, '0') AS backoff_max, coalesce(timeout, '0') AS timeout, coalesce(on_lost, '') AS on_lost,
    coalesce(hours, '') AS hours, clock_timestamp() AS now
FROM call_queues q
FULL JOIN waiting USING (name)
FULL JOIN open USING (name)
FULL JOIN failed USING (name)
LEFT JOIN pauses USING (name)
ORDER BY name`

// hoursAt says whether a queue with these hours is open.
func hoursAt(text string, now time.Time) QueueHours {
	h := QueueHours{Hours: text, state: "open"}
	parsed, err := hours.Parse(text)
	if err != nil {
		h.OutsideHours, h.state = true, "open in hours whose zone is not known here: "+text
		return h
	}
	open, until := parsed.Open(now)
	h.OutsideHours = !open
	if !open {
		h.state = "outside its hours"
	}
	if !until.IsZero() {
		h.HoursUntil = new(until.UTC())
		h.state += " until " + hours.When(until)
	}
	return h
}
