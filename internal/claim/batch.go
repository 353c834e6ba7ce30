package claim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pools"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

const (
	claimSize    = 2000                  // calls in one claim
	requeueAfter = 50 * time.Millisecond // another transaction may release a call in a moment
	asideFor     = 10 * time.Second      // what costs too much is tried again
)

// batch is what one claim took.
type batch struct {
	chosen  []candidate
	refused []candidate // can never be made as they are
	aside   []int64     // cost more than a limit has while an operator's rate is in force: others of their keys go before them
	// stuck is the call that a limit shared by all keys has no room for. Small calls do not overtake a large one, or it would
	// wait for ever: the line behind it is blocked.
	stuck    *held
	blocked  []held // the next calls of keys whose own limits have no room for them
	more     bool   // another claim may find more that can be claimed now
	messages []handoff.Message
	attempts int // that were opened
	writes   pgx.Batch
}

// assemble locks the next calls of the keys that have room, a fair share each. It refuses those that can never be made, opens an
// attempt of each other call that the limits admit, and notes how far the flows were consumed. commit sends that.
func (c *Claimer) assemble(ctx context.Context, conn *schema.Conn, list *candidates, isolate bool) (*batch, error) {
	b := &batch{}
	want := min(claimSize, list.pools.Capacity()+list.head.inRuns(list.pools))
	open := b.withRoom(list, list.keys)
	if b.stuck != nil {
		c.shares.note(list, list.queue.Name, 0)
		return b, nil
	}
	if err := list.lockFirst(ctx, conn, open, want); err != nil {
		return nil, err
	}
	list.choose(b, open, want, c.Now(), c.Random)
	c.shares.note(list, list.queue.Name, len(b.chosen))
	c.runs.note(list.head, c.Now(), list.queue.Batch-c.claims)
	list.head.EndRuns()
	if isolate {
		if err := c.tryEach(ctx, conn, b); err != nil {
			return nil, err
		}
	}
	if b.stuck == nil && len(b.chosen)+len(b.refused) > 0 {
		b.more = len(b.withRoom(list, slices.DeleteFunc(open, func(key string) bool { return !b.goesOn(list, key) }))) > 0
	}

	if len(b.refused) > 0 {
		b.writes.Queue(refuseSQL, idsAndReasons(b.refused))
	}
	b.open(list)
	list.head.probed(b)
	if len(list.opened) > 0 {
		names, keys := split(list.opened)
		b.writes.Queue(openedSQL, names, keys)
	}
	list.note(b)
	return b, nil
}

// withRoom returns the keys of which a call of one unit may be claimed, and notes that the others are blocked. If that is by a
// limit which all keys share, the batch is stuck.
func (b *batch) withRoom(c *candidates, keys []string) (open []string) {
	for _, key := range keys {
		switch fits, shared := c.head.Fits(key, 1); {
		case fits:
			open = append(open, key)
		case shared:
			b.stuck = &held{key: key, cost: 1}
			return nil
		default:
			b.blocked = append(b.blocked, held{key: key, cost: 1})
		}
	}
	return open
}

// goesOn reports whether a key has further calls that a pool has capacity for, and its next one waits for no units.
func (b *batch) goesOn(c *candidates, key string) bool {
	blocked := slices.ContainsFunc(b.blocked, func(h held) bool { return h.key == key })
	return !blocked && slices.ContainsFunc(c.of[key], func(l *flow) bool {
		return c.pools.CanTake(l.Task) && l.Calls > int64(l.passed)
	})
}

// pack puts the chosen calls into messages: each has those of one pool and task, so that they can be redelivered together.
func (b *batch) pack(c *candidates) (list packed) {
	type destination struct {
		pool *pools.Pool
		task string
		run  *lane // nil: it is none
	}
	calls := map[destination][]candidate{}
	var order []destination
	for _, call := range b.chosen {
		to := destination{call.to, call.Task, nil}
		if call.lane != nil && call.lane.run {
			to.run = call.lane
		}
		if calls[to] == nil {
			order = append(order, to)
		}
		calls[to] = append(calls[to], call)
	}
	n := int32(0)
	for _, to := range order {
		size := to.pool.Packing(to.task, len(calls[to]))
		if to.run != nil {
			size = len(calls[to])
		}
		for part := range slices.Chunk(calls[to], size) {
			id := handoff.ID(c.epoch, c.queue.Batch, n, 0)
			b.messages = append(b.messages, handoff.Message{Pool: to.pool.Name, ID: id, Task: to.task, Run: to.run != nil})
			for _, call := range part {
				var rooms, gaps *string
				if to.run != nil {
					rooms, gaps = c.head.paces(call.Key, len(c.queue.Limits))
				}
				list.ids, list.messageNos, list.pools = append(list.ids, call.ID), append(list.messageNos, n), append(list.pools, to.pool.Name)
				list.ats = append(list.ats, slices.MaxFunc([]time.Time{c.now, call.at}, time.Time.Compare))
				list.rooms, list.gaps = append(list.rooms, rooms), append(list.gaps, gaps)
				list.shares = append(list.shares, c.shareNames(call.Priority))
			}
			n++
		}
	}
	return list
}

