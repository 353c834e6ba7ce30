package callqueue

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Filter says which calls. All that it names must hold; the zero value is every call.
type Filter struct {
	// Statuses are those that a call may have. Default: any.
	Statuses []Status
	// Queue and Task are the call's. Default: any.
	Queue, Task string
	// Key is the call's; nil is any, and a pointer to "" the calls without one.
	Key *string
	// IDs are those that a call may have; nil: any.
	IDs []int64
	// Before lets only ids below it through, if it is above 0: the last of a page gives the next.
	Before int64
	// After lets only ids above it through, if it is above 0. A list is then of those next above it: the first
	// of a page gives the one before.
	After int64
}

// Summary is a call in a list: its [Record] without what may be large.
type Summary struct {
	ID           int64      `json:"id"`
	Queue        string     `json:"queue"`
	Task         string     `json:"task"`
	Key          string     `json:"key"`
	Status       Status     `json:"status"`
	Running      bool       `json:"running"`
	Attempts     int        `json:"attempts"`
	FailedCount  int        `json:"failed_count"`
	ErrorMessage *string    `json:"error_message"`
	RunAt        time.Time  `json:"run_at"`
	CreatedAt    time.Time  `json:"created_at"`
	DispatchedAt *time.Time `json:"dispatched_at"`
	FinishedAt   *time.Time `json:"finished_at"`
}

// List returns the newest calls that fit the filter (those next above Filter.After, if that is set), at most
// limit of them, by their ids downwards. It goes through the calls by their ids until it has enough: what is rare
// among a million takes some tenths of a second.
//
// The role needs SELECT on call_queue and call_open.
func (c *Client) List(ctx context.Context, f Filter, limit int) ([]Summary, error) {
	args := f.args()
	args["limit"] = max(limit, 0)
	rows, err := c.pool.Query(ctx, f.listSQL(), args)
	if err != nil {
		return nil, fmt.Errorf("list calls: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[Summary])
	if err != nil {
		return nil, fmt.Errorf("list calls: %w", err)
	}
	for i := range list {
		s := &list[i]
		inUTC(&s.RunAt, &s.CreatedAt, s.DispatchedAt, s.FinishedAt)
	}
	return list, nil
}

func (f Filter) listSQL() string {
	order := "DESC"
	if f.After > 0 {
		order = "ASC"
	}
	return yearsSQL + `
SELECT ` + summarySQL + `
FROM call_queue c, years
WHERE c.id = ANY (ARRAY(SELECT c.id FROM call_queue c WHERE ` + f.whereSQL() + ` ORDER BY c.id ` + order + ` LIMIT @limit))
ORDER BY c.id DESC`
}

// Count says how many calls fit the filter. It goes through all calls, unless the filter asks for those alone that
// are dispatched or failed. The role needs SELECT on call_queue and call_open.
func (c *Client) Count(ctx context.Context, f Filter) (int64, error) {
	var n int64
	err := c.pool.QueryRow(ctx, `SELECT count(*) FROM call_queue c WHERE `+f.whereSQL(), f.args()).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count calls: %w", err)
	}
	return n, nil
}

// args are what the conditions of a filter name.
func (f Filter) args() pgx.NamedArgs {
	return pgx.NamedArgs{
		"statuses": f.Statuses, "queue": f.Queue, "task": f.Task, "key": f.Key, "ids": f.IDs, "before": f.Before, "after": f.After,
	}
}

// whereSQL is of the calls c. An explicit NULL is the default.
func (f Filter) whereSQL() string {
	where := []string{"true"}
	add := func(asked bool, condition string) {
		if asked {
			where = append(where, condition)
		}
	}
	add(len(f.Statuses) > 0, "c.status = ANY(@statuses::text[])")
	add(f.only(StatusFailed), "c.failed_at IS NOT NULL") // call_queue_failed_idx
	add(f.only(StatusDispatched), "c.id IN (SELECT call_id FROM call_open)")
	add(f.Queue != "", named("queue", f.Queue == "default"))
	add(f.Task != "", named("task", f.Task == "http"))
	add(f.Key != nil, named("key", f.Key != nil && *f.Key == ""))
	add(f.IDs != nil, "c.id = ANY(@ids::bigint[])")
	add(f.Before > 0, "c.id < @before::bigint")
	add(f.After > 0, "c.id > @after::bigint")
	return strings.Join(where, " AND ")
}

func (f Filter) only(status Status) bool { return len(f.Statuses) == 1 && f.Statuses[0] == status }

func named(column string, orNull bool) string {
	if orNull {
		return fmt.Sprintf("(c.%[1]s = @%[1]s::text OR c.%[1]s IS NULL)", column)
	}
	return fmt.Sprintf("c.%[1]s = @%[1]s::text", column)
}
