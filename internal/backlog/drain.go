package backlog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The bounds of one drain. An inbox row is one flow, or, if it has many keys, as many flows as calls.
const (
	maxFlows = 2000
	maxCalls = 50_000
	maxWakes = 1000
	maxTold  = 256 // flows in Drained.Filed
)

// Due is what a drain is to read: what fell due in a queue up to Now, from InboxSince and FlowsSince on. Zero: everything; later than
// Now: nothing.
type Due struct {
	Queue                       string
	InboxSince, FlowsSince, Now time.Time
	Known                       []Flow // few: the drain finds them at their places, without the index
}

// Drained is the result of a drain.
type Drained struct {
	Read  bool      // it read the inbox
	Some  bool      // it drained or woke something
	All   bool      // nothing else was due
	UpTo  time.Time // nothing else fell due before; zero: unknown
	Filed []Flow    // which calls were filed into, as they are now, but for those that are parked
	Else  bool      // other flows may have changed, too
}

// Drain moves what is due now from a queue's inbox into its flows, and wakes flows whose time has come. asks goes ahead in the same
// batch.
func Drain(ctx context.Context, tx DB, asks *pgx.Batch, due Due) (Drained, error) {
	t := Drained{Read: !due.InboxSince.After(due.Now), All: true}
	var inbox, woken int64
	var keys []string  // of which one may no longer be blocked
	var onward *string // nor one from this on
	if t.Read {
		asks.Queue(drainSQL, due.args()).QueryRow(func(row pgx.Row) error {
			var f columns
			err := row.Scan(&inbox, &keys, &onward, &t.All, &t.UpTo, &t.Else, &f.keys, &f.priorities, &f.tasks, &f.calls, &f.heads, &f.consumed, &f.tails, &f.places)
			t.Filed = f.flows()
			return err
		})
	}
	if !due.FlowsSince.After(due.Now) {
		asks.Queue(wakeSQL, due.Queue, nil, orAll(due.FlowsSince), due.Now, maxWakes).Exec(func(done pgconn.CommandTag) error {
			woken = done.RowsAffected()
			return nil
		})
	}
	if err := tx.SendBatch(ctx, asks).Close(); err != nil {
		return t, fmt.Errorf("look at the workers and drain the inbox: %w", err)
	}
	t.Some, t.Else = inbox+woken > 0, t.Else || woken > 0
	if woken >= maxWakes {
		t.All, t.UpTo = false, time.Time{}
	}
	if len(keys) == 0 && onward == nil {
		return t, nil
	}
	var wakes pgx.Batch
	wakes.Queue(wakeSQL, due.Queue, keys, nil, time.Time{}, 0).Exec(func(done pgconn.CommandTag) error { // no others
		t.Else = t.Else || done.RowsAffected() > 0
		return nil
	})
	if onward != nil {
		wakes.Queue(wakeOnwardSQL, due.Queue, *onward, due.Now, maxWakes)
		t.Else, t.All = true, false // perhaps
	}
	if err := tx.SendBatch(ctx, &wakes).Close(); err != nil {
		return t, fmt.Errorf("wake flows: %w", err)
	}
	return t, nil
}

// args are those of drainSQL.
func (d Due) args() pgx.StrictNamedArgs {
	return pgx.StrictNamedArgs{
		"queue": d.Queue, "since": orAll(d.InboxSince), "now": d.Now, "rows": maxFlows, "calls": maxCalls,
		"places": column(d.Known, func(f Flow) string { return f.Place }), "told": maxTold,
	}
}

// columns are flows, column by column.
type columns struct {
	keys, tasks, places []string
	priorities          []int16
	consumed            []int32
	calls, heads, tails []int64
}

func (c columns) flows() []Flow {
	list := make([]Flow, len(c.keys))
	for i := range list {
		list[i] = Flow{
			Key: c.keys[i], Priority: c.priorities[i], Task: c.tasks[i], Calls: c.calls[i],
			Head: c.heads[i], Consumed: c.consumed[i], Tail: c.tails[i], Place: c.places[i],
		}
	}
	return list
}

// orAll is nil, for the beginning of time, where a time is zero.
func orAll(since time.Time) *time.Time {
	if since.IsZero() {
		return nil
	}
	return &since
}