// packed is the chosen calls in the order of their messages.
type packed struct {
	ids         []int64
	messageNos  []int32
	pools       []string
	ats         []time.Time
	rooms, gaps []*string // of those in runs
	shares      []*string // of those whose limits have some
}

// open writes the attempts. Each is charged to all limits of its queue.
func (b *batch) open(c *candidates) {
	if len(b.chosen) == 0 {
		return
	}
	list := b.pack(c)
	names, perKey, countCost := []string{}, []bool{}, []bool{}
	var sendWithin, ownWithin *time.Duration
	for _, l := range c.queue.Limits {
		names, perKey, countCost = append(names, l.Name), append(perKey, l.PerKey), append(countCost, l.CountCost)
		if sendWithin == nil || l.SendWithin < *sendWithin {
			sendWithin = &l.SendWithin
		}
		if l.Anchor == limit.AnchorStart && (ownWithin == nil || l.SendWithin < *ownWithin) {
			ownWithin = &l.SendWithin
		}
	}
	b.writes.Queue(openAttemptsSQL, pgx.StrictNamedArgs{
		"ids": list.ids, "message_nos": list.messageNos, "pools": list.pools, "ats": list.ats, "rooms": list.rooms, "gaps": list.gaps, "shares": list.shares,
		"run_late": limit.RunLate, "now": c.now, "queue": c.queue.Name, "batch": c.queue.Batch,
		"epoch": c.epoch, "limits": names, "per_key": perKey, "count_cost": countCost,
		"send_within": sendWithin, "own_within": ownWithin, "start_within": ledger.StartWithin, "closes": c.closes,
	}).Query(func(rows pgx.Rows) error {
		var ref handoff.Ref
		var no int32
		var at time.Time
		_, err := pgx.ForEachRow(rows, []any{&ref.CallID, &ref.Attempt, &no, &at}, func() error {
			ref.Wait = at.Sub(c.now)
			b.messages[no].Attempts = append(b.messages[no].Attempts, ref)
			b.attempts++
			return nil
		})
		return err
	})
	if c.queue.Capped {
		b.writes.Queue(fewerWaitSQL, c.queue.Batch)
	}
}

// fewerWaitSQL notes that the calls of a claim wait no longer (callq.call_waiting).
const fewerWaitSQL = `
INSERT INTO callq.call_waiting
SELECT o.queue, e.of_key, CASE WHEN e.of_key THEN o.key ELSE '' END, -count(*)
FROM callq.call_open o
JOIN callq.call_caps c ON c.queue = o.queue
CROSS JOIN (VALUES (false), (true)) AS e (of_key)
WHERE o.batch = $1 AND (c.most_of_key IS NOT NULL OR NOT e.of_key)
GROUP BY 1, 2, 3`

// passed takes from the attempts' waits what has passed of them since the claim read Postgres's clock.
func (b *batch) passed(d time.Duration) {
	for _, m := range b.messages {
		for i := range m.Attempts {
			m.Attempts[i].Wait = max(0, m.Attempts[i].Wait-d)
		}
	}
}

