package callqueue

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Where the calls of a list are. Neither the status nor when a call ended is in an index, for then no claim,
// start and finish would be a HOT update; and with one over queue and id, or key and id, inserts would take half
// as long again. So each status is looked for where its calls are known from: what waits in the lines (where that is
// much, in their chunks with the largest ids), what is handed over among the open attempts, what is done in the
// ledger, and what failed or was cancelled through indexes of those alone. A queue, a task and a key are told by
// call_queue_find_idx, which says in which pages they may be, in growing windows of ids from the end on that the
// list begins with.

// sizes of what is looked at.
type sizes struct {
	recent int64 // ids from that end that are read first, one by one: most lists are full by then
	lately int   // rows of the ledger, before the index is asked
	crowd  int   // calls in line that are too many to look at each where there is another way
	most   int   // calls in line that are too many in any case
	chunks int   // of lines that are looked at first where those have a crowd
}

func usualSizes() sizes {
	return sizes{recent: 20_000, lately: 2_000, crowd: 10_000, most: 100_000, chunks: 256}
}

// span is ids, from and to included.
type span struct{ from, to int64 }

func (s span) empty() bool { return s.from > s.to }

// search looks for the ids of one list.
type search struct {
	sizes
	tx     pgx.Tx
	filter Filter
	up     bool     // it begins with the lowest
	queues []string // in which some may wait
}

// find returns the ids that a list is of, at most limit, in the order in which they are looked for.
func find(ctx context.Context, tx pgx.Tx, f Filter, limit int, sizes sizes) ([]int64, error) {
	s := &search{sizes: sizes, tx: tx, filter: f, up: f.After > 0}
	all, err := s.bounds(ctx)
	if err != nil || limit < 1 {
		return nil, err
	}
	if f.IDs != nil {
		return s.query(ctx, s.inOrder(f.statusSQL()), all, limit)
	}
	near, rest := s.cut(all, s.recent)
	ids, err := s.query(ctx, s.oneByOne(f.statusSQL()), near, limit)
	if err != nil || len(ids) == limit || rest.empty() {
		return ids, err
	}
	limit -= len(ids)
	var more []int64
	for _, look := range s.looks() {
		some, err := look(ctx, rest, limit)
		if err != nil {
			return nil, err
		}
		more = append(more, some...)
	}
	return append(ids, s.first(more, limit)...), nil
}

// bounds are the ids that the filter leaves; a sequence gives none below 1.
func (s *search) bounds(ctx context.Context) (span, error) {
	var last int64
	if err := s.tx.QueryRow(ctx, beginSQL).Scan(&last, nil, nil, nil, nil); err != nil {
		return span{}, err
	}
	if s.filter.Before > 0 {
		last = min(last, s.filter.Before-1)
	}
	return span{min(max(s.filter.After, 0), math.MaxInt64-1) + 1, last}, nil
}

// Each plan is made for its span, whatever the pool's connections set: a generic one would not do.
const beginSQL = `
SELECT (SELECT coalesce(max(id), 0) FROM call_queue), set_config('plan_cache_mode', 'force_custom_plan', true),
    set_config('enable_bitmapscan', 'on', true), set_config('enable_seqscan', 'on', true), set_config('jit', 'off', true)`

// cut takes n ids from the end that the list begins with.
func (s *search) cut(all span, n int64) (near, rest span) {
	if n > all.to-all.from {
		return all, span{1, 0}
	}
	if s.up {
		return span{all.from, all.from + n - 1}, span{all.from + n, all.to}
	}
	return span{all.to - n + 1, all.to}, span{all.from, all.to - n}
}

// first are those that a list begins with.
func (s *search) first(ids []int64, limit int) []int64 {
	slices.SortFunc(ids, func(a, b int64) int {
		if s.up {
			return cmp.Compare(a, b)
		}
		return cmp.Compare(b, a)
	})
	return ids[:min(limit, len(ids))]
}

// look finds ids in a span: those that the list begins with, at most limit.
type look func(ctx context.Context, in span, limit int) ([]int64, error)

