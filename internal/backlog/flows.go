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
	rows, _ := tx.Query(ctx, walkSQL, queue, after, tasks, max)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[Flow])
	if err != nil {
		return nil, fmt.Errorf("walk the flows: %w", err)
	}
	return list, nil
}

const walkSQL = `
(` + walkFrom + ` > $2 ` + walkTo + `)
UNION ALL
(` + walkFrom + ` <= $2 ` + walkTo + `)
LIMIT $4`

// Through call_flows_active_idx, task by task.
const (
	walkFrom = `SELECT l.*
 FROM unnest($3::text[]) AS t (task)
 CROSS JOIN LATERAL (
    SELECT key, priority, task, calls, head, consumed
    FROM call_flows
    WHERE queue = $1 AND task = t.task AND wake_at IS NULL AND key`

	walkTo = `
    ORDER BY key, priority
    LIMIT $4
 ) l
 ORDER BY l.key, l.priority, l.task
 LIMIT $4`
)

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
	b.Queue(parkSQL, queue, column(parked, func(p Parked) string { return p.Key }),
		column(parked, func(p Parked) int16 { return p.Priority }),
		column(parked, func(p Parked) time.Time { return now.Add(p.For) }))
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
	keys, priorities, tasks := names(column(left, func(l Advance) Flow { return l.Flow }))
	b.Queue(consumeSQL, pgx.StrictNamedArgs{
		"queue": queue, "drop": drop, "keys": keys, "priorities": priorities, "tasks": tasks,
		"starts":   column(left, func(l Advance) int64 { return l.From }),
		"heads":    column(left, func(l Advance) int64 { return l.Head }),
		"consumed": column(left, func(l Advance) int32 { return l.Consumed }),
		"removed":  column(left, func(l Advance) int64 { return l.Removed }),
	})
}

// An empty flow stands behind its last segment. What a flow has left behind is deleted.
const consumeSQL = `
WITH a AS MATERIALIZED (
    SELECT n.key, n.priority, n.task, l.ctid AS place, l.calls - n.removed AS calls, n.start,
        CASE WHEN l.calls = n.removed THEN l.tail + 1 ELSE n.head END AS head,
        CASE WHEN l.calls = n.removed THEN 0 ELSE n.consumed END AS consumed
    FROM unnest(@keys::text[], @priorities::smallint[], @tasks::text[], @starts::bigint[], @heads::bigint[], @consumed::int[],
        @removed::bigint[]) AS n (key, priority, task, start, head, consumed, removed)
    CROSS JOIN LATERAL (
        SELECT ctid, calls, tail FROM call_flows
        WHERE queue = @queue AND key = n.key AND priority = n.priority AND task = n.task
        OFFSET 0
    ) l
), dropped AS (
    DELETE FROM call_flows l USING a WHERE l.ctid = a.place AND a.calls = 0 AND @drop
), advanced AS (
    UPDATE call_flows l
    SET calls = a.calls, head = a.head, consumed = a.consumed
    FROM a
    WHERE l.ctid = a.place AND NOT (a.calls = 0 AND @drop)
)
DELETE FROM call_segments
WHERE ctid = ANY (ARRAY(
    SELECT w.ctid
    FROM a
    CROSS JOIN LATERAL (
        SELECT ctid FROM call_segments
        WHERE queue = @queue AND key = a.key AND priority = a.priority AND task = a.task AND seq >= a.start AND seq < a.head
        OFFSET 0
    ) w))`

// names are what tells the flows of a queue apart, as arrays that a statement unnests.
func names(flows []Flow) (keys []string, priorities []int16, tasks []string) {
	return column(flows, func(f Flow) string { return f.Key }), column(flows, func(f Flow) int16 { return f.Priority }),
		column(flows, func(f Flow) string { return f.Task })
}

func column[F, V any](list []F, of func(F) V) []V {
	values := make([]V, len(list))
	for i, f := range list {
		values[i] = of(f)
	}
	return values
}
