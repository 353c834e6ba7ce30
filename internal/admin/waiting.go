package admin

import (
	"context"
	"fmt"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/ledger"
)

// Waiting is how many calls wait in a queue for one task, and whether no worker is there for them.
type Waiting struct {
	Queue     string `db:"queue"`
	Task      string `db:"task"`
	Label     string `db:"label"`
	Waiting   int64  `db:"waiting"`
	Due       int64  `db:"due"`
	Unhandled bool   `db:"unhandled"`
	// Unnamed is of how many pairs of a queue and a task this is, without a Task, and without a Queue where theirs is
	// in no configuration; 0: of the one that it names.
	Unnamed int64 `db:"unnamed"`
}

// Unnamed are queues and tasks of which fewer calls wait than of the 100 that are named.
type Unnamed struct {
	Pairs   int64 `json:"pairs"` // of a queue and a task
	Waiting int64 `json:"waiting"`
}

func (u *Unnamed) String() string {
	return fmt.Sprintf("%d pairs more of a queue that is not in the configuration and a task: %d calls wait", u.Pairs, u.Waiting)
}

// ReadWaiting counts what waits. Of queues that are in no configuration, and tasks that no worker takes, it names
// those alone of which most wait.
func ReadWaiting(ctx context.Context, db ledger.DB) ([]Waiting, error) {
	return collect[Waiting](ctx, db, "count what waits", waitingSQL)
}

// ReadWaitingOf counts what waits in a queue.
func ReadWaitingOf(ctx context.Context, db ledger.DB, queue string) ([]Waiting, error) {
	return collect[Waiting](ctx, db, "count what waits", waitingOfSQL, queue)
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

// Unhandled is a task with calls that wait for a worker: one that handles it and, where their queue asks for a
// label, carries that.
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

// unhandledOf are the tasks among what waits that no worker is there for.
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

// UnnamedOf is what waits in queues that are in no configuration, beside those that are named; nil: nothing.
func UnnamedOf(waiting []Waiting) *Unnamed {
	for _, w := range waiting {
		if w.Unnamed > 0 && w.Queue == "" {
			return &Unnamed{w.Unnamed, w.Waiting}
		}
	}
	return nil
}
