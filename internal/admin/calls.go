package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
)

// Filter selects calls. All that it names must hold; the zero value selects every call.
type Filter struct {
	Statuses    []callqueue.Status // any of these; none: any
	Queue, Task string             // empty: any
	Key         *string            // nil: any; a pointer to "": calls without a key
	Before      int64              // only ids below it, if above 0: the last of a page gives the next page
	After       int64              // only ids above it, if above 0; a list then has the ids next above it
}

// Call is a call in a list: a [callqueue.Record] without what may be large.
type Call struct {
	ID           int64            `json:"id"`
	Queue        string           `json:"queue"`
	Task         string           `json:"task"`
	Key          string           `json:"key"`
	Status       callqueue.Status `json:"status"`
	Running      bool             `json:"running"`
	Attempts     int              `json:"attempts"`
	FailedCount  int              `json:"failed_count"`
	ErrorMessage *string          `json:"error_message"`
	RunAt        time.Time        `json:"run_at"`
	CreatedAt    time.Time        `json:"created_at"`
	DispatchedAt *time.Time       `json:"dispatched_at"`
	FinishedAt   *time.Time       `json:"finished_at"`
}

// ListCalls returns the newest calls that fit the filter (those next above Filter.After, if that is set), at most
// limit of them, newest first. It goes through the calls by id until it has enough: to find what is rare among a
// million takes some tenths of a second.
func ListCalls(ctx context.Context, db ledger.DB, f Filter, limit int) ([]Call, error) {
	args := f.args()
	args["limit"] = max(limit, 0)
	return collect[Call](ctx, db, "list calls", f.listSQL(), args)
}

// The years are those that JSON can write. A CASE keeps NULL, which least and greatest pass over.
func (f Filter) listSQL() string {
	order := "DESC"
	if f.After > 0 {
		order = "ASC"
	}
	return `
WITH years (first, last) AS (
    VALUES (timestamptz '0001-01-01 00:00:00Z', timestamptz '9999-12-31 23:59:59.999999Z')
)
SELECT id, coalesce(queue, 'default') AS queue, coalesce(task, 'http') AS task, coalesce(key, '') AS key, status,
    EXISTS (SELECT FROM call_open o WHERE o.call_id = c.id AND o.started_at IS NOT NULL) AS running,
    attempts, failed_count, error_message,
    least(greatest(coalesce(run_at, created_at), first), last) AS run_at,
    least(greatest(created_at, first), last) AS created_at,
    CASE WHEN dispatched_at IS NOT NULL THEN least(greatest(dispatched_at, first), last) END AS dispatched_at,
    CASE WHEN finished_at IS NOT NULL THEN least(greatest(finished_at, first), last) END AS finished_at
FROM call_queue c, years
WHERE id = ANY (ARRAY(SELECT c.id FROM call_queue c WHERE ` + f.whereSQL() + ` ORDER BY c.id ` + order + ` LIMIT @limit))
ORDER BY id DESC`
}

// CountCalls returns how many calls fit the filter. It goes through all calls, unless the filter asks only for
// dispatched or failed ones.
func CountCalls(ctx context.Context, db ledger.DB, f Filter) (int64, error) {
	n, err := collectOne[struct{ Count int64 }](ctx, db, "count calls",
		`SELECT count(*) FROM call_queue c WHERE `+f.whereSQL(), f.args())
	if err != nil {
		return 0, err
	}
	return n.Count, nil
}

// args are the parameters of whereSQL.
func (f Filter) args() pgx.NamedArgs {
	return pgx.NamedArgs{
		"statuses": f.Statuses, "queue": f.Queue, "task": f.Task, "key": f.Key, "before": f.Before, "after": f.After,
	}
}

// whereSQL is a condition on the calls c. An explicit NULL means the default.
func (f Filter) whereSQL() string {
	where := []string{"true"}
	add := func(asked bool, condition string) {
		if asked {
			where = append(where, condition)
		}
	}
	add(len(f.Statuses) > 0, "c.status = ANY(@statuses::text[])")
	add(f.only(callqueue.StatusFailed), "c.failed_at IS NOT NULL") // call_queue_failed_idx
	add(f.only(callqueue.StatusDispatched), "c.id IN (SELECT call_id FROM call_open)")
	add(f.Queue != "", named("queue", f.Queue == "default"))
	add(f.Task != "", named("task", f.Task == "http"))
	add(f.Key != nil, named("key", f.Key != nil && *f.Key == ""))
	add(f.Before > 0, "c.id < @before::bigint")
	add(f.After > 0, "c.id > @after::bigint")
	return strings.Join(where, " AND ")
}

func (f Filter) only(status callqueue.Status) bool {
	return len(f.Statuses) == 1 && f.Statuses[0] == status
}

func named(column string, orNull bool) string {
	if orNull {
		return fmt.Sprintf("(c.%[1]s = @%[1]s::text OR c.%[1]s IS NULL)", column)
	}
	return fmt.Sprintf("c.%[1]s = @%[1]s::text", column)
}