// looks are where calls of the statuses asked for are. No call is found by two of them.
func (s *search) looks() []look {
	if len(s.filter.Statuses) == 0 {
		return []look{s.through("true")}
	}
	var list []look
	if len(s.filter.waiting()) > 0 {
		list = append(list, s.waiting)
	}
	for status, look := range map[Status]look{
		StatusDispatched: s.open,
		StatusDone:       s.done,
		StatusFailed:     s.through(failedSQL),
		StatusCancelled:  s.through(cancelledSQL),
	} {
		if slices.Contains(s.filter.Statuses, status) {
			list = append(list, look)
		}
	}
	return list
}

// through goes through calls that an index has in the order of their ids, or, where that tells more, by
// call_queue_find_idx.
func (s *search) through(are string) look {
	return func(ctx context.Context, in span, limit int) ([]int64, error) {
		if s.filter.isNarrow() {
			return s.windows(ctx, are, in, limit)
		}
		return s.query(ctx, s.inOrder(are), in, limit)
	}
}

// windows asks for all calls of a window at once, for only so Postgres uses the index, and sorts them here. Windows
// grow until one has many more than are wanted: then the rest of the list is in that, and a part of it will do.
func (s *search) windows(ctx context.Context, are string, in span, limit int) ([]int64, error) {
	var ids []int64
	found := false
	many := 2 * min(limit, math.MaxInt/4)
	for size := 4 * s.recent; len(ids) < limit && !in.empty(); {
		near, rest := s.cut(in, size)
		some, err := s.atOnce(ctx, are, near, many+1)
		if err == nil && len(some) > many {
			if found = true; size > s.recent {
				size = max(size/4, s.recent)
				continue
			}
			some, err = s.query(ctx, s.oneByOne(are), near, limit-len(ids))
		}
		if err != nil {
			return nil, err
		}
		ids, in = append(ids, s.first(some, limit-len(ids))...), rest
		if !found {
			size = 2 * min(size, math.MaxInt64/2)
		}
	}
	return ids, nil
}

// open looks for what is handed over.
func (s *search) open(ctx context.Context, in span, limit int) ([]int64, error) {
	return s.query(ctx, s.eachOf(`SELECT call_id AS id FROM call_open WHERE call_id BETWEEN @from AND @to`, "c.status = 'dispatched'"), in, limit)
}

// done looks through the ledger. (A call that was retried may have been done before.) Of a queue, task or key the
// ledger may have little: then the index tells more.
func (s *search) done(ctx context.Context, in span, limit int) ([]int64, error) {
	near, rest := in, span{1, 0}
	if s.filter.isNarrow() {
		edge, err := s.query(ctx, fmt.Sprintf(ledgerEdgeSQL, s.order(), s.lately), in, 1)
		switch {
		case err != nil:
			return nil, err
		case len(edge) > 0 && s.up:
			near, rest = s.cut(in, edge[0]-in.from+1)
		case len(edge) > 0:
			near, rest = s.cut(in, in.to-edge[0]+1)
		}
	}
	const attempts = `SELECT DISTINCT call_id AS id FROM call_attempts WHERE outcome = 'done' AND call_id BETWEEN @from AND @to`
	const is = "c.status = 'done'"
	ids, err := s.query(ctx, s.eachOf(attempts, is), near, limit)
	if err != nil || len(ids) == limit || rest.empty() {
		return ids, err
	}
	more, err := s.windows(ctx, is, rest, limit-len(ids))
	return append(ids, more...), err
}

