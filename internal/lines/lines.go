// Package lines finds the calls that wait, in the order in which they may be claimed.
//
// Each queue has a line for each key, priority and task in which calls wait. What is inserted, or waits
// again, is news, written by triggers of call_queue in the same transaction; the queue's next claim takes
// it into the lines once it is due. A claim walks the lines key by key, and those of a key that no limit
// has room for can be parked, so that neither they nor what has ended costs the next claims anything.
//
// Lines only say where to look: whether a call waits, its own row says. So a call may be in line twice,
// or long after it was cancelled; one that waits must be in line, or in the news. Everything here but
// WakeAll needs the lock of the queue's row.
package lines

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Line is where a line stands.
type Line struct {
	Key      string `db:"key"`
	Priority int16  `db:"priority"`
	Task     string `db:"task"`
	Calls    int64  `db:"calls"` // that have not left it; some may have ended
	Head     int64  `db:"head"`  // its first chunk
	Taken    int32  `db:"taken"` // calls of that which have left
}

// Walk returns at most most lines of these tasks that are not parked, key by key: those behind the key
// after, then from the first on. Within a key, the lower priority comes first.
func Walk(ctx context.Context, tx pgx.Tx, queue, after string, tasks []string, most int) ([]Line, error) {
	rows, err := tx.Query(ctx, walkSQL, queue, after, tasks, most)
	if err != nil {
		return nil, fmt.Errorf("walk the lines: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[Line])
	if err != nil {
		return nil, fmt.Errorf("walk the lines: %w", err)
	}
	return list, nil
}

// Through call_lines_active_idx, task by task.
const walkSQL = `
(SELECT l.*
 FROM unnest($3::text[]) AS t (task)
 CROSS JOIN LATERAL (
    SELECT key, priority, task, calls, head, taken
    FROM call_lines
    WHERE queue = $1 AND task = t.task AND wake_at IS NULL AND key > $2
    ORDER BY key, priority
    LIMIT $4
 ) l
 ORDER BY l.key, l.priority, l.task
 LIMIT $4)
UNION ALL
(SELECT l.*
 FROM unnest($3::text[]) AS t (task)
 CROSS JOIN LATERAL (
    SELECT key, priority, task, calls, head, taken
    FROM call_lines
    WHERE queue = $1 AND task = t.task AND wake_at IS NULL AND key <= $2
    ORDER BY key, priority
    LIMIT $4
 ) l
 ORDER BY l.key, l.priority, l.task
 LIMIT $4)
LIMIT $4`

// Parked is a key that has no room before until, from a priority on.
type Parked struct {
	Key      string
	Priority int16
	For      time.Duration
}

// Park puts keys aside for a while.
func Park(b *pgx.Batch, queue string, now time.Time, parked []Parked) {
	if len(parked) == 0 {
		return
	}
	keys, priorities, until := make([]string, len(parked)), make([]int16, len(parked)), make([]time.Time, len(parked))
	for i, p := range parked {
		keys[i], priorities[i], until[i] = p.Key, p.Priority, now.Add(p.For)
	}
	b.Queue(parkSQL, queue, keys, priorities, until)
}

// Here and below, each row is found by its key first, then changed where it lies: else Postgres might go
// through all lines of the queue, on a plan that was made while there were few. Nobody moves a row
// meanwhile, under the lock of the queue.
const parkSQL = `
UPDATE call_lines l
SET wake_at = f.until
FROM (
    SELECT c.ctid AS place, p.until
    FROM unnest($2::text[], $3::smallint[], $4::timestamptz[]) AS p (key, priority, until)
    CROSS JOIN LATERAL (
        SELECT ctid, wake_at FROM call_lines WHERE queue = $1 AND key = p.key AND priority >= p.priority OFFSET 0
    ) c
    WHERE c.wake_at IS NULL
) f
WHERE l.ctid = f.place`

// Left is a line that calls have left: where it stands now, and how many left.
type Left struct {
	Line
	From int64 // the chunk that it stood at
	Gone int64
}

// Leave notes that calls have left their lines. Lines that are empty then go too, if drop says so: it is
// meant for times when there are many, for making a line costs more than leaving it.
func Leave(b *pgx.Batch, queue string, left []Left, drop bool) {
	if len(left) == 0 {
		return
	}
	var keys, tasks []string
	var priorities []int16
	var heads, from, gone []int64
	var taken []int32
	for _, l := range left {
		keys, priorities, tasks = append(keys, l.Key), append(priorities, l.Priority), append(tasks, l.Task)
		heads, taken = append(heads, l.Head), append(taken, l.Taken)
		from, gone = append(from, l.From), append(gone, l.Gone)
	}
	b.Queue(leaveSQL, queue, keys, priorities, tasks, heads, taken, gone)
	b.Queue(discardSQL, queue, keys, priorities, tasks, from)
	if drop {
		b.Queue(dropSQL, queue, keys, priorities, tasks)
	}
}

// A line that is empty stands behind its last chunk.
const leaveSQL = `
UPDATE call_lines l
SET calls = l.calls - f.gone,
    head  = CASE WHEN l.calls = f.gone THEN l.tail + 1 ELSE f.head END,
    taken = CASE WHEN l.calls = f.gone THEN 0 ELSE f.taken END
FROM (
    SELECT c.ctid AS place, a.head, a.taken, a.gone
    FROM unnest($2::text[], $3::smallint[], $4::text[], $5::bigint[], $6::int[], $7::bigint[]) AS a (key, priority, task, head, taken, gone)
    CROSS JOIN LATERAL (
        SELECT ctid FROM call_lines WHERE queue = $1 AND key = a.key AND priority = a.priority AND task = a.task OFFSET 0
    ) c
) f
WHERE l.ctid = f.place`

const discardSQL = `
DELETE FROM call_waiting
WHERE ctid = ANY (ARRAY(
    SELECT w.ctid
    FROM unnest($2::text[], $3::smallint[], $4::text[], $5::bigint[]) AS a (key, priority, task, head)
    CROSS JOIN LATERAL (
        SELECT head FROM call_lines WHERE queue = $1 AND key = a.key AND priority = a.priority AND task = a.task OFFSET 0
    ) l
    CROSS JOIN LATERAL (
        SELECT ctid FROM call_waiting
        WHERE queue = $1 AND key = a.key AND priority = a.priority AND task = a.task AND seq >= a.head AND seq < l.head
        OFFSET 0
    ) w))`

const dropSQL = `
DELETE FROM call_lines
WHERE calls = 0 AND ctid = ANY (ARRAY(
    SELECT c.ctid
    FROM unnest($2::text[], $3::smallint[], $4::text[]) AS a (key, priority, task)
    CROSS JOIN LATERAL (
        SELECT ctid FROM call_lines WHERE queue = $1 AND key = a.key AND priority = a.priority AND task = a.task OFFSET 0
    ) c))`
