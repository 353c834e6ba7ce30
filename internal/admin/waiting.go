package admin

import (
	"context"
	"fmt"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/ledger"
)

// Waiting says how many calls of a task wait in a queue, and whether no worker takes them.
type Waiting struct {
	Queue     string `db:"queue"`
	Task      string `db:"task"`
	Label     string `db:"label"`
	Waiting   int64  `db:"waiting"`
	Due       int64  `db:"due"`
	Unhandled bool   `db:"unhandled"`
	// Unnamed is 0 for the pair of a queue and a task that is named. Above 0 this is of so many pairs together: then it
	// has no Task, and no Queue if theirs is not configured.
	Unnamed int64 `db:"unnamed"`
}

// Unnamed counts pairs of a queue and a task with fewer calls than the 100 that are named.
type Unnamed struct {
	Pairs   int64 `json:"pairs"` // of a queue and a task
	Waiting int64 `json:"waiting"`
}

func (u *Unnamed) String() string {
	return fmt.Sprintf("%d pairs more of a queue that is not in the configuration and a task: %d calls wait", u.Pairs, u.Waiting)
}

// ReadWaiting counts the calls that wait. Of queues that are not configured and tasks that no worker handles, it names
// only those with the most calls.
func ReadWaiting(ctx context.Context, db ledger.DB) ([]Waiting, error) {
	return collect[Waiting](ctx, db, "count what waits", waitingSQL)
}

var (
	waitingSQL   = `WITH` + backlog.WaitingSQL("true") + byTaskSQL
	waitingOfSQL = `WITH` + backlog.WaitingSQL("t.queue = $1") + byTaskSQL
)

const byTaskSQL = `
SELECT coalesce(t.queue, '') AS queue, coalesce(t.task, '') AS task, coalesce(q.label, '') AS label, t.waiting, t.due,
    t.queue IS NOT NULL AND ` + backlog.WithoutWorker + ` AS unhandled, CASE WHEN t.task IS NULL THEN t.pairs ELSE 0 END AS unnamed
FROM (
    SELECT queue, task, sum(calls)::bigint AS waiting, sum(due)::bigint AS due, sum(pairs)::bigint AS pairs
    FROM waiting GROUP BY 1, 2 HAVING sum(calls) > 0
) t
LEFT JOIN call_queues q ON q.name = t.queue
ORDER BY t.task, label, t.queue`

// Unhandled is a task whose calls wait for a worker that handles it and carries their queue's label, if it has one.
type Unhandled struct {
	Task    string `json:"task"`
	Label   string `json:"label"`
	Waiting int64  `json:"waiting"`
	Unnamed int64  `json:"unnamed"` // above 0: of so many other tasks
}

func (t Unhandled) String() string {
	who := "no live worker"
	if t.Label != "" {
		who += " that carries the label " + Printable(Short(t.Label))
	}
	if t.Unnamed > 0 {
		return fmt.Sprintf("%s handles %d tasks more: %d calls wait", who, t.Unnamed, t.Waiting)
	}
	return fmt.Sprintf("%s handles task %s: %d calls wait", who, Printable(Short(t.Task)), t.Waiting)
}

// unhandledOf returns the tasks that no worker takes.
func unhandledOf(waiting []Waiting) []Unhandled {
	list := []Unhandled{}
	for _, w := range waiting {
		if !w.Unhandled {
			continue
		}
		last := len(list) - 1
		if last >= 0 && list[last].Task == w.Task && list[last].Label == w.Label && (list[last].Unnamed > 0) == (w.Unnamed > 0) {
			list[last].Waiting += w.Waiting
			list[last].Unnamed += w.Unnamed
			continue
		}
		list = append(list, Unhandled{w.Task, w.Label, w.Waiting, w.Unnamed})
	}
	return list
}

// UnnamedOf returns what waits in queues that are not configured, beside those that are named; nil: nothing.
func UnnamedOf(waiting []Waiting) *Unnamed {
	for _, w := range waiting {
		if w.Unnamed > 0 && w.Queue == "" {
			return &Unnamed{w.Unnamed, w.Waiting}
		}
	}
	return nil
}
