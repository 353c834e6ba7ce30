// Package backlog finds the calls that wait, in the order in which they may be claimed.
//
// The calls of a queue that share key, priority and task are a flow, which has their ids in segments. Triggers of call_queue
// write what is inserted, or waits again, to the inbox in the same transaction; the queue's next claim drains it into the flows
// once it is due. A claim walks the flows key by key, and parks those of a key that no limit has room for.
//
// The backlog only finds calls: whether one waits, its own row decides. So a call may be in it twice, or long after it
// was cancelled; but a call that waits must be in a flow or in the inbox. Everything here but WakeAll needs the lock of the
// queue's row.
package backlog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Flow is the calls of a queue that share key, priority and task.
type Flow struct {
	Key      string `db:"key"`
	Priority int16  `db:"priority"` // 10 more: of retries, see Retries
	Task     string `db:"task"`
	Calls    int64  `db:"calls"`    // not consumed; some may have ended
	Head     int64  `db:"head"`     // its first segment
	Consumed int32  `db:"consumed"` // calls of the first segment
	Tail     int64  `db:"tail"`     // its last segment
	Place    string `db:"place"`    // its row's ctid
}

// Retries reports whether the flow has only calls in error, which a queue has where they have a share of a limit.
func (f Flow) Retries() bool { return f.Priority >= retriesFrom }

// Rank is the priority of the flow's calls.
func (f Flow) Rank() int { return int(f.Priority % retriesFrom) }

const retriesFrom = 10

// DB sends statements, in a transaction where they are to lock.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Walk returns at most max flows of these tasks that are not parked, key by key: those behind the key after, then from the first on.
// Within a key, the lower priority comes first.
func Walk(ctx context.Context, tx DB, queue, after string, tasks []string, max int) ([]Flow, error) {
	rows, _ := tx.Query(ctx, walkSQL, queue, after, tasks, max)
	flows, err := pgx.CollectRows(rows, pgx.RowToStructByName[Flow])
	if err != nil {
		return nil, fmt.Errorf("walk the flows: %w", err)
	}
	return flows, nil
}

// walkSQL goes through call_flows_active_idx, task by task.
const walkSQL = `
(SELECT l.*
 FROM unnest($3::text[]) AS t (task)
 CROSS JOIN LATERAL (
    SELECT key, priority, task, calls, head, consumed, tail, ctid::text AS place
    FROM callq.call_flows
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
    SELECT key, priority, task, calls, head, consumed, tail, ctid::text AS place
    FROM callq.call_flows
    WHERE queue = $1 AND task = t.task AND wake_at IS NULL AND key <= $2
    ORDER BY key, priority
    LIMIT $4
 ) l
 ORDER BY l.key, l.priority, l.task
 LIMIT $4)
LIMIT $4`

// Ask is how many calls are wanted of a flow.
type Ask struct {
	Flow
	Want int64
}

// Call is a call at its place in a flow.
type Call struct {
	Ask   int64 `db:"ask"` // the place in the asks
	Seq   int64 `db:"seq"` // its segment
	Place int32 `db:"place"`
	ID    int64 `db:"id"`
	// Waits means that it may be claimed, and its row is locked. Otherwise, it has ended, is not due, or held by somebody, or here
	// twice: pass it, and give it to Requeue.
	Waits   bool      `db:"waits"`
	ReadyAt time.Time `db:"ready_at"`
	Cost    int64     `db:"cost"`
	Refusal *string   `db:"refusal"` // what is wrong with it, if anything
}

// First returns the first calls of each flow, at most as many as are wanted of it, and locks those that wait. If none does, ended
// ones behind them are returned too. apart: calls in error have flows of their own.
func First(ctx context.Context, tx DB, queue string, apart bool, now time.Time, asks []Ask) ([]Call, error) {
	calls, err := entries(ctx, tx, firstSQL, queue, now, asks, pgx.StrictNamedArgs{"apart": apart})
	if err != nil {
		return nil, fmt.Errorf("lock the first calls: %w", err)
	}
	seen, found := make(map[int64]bool, len(calls)), make([]bool, len(asks))
	for i := range calls {
		c := &calls[i]
		if c.Waits = c.Waits && !seen[c.ID]; c.Waits {
			seen[c.ID], found[c.Ask] = true, true
		}
	}
	ended, err := skip(ctx, tx, queue, apart, now, asks, calls, found)
	return append(calls, ended...), err
}

// skipMost is how many ended calls a claim skips beside those that it asked for, which may be one: behind a million cancelled
// calls, it would take hours to find the next that waits.
const skipMost = 4096