// openAttemptsSQL opens attempts of calls that backlog.First has locked. What is claimed before its units come free counts as claimed
// when they do, and so starts no sooner. send_within is how long the worker's gate stays open, in a run longer, as its turn may be late. A custom
// handler has a gate only if a limit is anchored at the start; else it may send until its deadline.
//
// A call that somebody set to wait by hand while its attempt is open is set back to dispatched: its attempt decides what becomes
// of it. If that ends while this statement runs, doctor reports the call.
const openAttemptsSQL = `
WITH called AS (
    UPDATE public.call_queue q
    SET status = 'dispatched', attempts = coalesce(o.attempt, q.attempts + 1), dispatched_at = coalesce(o.claimed_at, p.at)
    FROM unnest(@ids::bigint[], @message_nos::int[], @pools::text[], @ats::timestamptz[], @rooms::text[], @gaps::text[], @shares::text[])
        AS p (id, message_no, pool, at, rooms, gaps, shares)
    LEFT JOIN callq.call_open o ON o.call_id BETWEEN p.id AND p.id
    WHERE q.id BETWEEN p.id AND p.id AND q.status IN ('new', 'error')
    RETURNING q.id, q.attempts, coalesce(q.task, 'http') AS task, coalesce(q.key, '') AS key,
        coalesce(q.cost, 1) AS cost, p.message_no, p.pool, p.at, p.rooms, p.gaps, p.shares, o.call_id IS NOT NULL AS is_open
)
INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, send_within,
    epoch, pool, queue, task, key, limits, keys, costs, rooms, gaps, shares)
SELECT id, attempts, message_no, @batch, cost, at, @now, least(@now::timestamptz + @start_within::interval, @closes::timestamptz),
    CASE task WHEN 'http' THEN @send_within::interval ELSE @own_within::interval END
        + CASE WHEN rooms IS NULL THEN interval '0' ELSE @run_late::interval END,
    @epoch, pool, @queue, task, key, @limits::text[],
    CASE WHEN true = ANY(@per_key::bool[])
        THEN ARRAY(SELECT CASE WHEN l.per_key THEN key ELSE '' END FROM unnest(@per_key::bool[]) AS l (per_key))
        ELSE (SELECT array_fill(''::text, ARRAY[cardinality(@limits::text[])])) END,
    CASE WHEN true = ANY(@count_cost::bool[])
        THEN ARRAY(SELECT CASE WHEN l.count_cost THEN cost ELSE 1 END FROM unnest(@count_cost::bool[]) AS l (count_cost))
        ELSE (SELECT array_fill(1::bigint, ARRAY[cardinality(@limits::text[])])) END,
    rooms::bigint[], gaps::interval[], shares::jsonb
FROM called
WHERE NOT is_open
RETURNING call_id, attempt, message_no, claimed_at`

// refuseSQL fails calls that can never be made as they are. They get no attempt and use no unit.
const refuseSQL = `
UPDATE public.call_queue q
SET status = 'failed', error_message = r.reason, unique_key = NULL, ended_key = unique_key,
    finished_at = clock_timestamp(), failed_at = clock_timestamp()
FROM unnest(@ids::bigint[], @reasons::text[]) AS r (id, reason)
WHERE q.id BETWEEN r.id AND r.id AND q.status IN ('new', 'error')`

// idsAndReasons are the arguments of refuseSQL and dispatchSQL.
func idsAndReasons(calls []candidate) pgx.NamedArgs {
	ids, reasons := make([]int64, len(calls)), make([]*string, len(calls))
	for i, c := range calls {
		ids[i], reasons[i] = c.ID, c.Refusal
	}
	return pgx.NamedArgs{"ids": ids, "reasons": reasons}
}

// tryEach finds the calls whose rows cannot be dispatched, and fails them with the reason. Those that cannot even be failed are
// consumed from their flows, so that they stop no other, and the log has the reason.
func (c *Claimer) tryEach(ctx context.Context, conn *schema.Conn, b *batch) (err error) {
	b.chosen, err = trial(ctx, conn, b.chosen, dispatchSQL, func(bad candidate, err error) {
		bad.Refusal = new("cannot be dispatched: " + ledger.Reason(err))
		b.refused = append(b.refused, bad)
	})
	if err != nil {
		return err
	}
	b.refused, err = trial(ctx, conn, b.refused, refuseSQL, func(bad candidate, err error) {
		c.Log.ErrorContext(ctx, "call isolated", "call", bad.ID, "why", *bad.Refusal, "err", err)
	})
	return err
}

// trial returns those of the calls to which a statement can be applied, and undoes it. The others go to bad.
func trial(
	ctx context.Context, conn *schema.Conn, calls []candidate, sql string, bad func(candidate, error),
) (fine []candidate, err error) {
	err = ledger.Apart(calls, func(some []candidate) error {
		if _, err := conn.Exec(ctx, `SAVEPOINT trial`); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, sql, idsAndReasons(some))
		if err == nil {
			fine = append(fine, some...)
		}
		_, undo := conn.Exec(ctx, `ROLLBACK TO SAVEPOINT trial`)
		return errors.Join(err, undo)
	}, bad)
	return fine, err
}

// dispatchSQL does to the calls what openAttemptsSQL does.
const dispatchSQL = `
UPDATE public.call_queue q
SET status = 'dispatched', attempts = q.attempts + 1, dispatched_at = clock_timestamp()
FROM unnest(@ids::bigint[]) AS p (id)
WHERE q.id BETWEEN p.id AND p.id AND q.status IN ('new', 'error')`