// drainSQL files the calls of due inbox rows into segments of their flows.
const drainSQL = `
-- While somebody holds an old snapshot, an index leads through all versions that a flow had since.
WITH known AS MATERIALIZED (
    SELECT f.*
    FROM unnest(@places::text[]) AS at (place)
    CROSS JOIN LATERAL (
        SELECT ctid AS place, key, priority, task, calls, head, consumed, tail FROM callq.call_flows
        WHERE ctid = at.place::tid AND queue = @queue OFFSET 0
    ) f
),
-- Whole rows, through call_inbox_due_idx, until they have flows or calls enough.
due AS MATERIALIZED (
    DELETE FROM callq.call_inbox
    WHERE ctid = ANY (ARRAY(
        SELECT ctid
        FROM (
            SELECT ctid, sum(calls) OVER before AS calls, sum(CASE WHEN keys IS NULL THEN 1 ELSE calls END) OVER before AS flows
            FROM callq.call_inbox
            WHERE queue = @queue AND at >= coalesce(@since::timestamptz, '-infinity') AND at <= @now
            WINDOW before AS (ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            ORDER BY at
            LIMIT @rows
        ) counted
        WHERE coalesce(calls, 0) < @calls::bigint AND coalesce(flows, 0) < @rows))
    RETURNING at, task, key, priority, calls, ids, keys, again, all_keys
),
-- What waits again, and was due before the flow's first call, goes to the front: it was claimed, and not sent.
ranked AS MATERIALIZED (
    SELECT r.key, r.priority, r.task, r.at, r.calls, r.ids || '{}'::bigint[] AS ids, r.keys, coalesce(f.front, false) AS front
    FROM due r
    LEFT JOIN known k ON r.again AND k.key = r.key AND k.priority = r.priority AND k.task = r.task
    LEFT JOIN LATERAL (
        SELECT (r.at, r.ids[1]) < (q.run_at, q.id) AS front
        FROM (
            SELECT k.head, k.consumed WHERE r.again AND k.calls > 0
            UNION ALL
            SELECT head, consumed FROM callq.call_flows
            WHERE r.again AND k.place IS NULL AND queue = @queue AND key = r.key AND priority = r.priority AND task = r.task AND calls > 0
        ) l
        CROSS JOIN LATERAL (SELECT id FROM callq.unconsumed(@queue, r.key, r.priority, r.task, l.head, l.consumed) LIMIT 1) e
        CROSS JOIN LATERAL (SELECT id, run_at FROM callq.call_effective WHERE id = e.id OFFSET 0) q
    ) f ON true
    WHERE r.ids IS NOT NULL
),
-- The calls of small rows, in segments of 256.
called AS (
    SELECT *, (row_number() OVER (PARTITION BY key, priority, task, front ORDER BY at, id) - 1) / 256 AS segment
    FROM (
        SELECT coalesce(i.key, r.key) AS key, r.priority, r.task, r.front AND r.keys IS NULL AS front, r.at, i.id
        FROM ranked r CROSS JOIN LATERAL unnest(r.ids, r.keys) AS i (id, key)
        WHERE r.keys IS NOT NULL OR r.calls < 256
    ) each
),
-- A row of 256 calls or more is cut as it is: to sort each call would cost more than all the rest.
segments AS (
    SELECT key, priority, task, front, min(at) AS at, array_agg(id ORDER BY at, id) AS ids
    FROM called
    GROUP BY key, priority, task, front, segment
    UNION ALL
    SELECT key, priority, task, front, at, ids[first:first + 255]
    FROM ranked CROSS JOIN LATERAL generate_series(1, calls, 256) AS s (first)
    WHERE keys IS NULL AND calls >= 256
),
-- Segments have numbers before their flow's head, or behind its tail.
placed AS MATERIALIZED (
    SELECT r.*, l.place, coalesce(l.head, 1) AS head, coalesce(l.consumed, 0) AS consumed, coalesce(l.tail, 0) AS tail,
        CASE WHEN r.front THEN l.head - 1 - count(*) OVER side ELSE coalesce(l.tail, 0) END + row_number() OVER (side ORDER BY r.at, r.ids[1]) AS seq
    FROM segments r
    LEFT JOIN known k ON k.key = r.key AND k.priority = r.priority AND k.task = r.task
    LEFT JOIN LATERAL (
        SELECT k.place, k.head, k.consumed, k.tail WHERE k.place IS NOT NULL
        UNION ALL
        SELECT ctid, head, consumed, tail FROM callq.call_flows
        WHERE k.place IS NULL AND queue = @queue AND key = r.key AND priority = r.priority AND task = r.task
    ) l ON true
    WINDOW side AS (PARTITION BY r.key, r.priority, r.task, r.front)
),
filed AS (
    INSERT INTO callq.call_segments (queue, key, priority, task, seq, at, ids)
    SELECT @queue, key, priority, task, seq, at, ids FROM placed
),
-- A head that no longer is the first loses what was consumed of it.
cut AS (
    UPDATE callq.call_segments w
    SET ids = w.ids[f.consumed + 1:]
    FROM (
        SELECT c.ctid AS place, p.consumed
        FROM placed p
        CROSS JOIN LATERAL (
            SELECT ctid FROM callq.call_segments
            WHERE queue = @queue AND key = p.key AND priority = p.priority AND task = p.task AND seq = p.head OFFSET 0
        ) c
        WHERE p.front AND p.seq = p.head - 1 AND p.consumed > 0
    ) f
    WHERE w.ctid = f.place
),
changed AS MATERIALIZED (
    SELECT key, priority, task, place, sum(cardinality(ids)) AS calls, least(head, min(seq)) AS head,
        CASE WHEN bool_or(front) THEN 0 ELSE consumed END AS consumed, greatest(tail, max(seq)) AS tail
    FROM placed
    GROUP BY key, priority, task, place, head, consumed, tail
),
-- A new flow is parked as long as those of its key that it may not pass.
entered AS (
    INSERT INTO callq.call_flows (queue, key, priority, task, calls, head, consumed, tail, wake_at)
    SELECT @queue, c.key, c.priority, c.task, c.calls, c.head, c.consumed, c.tail,
        (SELECT max(wake_at) FROM (
            SELECT wake_at FROM callq.call_flows WHERE queue = @queue AND key = c.key AND priority <= c.priority OFFSET 0
        ) of_key)
    FROM changed c
    WHERE c.place IS NULL
    RETURNING key, priority, task, calls, head, consumed, tail, ctid AS place, wake_at
),
grown AS (
    UPDATE callq.call_flows l
    SET calls = l.calls + c.calls, head = c.head, consumed = c.consumed, tail = c.tail
    FROM changed c
    WHERE l.ctid = c.place
    RETURNING l.key, l.priority, l.task, l.calls, l.head, l.consumed, l.tail, l.ctid AS place, l.wake_at
),
-- Which keys to wake, and whether nothing else was due.
consumed AS (
    SELECT count(*) AS inbox, max(at) AS last,
        coalesce(array_agg(key) FILTER (WHERE ids IS NULL AND NOT all_keys), '{}') AS wakes,
        min(key) FILTER (WHERE all_keys) AS onward,
        coalesce(sum(CASE WHEN keys IS NULL THEN 1 ELSE calls END), 0) < @rows
            AND coalesce(sum(calls), 0) < @calls::bigint AS whole
    FROM due
)
SELECT inbox, wakes, onward, whole, CASE WHEN whole THEN @now ELSE greatest(last, timestamptz '0001-01-01 00:00:00Z') END,
    (SELECT count(*) FROM changed) > @told, f.keys, f.priorities, f.tasks, f.calls, f.heads, f.consumed, f.tails, f.places
FROM consumed
CROSS JOIN (
    SELECT array_agg(key) AS keys, array_agg(priority) AS priorities, array_agg(task) AS tasks, array_agg(calls) AS calls,
        array_agg(head) AS heads, array_agg(consumed) AS consumed, array_agg(tail) AS tails, array_agg(place::text) AS places
    FROM (SELECT * FROM entered UNION ALL SELECT * FROM grown) l
    WHERE wake_at IS NULL AND (SELECT count(*) FROM changed) <= @told
) f`

