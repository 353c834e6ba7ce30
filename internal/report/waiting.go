package report

import (
	"context"
	"fmt"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/lines"
)

// Waiting is how many calls wait in a queue for one task, and whether no worker is there for them.
type Waiting struct {
	Queue     string `db:"queue"`
	Task      string `db:"task"`
	Label     string `db:"label"`
	Waiting   int64  `db:"waiting"`
	Due       int64  `db:"due"`
	Unhandled bool   `db:"unhandled"`
}

// ReadWaiting counts what waits.
func ReadWaiting(ctx context.Context, db ledger.DB) ([]Waiting, error) {
	return collect[Waiting](ctx, db, "count what waits", waitingSQL)
}

var waitingSQL = `
WITH` + lines.WaitingSQL("true") + `
SELECT t.queue, t.task, coalesce(q.on_label, '') AS label, t.waiting, t.due, ` + lines.WithoutWorker + ` AS unhandled
FROM (SELECT queue, task, sum(calls)::bigint AS waiting, sum(due)::bigint AS due FROM waiting GROUP BY 1, 2 HAVING sum(calls) > 0) t
LEFT JOIN call_queues q ON q.name = t.queue
ORDER BY t.task, label, t.queue`

// Unhandled is a task with calls that wait for a worker: one that handles it and, where their queue asks for a
// label, carries that.
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

// unhandledOf are the tasks among what waits that no worker is there for.
func unhandledOf(waiting []Waiting) []Unhandled {
	list := []Unhandled{}
	for _, w := range waiting {
		if !w.Unhandled {
			continue
		}
		if last := len(list) - 1; last >= 0 && list[last].Task == w.Task && list[last].Label == w.Label {
			list[last].Waiting += w.Waiting
			continue
		}
		list = append(list, Unhandled{w.Task, w.Label, w.Waiting})
	}
	return list
}
