// Package backlog finds the calls that wait, in the order in which they may be claimed.
//
// The calls of a queue that share key, priority and task are a flow. A flow keeps their ids in segments. Triggers of call_queue
// write what is inserted, or waits again, to the inbox in the same transaction; the queue's next claim drains it into the flows
// once it is due. A claim walks the flows key by key. It parks the flows of a key that no limit has room for, so that they cost
// the next claims nothing.
//
// The backlog only says where to look: whether a call waits, its own row says. So a call may be in it twice, or long after it
// was cancelled; but a call that waits must be in a flow or in the inbox. Everything here but WakeAll needs the lock of the
// queue's row.
package backlog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Flow is the calls of a queue that share key, priority and task.
type Flow struct {
	Key      string `db:"key"`
	Priority int16  `db:"priority"`
	Task     string `db:"task"`
	Calls    int64  `db:"calls"`    // not consumed; some may have ended
	Head     int64  `db:"head"`     // its first segment
	Consumed int32  `db:"consumed"` // calls of the first segment
}

// Walk returns at most max flows of these tasks that are not parked, key by key: those behind the key after, then from the
// first on. Within a key, the lower priority comes first.
func Walk(ctx context.Context, tx pgx.Tx, queue, after string, tasks []string, max int) ([]Flow, error) {
	rows, err := tx.Query(ctx, walkSQL, queue, after, tasks, max)
	if err != nil {
		return nil, fmt.Errorf("walk the flows: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[Flow])
	if err != nil {
		return nil, fmt.Errorf("walk the flows: %w", err)
	}
	return list, nil
}

// Through call_flows_active_idx, task by task.
const walkSQL = `
(SELECT l.*
 FROM unnest($3::text[]) AS t (task)
 CROSS JOIN LATERAL (
    SELECT key, priority, task, calls, head, consumed
    FROM call_flows
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
    SELECT key, priority, task, calls, head, consumed
    FROM call_flows
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

// Park leaves keys alone for a while.
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

// Here and below, a statement finds each row by its key first, then changes it by its ctid. Else Postgres might read all flows
// of the queue, on a plan that was made while there were few. Nobody moves a row meanwhile, under the lock of the queue.
const parkSQL = `
UPDATE call_flows l
SET wake_at = f.until
FROM (
    SELECT c.ctid AS place, p.until
    FROM unnest($2::text[], $3::smallint[], $4::timestamptz[]) AS p (key, priority, until)
    CROSS JOIN LATERAL (
        SELECT ctid, wake_at FROM call_flows WHERE queue = $1 AND key = p.key AND priority >= p.priority OFFSET 0
    ) c
    WHERE c.wake_at IS NULL
) f
WHERE l.ctid = f.place`

// Advance is a flow of which calls were consumed: where it stands now.
type Advance struct {
	Flow
	From    int64 // the segment at which it stood
	Removed int64 // how many calls were consumed
}

// Consume notes that calls were consumed from their flows. With drop, it removes flows that are empty then. Use that only when
// there are many flows: making one anew costs more than keeping it.
func Consume(b *pgx.Batch, queue string, left []Advance, drop bool) {
	if len(left) == 0 {
		return
	}
	var keys, tasks []string
	var priorities []int16
	var heads, from, removed []int64
	var consumed []int32
	for _, l := range left {
		keys, priorities, tasks = append(keys, l.Key), append(priorities, l.Priority), append(tasks, l.Task)
		heads, consumed = append(heads, l.Head), append(consumed, l.Consumed)
		from, removed = append(from, l.From), append(removed, l.Removed)
	}
	b.Queue(consumeSQL, queue, keys, priorities, tasks, heads, consumed, removed)
	b.Queue(discardSQL, queue, keys, priorities, tasks, from)
	if drop {
		b.Queue(dropSQL, queue, keys, priorities, tasks)
	}
}

// An empty flow stands behind its last segment.
const consumeSQL = `
UPDATE call_flows l
SET calls = l.calls - f.removed,
    head  = CASE WHEN l.calls = f.removed THEN l.tail + 1 ELSE f.head END,
    consumed = CASE WHEN l.calls = f.removed THEN 0 ELSE f.consumed END
FROM (
    SELECT c.ctid AS place, a.head, a.consumed, a.removed
    FROM unnest($2::text[], $3::smallint[], $4::text[], $5::bigint[], $6::int[], $7::bigint[]) AS a (key, priority, task, head, consumed, removed)
    CROSS JOIN LATERAL (
        SELECT ctid FROM call_flows WHERE queue = $1 AND key = a.key AND priority = a.priority AND task = a.task OFFSET 0
    ) c
) f
WHERE l.ctid = f.place`

const discardSQL = `
DELETE FROM call_segments
WHERE ctid = ANY (ARRAY(
    SELECT w.ctid
    FROM unnest($2::text[], $3::smallint[], $4::text[], $5::bigint[]) AS a (key, priority, task, head)
    CROSS JOIN LATERAL (
        SELECT head FROM call_flows WHERE queue = $1 AND key = a.key AND priority = a.priority AND task = a.task OFFSET 0
    ) l
    CROSS JOIN LATERAL (
        SELECT ctid FROM call_segments
        WHERE queue = $1 AND key = a.key AND priority = a.priority AND task = a.task AND seq >= a.head AND seq < l.head
        OFFSET 0
    ) w))`

const dropSQL = `
DELETE FROM call_flows
WHERE calls = 0 AND ctid = ANY (ARRAY(
    SELECT c.ctid
    FROM unnest($2::text[], $3::smallint[], $4::text[]) AS a (key, priority, task)
    CROSS JOIN LATERAL (
        SELECT ctid FROM call_flows WHERE queue = $1 AND key = a.key AND priority = a.priority AND task = a.task OFFSET 0
    ) c))`