// wakeSQL wakes all flows of some keys, and of those whose time comes first, within a span: one that was parked sooner must not
// pass one of a lower priority number.
const wakeSQL = `
UPDATE callq.call_flows SET wake_at = NULL
WHERE ctid = ANY (ARRAY(
    SELECT c.ctid
    FROM (
        SELECT key FROM unnest($2::text[]) AS w (key)
        UNION
        SELECT key FROM (
            SELECT key FROM callq.call_flows
            WHERE queue = $1 AND wake_at IS NOT NULL AND wake_at >= coalesce($3::timestamptz, '-infinity') AND wake_at <= $4
            ORDER BY wake_at
            LIMIT $5
        ) due
    ) AS k (key)
    CROSS JOIN LATERAL (SELECT ctid, wake_at FROM callq.call_flows WHERE queue = $1 AND key = k.key OFFSET 0) c
    WHERE c.wake_at IS NOT NULL))`

// wakeOnwardSQL wakes a slice of the parked flows from a key on, with all flows of the slice's last key. It enters the next key
// into the inbox, to go on from there: so it ends, though claims park again what it woke.
const wakeOnwardSQL = `
WITH slice AS MATERIALIZED (
    SELECT ctid AS place, key, wake_at FROM callq.call_flows
    WHERE queue = $1 AND key >= $2
    ORDER BY key
    FETCH FIRST ($4) ROWS WITH TIES
), woken AS (UPDATE callq.call_flows SET wake_at = NULL WHERE ctid = ANY (ARRAY(SELECT place FROM slice WHERE wake_at IS NOT NULL)))
INSERT INTO callq.call_inbox (queue, at, key, all_keys)
SELECT $1, $3, n.key, true
FROM (SELECT max(key) AS key FROM slice HAVING count(*) >= $4) last
CROSS JOIN LATERAL (SELECT key FROM callq.call_flows WHERE queue = $1 AND key > last.key ORDER BY key LIMIT 1) n`

// WakeAll makes the next drains of queues wake all their flows, slice by slice: their keys may no longer be blocked. It needs no
// lock. (closeSQL, cancelSQL and resumeSQL wake a single key.)
func WakeAll(ctx context.Context, tx pgx.Tx, queues []string) error {
	if _, err := tx.Exec(ctx, wakeAllSQL, queues); err != nil {
		return fmt.Errorf("wake flows: %w", err)
	}
	return nil
}

const wakeAllSQL = `
INSERT INTO callq.call_inbox (queue, at, key, all_keys)
SELECT DISTINCT queue, clock_timestamp(), '', true FROM unnest($1::text[]) AS q (queue)`
