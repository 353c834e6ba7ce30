package admin

import "fmt"

// Waiting says how many calls of a task wait in a queue, by what flows and the inbox hold: a call that was cancelled or
// deleted counts until a claim has passed it.
type Waiting struct {
	Queue   string `db:"queue"`
	Task    string `db:"task"`
	Label   string `db:"label"` // that the queue asks for
	Waiting int64  `db:"waiting"`
	Due     int64  `db:"due"`
	Handled bool   `db:"handled"` // a live worker handles the task, and carries the label
}

// A producer may write any number of queues and tasks: of those in which no claim passes anything, because the queue is
// not in force or no worker takes the task, the ones with most calls are named. They are left out if of their first
// thousand calls none waits any more.
const waitingSQL = `
WITH waiting AS (
    SELECT queue, task, sum(calls)::bigint AS waiting, coalesce(sum(due), 0)::bigint AS due
    FROM ( -- each is summed up by itself, which several processes of Postgres share
        SELECT queue, task, sum(calls) AS calls, sum(calls) AS due FROM call_flows WHERE calls > 0 GROUP BY queue, task
        UNION ALL
        SELECT queue, task, sum(calls), sum(calls) FILTER (WHERE at <= (SELECT clock_timestamp()))
        FROM call_inbox WHERE calls > 0 GROUP BY queue, task
    ) b
    GROUP BY queue, task
), pairs AS (
    SELECT w.*, coalesce(q.label, '') AS label, q.name IS NOT NULL AS configured, EXISTS (
        SELECT FROM call_workers k
        WHERE callq_alive(k.heartbeat_at) AND w.task = ANY(k.tasks) AND (coalesce(q.label, '') = '' OR q.label = ANY(k.labels))
    ) AS handled
    FROM waiting w LEFT JOIN call_queues q ON q.name = w.queue
), named AS MATERIALIZED (
    SELECT * FROM pairs ORDER BY configured AND handled DESC, waiting DESC, queue, task LIMIT 1000
)
SELECT queue, task, label, waiting, due, handled
FROM named n
WHERE configured AND handled OR EXISTS (
    SELECT FROM (SELECT id FROM call_backlog b WHERE b.queue = n.queue AND b.task = n.task LIMIT 1000) first
    JOIN call_queue c ON c.id = first.id AND c.status IN ('new', 'error'))
ORDER BY task, label, queue`

// Unhandled is a task whose calls wait for a worker that handles it and carries their queue's label, if it has one.
type Unhandled struct {
	Task    string `json:"task"`
	Label   string `json:"label"`
	Waiting int64  `json:"waiting"`
}

func (t Unhandled) String() string {
	who := "no live worker"
	if t.Label != "" {
		who += " that carries the label " + Printable(Short(t.Label))
	}
	return fmt.Sprintf("%s handles task %s: %d calls wait", who, Printable(Short(t.Task)), t.Waiting)
}

// unhandledOf returns the tasks that no worker takes.
func unhandledOf(waiting []Waiting) []Unhandled {
	list := []Unhandled{}
	for _, w := range waiting {
		last := len(list) - 1
		switch {
		case w.Handled:
		case last >= 0 && list[last].Task == w.Task && list[last].Label == w.Label:
			list[last].Waiting += w.Waiting
		default:
			list = append(list, Unhandled{w.Task, w.Label, w.Waiting})
		}
	}
	return list
}
