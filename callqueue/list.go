package callqueue

import (
	"context"
	"fmt"
	"math"
	"slices"
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
// limit of them, by their ids downwards.
func (c *Client) List(ctx context.Context, f Filter, limit int) ([]Summary, error) {
	if f.looksAtNewest() {
		list, err := c.list(ctx, f.listSQL(true), f.args(limit))
		if err != nil || len(list) == limit {
			return list, err
		}
	}
	return c.list(ctx, f.listSQL(false), f.args(limit))
}

func (c *Client) list(ctx context.Context, sql string, args pgx.NamedArgs) ([]Summary, error) {
	rows, err := c.pool.Query(ctx, sql, args)
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

// Count says how many calls fit the filter. Among many it takes a while, unless few fit.
func (c *Client) Count(ctx context.Context, f Filter) (int64, error) {
	var n int64
	err := c.pool.QueryRow(ctx, f.countSQL(), f.args(0)).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count calls: %w", err)
	}
	return n, nil
}

func (f Filter) args(limit int) pgx.NamedArgs {
	return pgx.NamedArgs{
		"statuses": f.Statuses, "waiting": f.those(StatusNew, StatusError),
		"queue": f.Queue, "task": f.Task, "key": f.Key, "ids": f.IDs, "before": f.Before, "after": f.After, "near": min(f.After, math.MaxInt64-recent) + recent, "limit": limit,
	}
}

// those are the statuses of the filter that are among these.
func (f Filter) those(these ...Status) []Status {
	return slices.DeleteFunc(these, func(s Status) bool { return !slices.Contains(f.Statuses, s) })
}

// isNarrow says that call_queue_find_idx tells where the calls can be.
func (f Filter) isNarrow() bool {
	return f.IDs == nil && (f.Queue != "" && f.Queue != defaultQueue || f.Key != nil && *f.Key != "")
}

// looksAtNewest says that what is old is looked at only if the newest do not fill the page, for either takes
// longer than the other where many calls fit, or few.
func (f Filter) looksAtNewest() bool {
	return f.IDs == nil && (f.isNarrow() || len(f.those(StatusNew, StatusError)) > 0)
}

// defaultQueue is also that of the calls whose queue is NULL.
const defaultQueue = "default"

// recent is how many of the newest ids, or of those next above After, are looked through before the index of
// all is.
const recent = 20_000

// listSQL finds the ids first, so that only what is listed is read as a whole. The ids of a narrow filter
// are found by its index or among the newest: Postgres might go down the primary key to its end instead, in
// the belief that they lie all over it.
func (f Filter) listSQL(newest bool) string {
	order := "DESC"
	if f.After > 0 {
		order = "ASC"
	}
	page := "\nORDER BY c.id " + order + "\nLIMIT @limit::bigint"
	where, wrap := f.whereSQL(), "SELECT c.id FROM %s"+page
	switch {
	case newest && f.After > 0:
		where += "\n  AND c.id <= @near::bigint"
	case newest:
		where += fmt.Sprintf(`
  AND c.id >= coalesce(nullif(@before::bigint, 0), (SELECT max(id) FROM call_queue)) - %d`, recent)
	case f.isNarrow():
		wrap = "SELECT c.id FROM (SELECT c.id FROM %s\nOFFSET 0) c" + page
	}
	return yearsSQL + `
SELECT ` + summarySQL + `
FROM call_queue c, years
WHERE c.id = ANY(ARRAY(
    SELECT id FROM (` + f.idsSQL(where, wrap) + `) fit ORDER BY id ` + order + ` LIMIT @limit::bigint))
ORDER BY c.id DESC`
}

func (f Filter) countSQL() string {
	return "SELECT count(*) FROM (" + f.idsSQL(f.whereSQL(), "SELECT c.id FROM %s") + ") fit"
}

// idsSQL selects ids from each of the sources apart. No call is in two of them.
func (f Filter) idsSQL(where, wrap string) string {
	var list []string
	for _, source := range f.sources() {
		list = append(list, "("+fmt.Sprintf(wrap, source+where)+")")
	}
	return strings.Join(list, "\nUNION ALL\n")
}

// sources are where calls of the statuses asked for are found: most calls are done, and those of a rare
// status need not be looked for among them. status and finished_at are in no index, for then no claim,
// start and finish would be a HOT update.
func (f Filter) sources() []string {
	const any = "call_queue c WHERE c.status = ANY(@statuses::text[])"
	if len(f.Statuses) == 0 {
		return []string{"call_queue c WHERE true"}
	}
	if f.IDs != nil {
		return []string{any}
	}
	var list []string
	for _, s := range f.Statuses {
		source := any
		switch s {
		case StatusNew, StatusError:
			source = waitingSQL
		case StatusDispatched:
			source = "call_open o JOIN call_queue c ON c.id = o.call_id WHERE c.status = 'dispatched'"
		case StatusFailed: // call_queue_dead_idx
			source = "call_queue c WHERE c.status = 'failed' AND c.failed_at IS NOT NULL"
		case StatusCancelled: // call_queue_cancelled_idx
			source = "call_queue c WHERE c.status = 'cancelled' AND c.cancelled_at IS NOT NULL"
		}
		if source == any {
			return []string{any}
		}
		if !slices.Contains(list, source) {
			list = append(list, source)
		}
	}
	return list
}

// waitingSQL is where waiting calls are found; @waiting is new, error or both.
const waitingSQL = "call_queue c WHERE c.status = ANY(@waiting::text[])"

// whereSQL is what the source leaves open. Where the column itself is named the index can tell.
func (f Filter) whereSQL() string {
	var b strings.Builder
	add := func(given bool, condition string) {
		if given {
			b.WriteString("\n  AND " + condition)
		}
	}
	add(f.Queue == defaultQueue, "coalesce(c.queue, 'default') = @queue::text")
	add(f.Queue != "" && f.Queue != defaultQueue, "c.queue = @queue::text")
	add(f.Task != "", "coalesce(c.task, 'http') = @task::text")
	add(f.Key != nil && *f.Key == "", "coalesce(c.key, '') = @key::text")
	add(f.Key != nil && *f.Key != "", "c.key = @key::text")
	add(f.IDs != nil, "c.id = ANY(@ids::bigint[])")
	add(f.Before > 0, "c.id < @before::bigint")
	add(f.After > 0, "c.id > @after::bigint")
	return b.String()
}
