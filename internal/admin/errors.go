package admin

import (
	"context"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// ErrorGroup is calls that failed alike: of one queue and task, with the same HTTP status and errors of the same shape.
type ErrorGroup struct {
	Queue   string    `json:"queue" db:"queue"`
	Task    string    `json:"task" db:"task"`
	Code    *int      `json:"code" db:"code"`   // that their last attempts were answered with; nil: none was
	Shape   string    `json:"error" db:"shape"` // the error with # for numbers, and … for what is quoted
	Calls   int64     `json:"calls" db:"calls"`
	First   time.Time `json:"first_failed_at" db:"first_at"`
	Last    time.Time `json:"last_failed_at" db:"last_at"`
	Example int64     `json:"example" db:"example"` // the id of the last
}

// ReadErrors puts the newest failed calls, of those that the filter's queue and task name, into groups: the largest come first.
func ReadErrors(ctx context.Context, db ledger.DB, f Filter, newest int) ([]ErrorGroup, error) {
	return Collect[ErrorGroup](ctx, db, "group failed calls", errorsSQL, newest, f.Queue, f.Task)
}

// shapeSQL is the shape of an error_message.
const shapeSQL = `regexp_replace(regexp_replace(left(coalesce(error_message, ''), 300), '"[^"]*"?', '"…"', 'g'),
    '\m[0-9a-f]*[0-9][0-9a-f]*(-[0-9a-f]+)*\M', '#', 'gi')`

// call_queue_failed_idx finds them.
const errorsSQL = `
WITH failed AS (
    SELECT id, queue, task, failed_at, error_message FROM callq.call_effective
    WHERE failed_at IS NOT NULL AND status = 'failed' AND ($2 = '' OR queue = $2) AND ($3 = '' OR task = $3)
    ORDER BY failed_at DESC LIMIT $1
), shaped AS (
    SELECT f.queue, f.task, f.id, f.failed_at, a.code,
        ` + shapeSQL + ` AS shape
    FROM failed f
    LEFT JOIN LATERAL (SELECT code FROM public.call_attempts a WHERE a.call_id = f.id AND a.attempt > 0 ORDER BY a.attempt DESC LIMIT 1) a ON true
)
SELECT queue, task, code, shape, count(*) AS calls, least(greatest(min(failed_at), timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31') AS first_at,
    least(greatest(max(failed_at), timestamptz '0001-01-01 00:00:00Z'), timestamptz '9999-12-31') AS last_at, max(id) AS example
FROM shaped
GROUP BY queue, task, code, shape
ORDER BY calls DESC, last_at DESC
LIMIT 100`
