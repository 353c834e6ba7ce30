package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/words"
)

// Queue is a queue that is in force or that calls wait in.
type Queue struct {
	Name       string   `json:"name" db:"name"`
	Configured bool     `json:"configured" db:"configured"` // it is in force
	Limits     []string `json:"limits" db:"limits"`
	Waiting    int64    `json:"waiting" db:"waiting"` // due and scheduled
	Due        int64    `json:"due" db:"due"`
	Scheduled  int64    `json:"scheduled" db:"scheduled"`
	Dispatched int64    `json:"dispatched" db:"dispatched"` // handed over and not started
	Running    int64    `json:"running" db:"running"`
	Failed     int64    `json:"failed_24h" db:"failed"`
	Paused     *string  `json:"paused" db:"paused"` // why; nil: it is not
	// PausedUntil is nil also while it is paused until it is resumed.
	PausedUntil *time.Time `json:"paused_until" db:"paused_until"`
	PausedKeys  int64      `json:"paused_keys" db:"paused_keys"` // that are paused alone
	// Caps: how many calls may wait, in all and of each key; nil: any number.
	MaxWaiting       *int64 `json:"max_waiting" db:"max_waiting"`
	MaxWaitingPerKey *int64 `json:"max_waiting_per_key" db:"max_waiting_per_key"`
	WhenFull         string `json:"when_full" db:"when_full"` // what an INSERT beyond that does
	// HeldBy names the limits without room, if calls are due.
	HeldBy []string `json:"held_by" db:"-"`
	QueueHours
}

// QueueHours is when a queue is open.
type QueueHours struct {
	Hours        string     `json:"hours" db:"hours"`     // empty: it is always open
	OutsideHours bool       `json:"outside_hours" db:"-"` // or this machine does not know their zone
	HoursUntil   *time.Time `json:"hours_until" db:"-"`   // when that changes; nil: it stays so
	state        string     // in words
}

// StateText reports whether the queue is paused or outside its hours, and until when.
func (q Queue) StateText() string {
	text := q.state
	if q.Paused != nil {
		text = "paused"
		if q.PausedUntil != nil {
			text += " until " + Instant(q.PausedUntil)
		}
		text += ": " + Short(*q.Paused)
		if q.OutsideHours {
			text += ", " + q.state
		}
	}
	if q.MaxWaiting != nil && q.Waiting >= *q.MaxWaiting {
		text += fmt.Sprintf(", full: %s may wait, %s", words.Count(*q.MaxWaiting, "call"), whatInserts(q.WhenFull))
	}
	if len(q.HeldBy) > 0 {
		text += ", held by limit " + strings.Join(q.HeldBy, ", ")
	}
	return text + keysPaused(q.PausedKeys)
}

func whatInserts(whenFull string) string {
	switch whenFull {
	case "discard_new":
		return "new ones are discarded"
	case "discard_oldest":
		return "the oldest are discarded"
	}
	return "more are refused"
}

// holds notes which limits have no room for calls that are due.
func holds(queues []Queue, limits []Limit) {
	for i := range queues {
		q := &queues[i]
		q.HeldBy = []string{}
		for _, l := range limits {
			if q.Due > 0 && l.Room == 0 && !l.PerKey && slices.Contains(q.Limits, l.Name) {
				q.HeldBy = append(q.HeldBy, l.Name)
			}
		}
		if q.Due > 0 {
			q.HeldBy = append(q.HeldBy, without(q.Limits, limits)...)
		}
	}
}

// without are the names of a queue's limits that are not among the limits: somebody deleted their rows. No call of the queue is
// claimed.
func without(names []string, limits []Limit) (gone []string) {
	for _, name := range names {
		if !slices.ContainsFunc(limits, func(l Limit) bool { return l.Name == name }) {
			gone = append(gone, name)
		}
	}
	return gone
}

// QueueDetails is a queue with what waits in it and what became of it.
type QueueDetails struct {
	Queue
	Tasks []Waiting // waiting calls by task
	History
}

// ReadQueue reads a queue that is in force or that calls wait in; nil: it is neither.
func ReadQueue(ctx context.Context, pool Pool, name string) (*QueueDetails, error) {
	return snapshot(ctx, pool, func(r *reader) *QueueDetails {
		queues, waiting := r.queues()
		i := slices.IndexFunc(queues, func(q Queue) bool { return q.Name == name })
		if i < 0 {
			return nil
		}
		holds(queues[i:i+1], r.limits(queues[i].Limits, nil))
		tasks := slices.DeleteFunc(waiting, func(w Waiting) bool { return w.Queue != name })
		return &QueueDetails{queues[i], tasks, r.history("queue", name)}
	})
}

// ReadQueues reads the queues in force and those that calls wait in. Of other queues it reads those in which most calls
// failed.
func ReadQueues(ctx context.Context, pool Pool) ([]Queue, error) {
	return snapshot(ctx, pool, func(r *reader) []Queue {
		queues, _ := r.queues()
		holds(queues, r.limits(nil, nil))
		return queues
	})
}

func (r *reader) queues() ([]Queue, []Waiting) {
	waiting := list[Waiting](r, "count what waits", waitingSQL)
	queues := list[Queue](r, "read queues", queuesSQL, waiting)
	for i := range queues {
		queues[i].QueueHours = hoursAt(queues[i].Hours, r.now)
	}
	return queues, waiting
}