// skip returns the ended calls behind the first ones, up to the first that waits, of flows of which none was found to wait.
func skip(ctx context.Context, tx DB, queue string, apart bool, now time.Time, asks []Ask, first []Call, found []bool) ([]Call, error) {
	behind := map[int64]Call{}
	for _, c := range first {
		if !found[c.Ask] {
			behind[c.Ask] = c
		}
	}
	if len(behind) == 0 {
		return nil, nil
	}
	asks = slices.Clone(asks)
	for i := range asks {
		last, some := behind[int64(i)]
		if asks[i].Want = 0; some {
			asks[i].Head, asks[i].Consumed, asks[i].Want = last.Seq, last.Place, skipMost/int64(len(behind))
		}
	}
	ended, err := entries(ctx, tx, skipSQL, queue, now, asks, pgx.StrictNamedArgs{"apart": apart})
	if err != nil {
		return nil, fmt.Errorf("skip ended calls: %w", err)
	}
	return ended, nil
}

const skipSQL = `
WITH entries AS MATERIALIZED (
    SELECT flow.n - 1 AS ask, e.seq, e.place::int AS place, e.id, flow.priority
    FROM unnest(@keys::text[], @priorities::smallint[], @tasks::text[], @heads::bigint[], @consumed::int[], @wants::bigint[])
        WITH ORDINALITY AS flow (key, priority, task, head, consumed, want, n)
    CROSS JOIN LATERAL (
        SELECT * FROM callq.unconsumed(@queue, flow.key, flow.priority, flow.task, flow.head, flow.consumed) LIMIT flow.want
    ) e
)
SELECT ask, seq, place, id
FROM (
    SELECT e.ask, e.seq, e.place, e.id, bool_or(q.id IS NOT NULL) OVER (PARTITION BY e.ask ORDER BY e.seq, e.place) AS waits
    FROM entries e
    LEFT JOIN LATERAL (
        SELECT id FROM callq.call_effective c
        WHERE id = e.id AND status IN ('new', 'error') AND run_at <= @now AND ` + placedSQL + ` OFFSET 0
    ) q ON true
) e
WHERE NOT waits
ORDER BY ask, seq, place`

// placedSQL says whether a call c waits with the priority of the flow where it was found.
const placedSQL = `callq.priority(c.priority) + CASE WHEN @apart AND c.status = 'error' THEN 10 ELSE 0 END = e.priority`

// entries runs a statement that reads the calls of asks.
func entries(ctx context.Context, tx DB, sql, queue string, now time.Time, asks []Ask, more pgx.StrictNamedArgs) ([]Call, error) {
	args := flowArgs(queue, column(asks, func(a Ask) Flow { return a.Flow }))
	maps.Copy(args, more)
	args["now"], args["wants"] = now, column(asks, func(a Ask) int64 { return a.Want })
	rows, _ := tx.Query(ctx, sql, args)
	return pgx.CollectRows(rows, pgx.RowToStructByNameLax[Call])
}

// A call that moved to another flow has an entry there too.
const firstSQL = `
WITH entries AS MATERIALIZED (
    SELECT flow.n - 1 AS ask, e.seq, e.place::int AS place, e.id, flow.key, flow.priority, flow.task
    FROM unnest(@keys::text[], @priorities::smallint[], @tasks::text[], @heads::bigint[], @consumed::int[], @wants::bigint[])
        WITH ORDINALITY AS flow (key, priority, task, head, consumed, want, n)
    CROSS JOIN LATERAL (
        SELECT * FROM callq.unconsumed(@queue, flow.key, flow.priority, flow.task, flow.head, flow.consumed) LIMIT flow.want
    ) e
)
SELECT e.ask, e.seq, e.place, e.id, q.id IS NOT NULL AS waits, coalesce(q.cost, 1) AS cost,
    greatest(q.run_at, timestamptz '0001-01-01 00:00:00Z') AS ready_at,
    CASE
    WHEN q.expires_at <= @now THEN 'expired: not sent by ' || q.expires_at
    WHEN q.priority <> callq.priority(q.priority) THEN 'priority ' || q.priority || ' is not within 0 to 9'
    WHEN q.cost < 1 THEN 'cost ' || q.cost || ' is below 1'
    WHEN q.max_attempts < 1 THEN 'max_attempts ' || q.max_attempts || ' is below 1'
    END AS refusal
FROM entries e
LEFT JOIN LATERAL (
    SELECT * FROM callq.call_effective c
    WHERE c.id = e.id
      AND c.status IN ('new', 'error')
      AND c.run_at <= @now
      AND c.queue = @queue AND c.key = e.key AND c.task = e.task
      AND ` + placedSQL + `
    FOR UPDATE SKIP LOCKED
) q ON true
ORDER BY e.ask, e.seq, e.place`