// query gives ids, in a span.
func (s *search) query(ctx context.Context, sql string, in span, limit int) ([]int64, error) {
	args := s.filter.args()
	args["from"], args["to"], args["limit"], args["queues"] = in.from, in.to, limit, s.queues
	rows, err := s.tx.Query(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

func (s *search) order() string {
	if s.up {
		return "ASC"
	}
	return "DESC"
}

const (
	failedSQL    = `c.status = 'failed' AND c.failed_at IS NOT NULL`       // call_queue_dead_idx
	cancelledSQL = `c.status = 'cancelled' AND c.cancelled_at IS NOT NULL` // call_queue_cancelled_idx

	ledgerEdgeSQL = `SELECT call_id FROM call_attempts WHERE call_id BETWEEN @from AND @to ORDER BY call_id %s OFFSET %d LIMIT @limit`
)

// inOrder leaves the way to Postgres: the ids come one after the other out of an index.
func (s *search) inOrder(are string) string {
	return `
SELECT c.id FROM call_queue c
WHERE ` + are + s.filter.whereSQL() + `
  AND c.id BETWEEN @from AND @to
ORDER BY c.id ` + s.order() + `
LIMIT @limit`
}

// oneByOne reads along the primary key.
func (s *search) oneByOne(are string) string {
	return `
SELECT c.id
FROM (
    SELECT id, status, queue, task, key, failed_at, cancelled_at FROM call_queue WHERE id BETWEEN @from AND @to
    ORDER BY id ` + s.order() + ` OFFSET 0
) c
WHERE ` + are + s.filter.whereSQL() + `
ORDER BY c.id ` + s.order() + `
LIMIT @limit`
}

// atOnce gives any that fit. Where many of all calls fit, Postgres takes it that many of the span do, and that it meets
// with them soon along the primary key: there may be none.
func (s *search) atOnce(ctx context.Context, are string, in span, limit int) ([]int64, error) {
	if _, err := s.tx.Exec(ctx, otherScansSQL, "off"); err != nil {
		return nil, err
	}
	ids, err := s.query(ctx, `
SELECT c.id
FROM (
    SELECT c.id FROM call_queue c
    WHERE `+are+s.filter.whereSQL()+`
      AND c.id BETWEEN @from AND @to
    OFFSET 0
) c
LIMIT @limit`, in, limit)
	if err != nil {
		return nil, err
	}
	_, err = s.tx.Exec(ctx, otherScansSQL, "on")
	return ids, err
}

const otherScansSQL = `SELECT set_config('enable_indexscan', $1, true), set_config('enable_seqscan', $1, true)`

// eachOf reads the calls of these ids by their primary key, until there are enough. Postgres, which cannot tell
// how many there are, might join them with all calls.
func (s *search) eachOf(ids, are string) string {
	return `
SELECT i.id
FROM (
    ` + ids + `
    ORDER BY 1 ` + s.order() + ` OFFSET 0
) i
CROSS JOIN LATERAL (SELECT id, status, queue, task, key FROM call_queue WHERE id = i.id OFFSET 0) c
WHERE ` + are + s.filter.whereSQL() + `
ORDER BY i.id ` + s.order() + `
LIMIT @limit`
}

// args are what the conditions of a filter name.
func (f Filter) args() pgx.NamedArgs {
	return pgx.NamedArgs{
		"statuses": f.Statuses, "waiting": f.waiting(), "queue": f.Queue, "task": f.Task, "key": f.Key, "ids": f.IDs,
		"before": f.Before, "after": f.After,
	}
}

// isNarrow says that call_queue_find_idx tells where the calls can be.
func (f Filter) isNarrow() bool { return f.Queue != "" || f.Task != "" || f.Key != nil }

func (f Filter) statusSQL() string {
	if len(f.Statuses) == 0 {
		return "true"
	}
	return "c.status = ANY(@statuses::text[])"
}

// whereSQL is of the calls c. An explicit NULL is the default.
func (f Filter) whereSQL() string {
	var b strings.Builder
	for _, is := range []struct{ column, value, unset string }{
		{"queue", f.Queue, "default"},
		{"task", f.Task, "http"},
	} {
		switch is.value {
		case "":
		case is.unset:
			fmt.Fprintf(&b, "\n  AND (c.%[1]s = @%[1]s::text OR c.%[1]s IS NULL)", is.column)
		default:
			fmt.Fprintf(&b, "\n  AND c.%[1]s = @%[1]s::text", is.column)
		}
	}
	switch {
	case f.Key == nil:
	case *f.Key == "":
		b.WriteString("\n  AND (c.key = '' OR c.key IS NULL)")
	default:
		b.WriteString("\n  AND c.key = @key::text")
	}
	if f.IDs != nil {
		b.WriteString("\n  AND c.id = ANY(@ids::bigint[])")
	}
	return b.String()
}