// What waits comes as JSON ([]Waiting). Failures are read through an index. Calls that ended well are not read, however many
// there are. Of queues that are not in force, of which a producer may name any number, those with the most failures are shown.
const queuesSQL = `
WITH waiting AS (
    SELECT queue AS name, sum(waiting) AS waiting, sum(due) AS due
    FROM jsonb_to_recordset($1) AS w (queue text, waiting bigint, due bigint)
    GROUP BY queue
), open AS (
    SELECT queue AS name, count(*) FILTER (WHERE started_at IS NULL) AS dispatched,
        count(*) FILTER (WHERE started_at IS NOT NULL) AS running
    FROM callq.call_open GROUP BY 1
), failed AS (
    SELECT name, count(*) AS failed
    FROM (SELECT queue AS name FROM callq.call_effective WHERE failed_at > now() - interval '24 hours') c
    GROUP BY name
    ORDER BY name IN (SELECT name FROM callq.call_queues) DESC, failed DESC, name
    LIMIT 100 + (SELECT count(*) FROM callq.call_queues)
), pauses AS (
    SELECT name, min(reason) FILTER (WHERE key = '') AS paused,
        nullif(min(until) FILTER (WHERE key = ''), 'infinity') AS paused_until,
        count(*) FILTER (WHERE key <> '') AS paused_keys
    FROM callq.call_pauses WHERE what = 'queue' AND until > clock_timestamp() GROUP BY name
)
SELECT name, q.name IS NOT NULL AS configured, coalesce(limits, '{}') AS limits,
    coalesce(waiting, 0) AS waiting, coalesce(due, 0) AS due, coalesce(waiting - due, 0) AS scheduled,
    coalesce(dispatched, 0) AS dispatched, coalesce(running, 0) AS running, coalesce(failed, 0) AS failed,
    paused, paused_until, coalesce(paused_keys, 0) AS paused_keys, coalesce(hours, '') AS hours,
    c.most AS max_waiting, c.most_of_key AS max_waiting_per_key, coalesce(c.when_full, '') AS when_full
FROM callq.call_queues q
LEFT JOIN callq.call_caps c ON c.queue = q.name
FULL JOIN waiting USING (name)
FULL JOIN open USING (name)
FULL JOIN failed USING (name)
LEFT JOIN pauses USING (name)
ORDER BY name`

// hoursAt reports whether a queue with these hours is open.
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

// Waiting describes how many calls of a task wait in a queue, by what flows and the inbox hold: a call that was cancelled or
// deleted counts until a claim has passed it.
type Waiting struct {
	Queue   string `json:"queue" db:"queue"`
	Task    string `json:"task" db:"task"`
	Label   string `json:"label" db:"label"` // that the queue asks for
	Waiting int64  `json:"waiting" db:"waiting"`
	Due     int64  `json:"due" db:"due"`
	Handled bool   `json:"-" db:"handled"` // a live worker handles the task, and carries the label
}

// A producer may write any number of queues and tasks: of those in which no claim passes anything, because the queue is
// not in force or no worker takes the task, the ones with most calls are named. They are left out if of their first
// thousand calls none waits any more.
const waitingSQL = `
WITH waiting AS (
    SELECT queue, task, sum(calls)::bigint AS waiting, coalesce(sum(due), 0)::bigint AS due
    FROM ( -- each is summed up by itself, which several processes of Postgres share
        SELECT queue, task, sum(calls) AS calls, sum(calls) AS due FROM callq.call_flows WHERE calls > 0 GROUP BY queue, task
        UNION ALL
        SELECT queue, task, sum(calls), sum(calls) FILTER (WHERE at <= (SELECT clock_timestamp()))
        FROM callq.call_inbox WHERE calls > 0 GROUP BY queue, task
    ) b
    GROUP BY queue, task
), pairs AS (
    SELECT w.*, coalesce(q.label, '') AS label, q.name IS NOT NULL AS configured, EXISTS (
        SELECT FROM callq.call_workers k
        WHERE callq.alive(k.heartbeat_at) AND w.task = ANY(k.tasks) AND (coalesce(q.label, '') = '' OR q.label = ANY(k.labels))
    ) AS handled
    FROM waiting w LEFT JOIN callq.call_queues q ON q.name = w.queue
), named AS MATERIALIZED (SELECT * FROM pairs ORDER BY configured AND handled DESC, waiting DESC, queue, task LIMIT 1000)
SELECT queue, task, label, waiting, due, handled
FROM named n
WHERE configured AND handled OR EXISTS (
    SELECT FROM (SELECT id FROM callq.call_backlog b WHERE b.queue = n.queue AND b.task = n.task LIMIT 1000) first
    JOIN public.call_queue c ON c.id = first.id AND c.status IN ('new', 'error'))
ORDER BY waiting DESC, task, queue`

// nobody is the text for: no worker takes the calls of a task in queues with a label.
func nobody(task, label string) string {
	who := "no live worker"
	if label != "" {
		who += " that carries the label " + Printable(Short(label))
	}
	return who + " handles task " + Printable(Short(task))
}
