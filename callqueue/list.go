package callqueue

import (
	"context"
	"fmt"
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
// limit of them, by their ids downwards. Among a million calls that takes less than a tenth of a second; longer
// only where what the filter names is common and hardly any call has all of it.
//
// The role needs SELECT on call_queue, call_open, call_attempts, call_line_totals, call_lines, call_waiting, call_news and
// call_in_line.
func (c *Client) List(ctx context.Context, f Filter, limit int) ([]Summary, error) {
	return c.list(ctx, f, limit, usualSizes())
}

func (c *Client) list(ctx context.Context, f Filter, limit int, sizes sizes) ([]Summary, error) {
	list := []Summary{}
	// In one snapshot: no call is missed that moves meanwhile, nor listed twice.
	err := pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		ids, err := find(ctx, tx, f, limit, sizes)
		if err != nil || len(ids) == 0 {
			return err
		}
		rows, err := tx.Query(ctx, listSQL, ids)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowToStructByName[Summary])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list calls: %w", err)
	}
	for i := range list {
		s := &list[i]
		inUTC(&s.RunAt, &s.CreatedAt, s.DispatchedAt, s.FinishedAt)
	}
	return list, nil
}

const listSQL = yearsSQL + `
SELECT ` + summarySQL + `
FROM call_queue c, years
WHERE c.id = ANY($1::bigint[])
ORDER BY c.id DESC`

// Count says how many calls fit the filter. It goes through all calls, unless the filter names a rare status,
// queue, task or key. The role needs SELECT on call_queue and call_open.
func (c *Client) Count(ctx context.Context, f Filter) (int64, error) {
	var n int64
	err := c.pool.QueryRow(ctx, f.countSQL(), f.args()).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count calls: %w", err)
	}
	return n, nil
}

func (f Filter) countSQL() string {
	const between = `
  AND (@before::bigint <= 0 OR c.id < @before::bigint) AND (@after::bigint <= 0 OR c.id > @after::bigint)`
	counts := []string{}
	for _, calls := range f.sources() {
		counts = append(counts, "(SELECT count(*) FROM "+calls+f.whereSQL()+between+")")
	}
	return "SELECT " + strings.Join(counts, " + ")
}

// sources are what Count goes through: of the rarer statuses no more than their calls.
func (f Filter) sources() []string {
	var list []string
	for _, status := range slices.Compact(slices.Sorted(slices.Values(f.Statuses))) {
		switch status {
		case StatusDispatched:
			list = append(list, "call_open o JOIN call_queue c ON c.id = o.call_id WHERE c.status = 'dispatched'")
		case StatusFailed:
			list = append(list, "call_queue c WHERE "+failedSQL)
		case StatusCancelled:
			list = append(list, "call_queue c WHERE "+cancelledSQL)
		default:
			return []string{"call_queue c WHERE " + f.statusSQL()}
		}
	}
	if list == nil {
		return []string{"call_queue c WHERE true"}
	}
	return list
}