// Requeue puts calls back into the inbox that still wait, but cannot be claimed now. They are found again after a while. apart is as in
// First.
func Requeue(b *pgx.Batch, apart bool, ids []int64, after time.Duration) {
	if len(ids) > 0 {
		b.Queue(requeueSQL, ids, after, apart)
	}
}

// The clock may have been set back since a call was due.
const requeueSQL = `
INSERT INTO callq.call_inbox (queue, at, task, key, priority, calls, ids)
SELECT queue, greatest(run_at, clock_timestamp() + $2::interval), task, key, callq.priority(priority) + CASE WHEN $3 AND status = 'error' THEN 10 ELSE 0 END, 1,
    ARRAY[id]
FROM callq.call_effective
WHERE id = ANY($1::bigint[]) AND status IN ('new', 'error')`

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

// Here and below, a statement finds each row first, then changes it by its ctid. Else Postgres might read all flows of the queue, on a
// plan that was made while there were few. Under the lock of the queue, no row moves meanwhile.
const parkSQL = `
UPDATE callq.call_flows l
SET wake_at = f.until
FROM (
    SELECT c.ctid AS place, p.until
    FROM unnest($2::text[], $3::smallint[], $4::timestamptz[]) AS p (key, priority, until)
    CROSS JOIN LATERAL (SELECT ctid, wake_at FROM callq.call_flows WHERE queue = $1 AND key = p.key AND priority >= p.priority OFFSET 0) c
    WHERE c.wake_at IS NULL
) f
WHERE l.ctid = f.place`

// Consume notes where flows stand of which calls were consumed, and returns those that it has found, as they are once the batch is
// done. With drop, it removes those that are empty. Use that only when there are many flows: making one anew costs more than keeping it.
func Consume(b *pgx.Batch, queue string, left []Flow, drop bool) (done *[]Flow) {
	done = &[]Flow{}
	if len(left) == 0 {
		return done
	}
	args := flowArgs(queue, left)
	args["drop"] = drop
	args["calls"] = column(left, func(f Flow) int64 { return f.Calls })
	args["places"] = column(left, func(f Flow) string { return f.Place })
	b.Queue(consumeSQL, args).Query(func(rows pgx.Rows) (err error) {
		*done, err = pgx.CollectRows(rows, pgx.RowToStructByName[Flow])
		return err
	})
	return done
}

// An empty flow stands behind its last segment. What a flow has left behind is deleted.
const consumeSQL = `
WITH a AS MATERIALIZED (
    SELECT n.key, n.priority, n.task, n.calls, l.ctid AS place, l.head AS start,
        CASE n.calls WHEN 0 THEN l.tail + 1 ELSE n.head END AS head, CASE n.calls WHEN 0 THEN 0 ELSE n.consumed END AS consumed
    FROM unnest(@keys::text[], @priorities::smallint[], @tasks::text[], @heads::bigint[], @consumed::int[], @calls::bigint[], @places::text[])
        AS n (key, priority, task, head, consumed, calls, place)
    CROSS JOIN LATERAL (
        SELECT ctid, head, tail FROM callq.call_flows
        WHERE ctid = n.place::tid AND queue = @queue AND key = n.key AND priority = n.priority AND task = n.task
        OFFSET 0
    ) l
), dropped AS (DELETE FROM callq.call_flows l USING a WHERE l.ctid = a.place AND a.calls = 0 AND @drop), passed AS (
    DELETE FROM callq.call_segments
    WHERE ctid = ANY (ARRAY(
        SELECT w.ctid
        FROM a
        CROSS JOIN LATERAL (
            SELECT ctid FROM callq.call_segments
            WHERE queue = @queue AND key = a.key AND priority = a.priority AND task = a.task AND seq >= a.start AND seq < a.head
            OFFSET 0
        ) w))
)
UPDATE callq.call_flows l
SET calls = a.calls, head = a.head, consumed = a.consumed
FROM a
WHERE l.ctid = a.place AND NOT (a.calls = 0 AND @drop)
RETURNING l.key, l.priority, l.task, l.calls, l.head, l.consumed, l.tail, l.ctid::text AS place`

// flowArgs are the arguments of a statement that unnests flows of a queue.
func flowArgs(queue string, flows []Flow) pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"queue":      queue,
		"keys":       column(flows, func(f Flow) string { return f.Key }),
		"priorities": column(flows, func(f Flow) int16 { return f.Priority }),
		"tasks":      column(flows, func(f Flow) string { return f.Task }),
		"heads":      column(flows, func(f Flow) int64 { return f.Head }),
		"consumed":   column(flows, func(f Flow) int32 { return f.Consumed }),
	}
}

func column[F, V any](list []F, of func(F) V) []V {
	values := make([]V, len(list))
	for i, f := range list {
		values[i] = of(f)
	}
	return values
}
