package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pools"
	"github.com/jackc/pgx/v5"
)

// batch is what one claim took.
type batch struct {
	selection
	id        int64
	epoch     string
	more      bool // another claim may find more that can be taken now
	messageTo []destination
	opened    int // attempts that were to be opened
	attempts  []claimed
}

// destination is what the attempts of a message share, so that they can be redelivered together.
type destination struct {
	pool *pools.Pool
	task string
}

// claimed is an attempt that a claim opened.
type claimed struct {
	CallID    int64 `db:"call_id"`
	Attempt   int32 `db:"attempt"`
	MessageNo int32 `db:"message_no"`
}

// take locks the next calls of the keys that have room, a fair share each. It refuses those that can never be made, opens an attempt
// for each other call that the limits admit, and notes how far the flows were consumed.
func (c *claimer) take(ctx context.Context, tx pgx.Tx, list *candidates) (*batch, error) {
	b := &batch{id: list.queue.Batch, epoch: list.epoch}
	want := min(claimSize, list.pools.Capacity())
	var open []string
	for _, key := range list.keys {
		switch closed, shared := list.head.closed(key); {
		case shared:
			b.stuck = &held{key: key, cost: 1}
			return b, nil
		case closed:
			b.blocked = append(b.blocked, held{key: key, cost: 1})
		default:
			open = append(open, key)
		}
	}
	if err := list.lockFirst(ctx, tx, open, want, c.cfg.MaxData); err != nil {
		return nil, err
	}
	blocked := b.blocked
	var err error
	b.selection, err = list.choose(open, want, func(call *backlog.Call) error { return backlog.Read(ctx, tx, c.cfg.MaxData, call) })
	if err == nil && list.isolate {
		err = c.tryEach(ctx, tx, &b.selection)
	}
	if err != nil {
		return nil, err
	}
	b.blocked = append(b.blocked, blocked...)
	b.more = b.unfinished(open, list)

	var writes pgx.Batch
	b.refuse(&writes)
	b.open(&writes, list)
	list.note(&writes, b)
	if writes.Len() == 0 {
		return b, nil
	}
	if err := tx.SendBatch(ctx, &writes).Close(); err != nil {
		return nil, fmt.Errorf("open attempts: %w", err)
	}
	if len(b.attempts) == b.opened {
		return b, nil
	}
	return b, c.leaveOpen(ctx, tx, b)
}

// leaveOpen handles calls that somebody set to wait by hand while their attempt is open. It sets them back to dispatched: their attempt
// decides what becomes of them. The attempt cannot end before this claim, which has locked the calls.
func (c *claimer) leaveOpen(ctx context.Context, tx pgx.Tx, b *batch) error {
	var ids []int64
	for _, call := range b.chosen {
		if !slices.ContainsFunc(b.attempts, func(a claimed) bool { return a.CallID == call.ID }) {
			ids = append(ids, call.ID)
		}
	}
	left, err := tx.Exec(ctx, leaveOpenSQL, ids)
	if err != nil {
		return fmt.Errorf("leave attempts open: %w", err)
	}
	if left.RowsAffected() != int64(len(ids)) {
		return fmt.Errorf("open attempts: %d of %d locked calls were opened", len(b.attempts), b.opened)
	}
	c.cfg.Logger.WarnContext(ctx, "calls with an open attempt were set to wait", "calls", ids)
	return nil
}

const leaveOpenSQL = `
UPDATE call_queue q
SET attempts = o.attempt, dispatched_at = o.claimed_at
FROM call_open o
WHERE q.id = ANY ($1::bigint[]) AND o.call_id BETWEEN q.id AND q.id AND q.status = 'dispatched'`

// unfinished reports whether another claim right away may find more: a key with room left has further calls that a pool has capacity
// for. If it has, but a shared limit is exhausted, the batch is stuck.
func (b *batch) unfinished(keys []string, c *candidates) bool {
	if b.stuck != nil || len(b.chosen)+len(b.refused) == 0 {
		return false
	}
	blocked := map[string]bool{}
	for _, h := range b.blocked {
		blocked[h.key] = true
	}
	for _, key := range keys {
		if blocked[key] || !c.hasMore(key) {
			continue
		}
		switch closed, shared := c.head.closed(key); {
		case shared:
			b.stuck = &held{key: key, cost: 1}
			return false
		case closed:
			b.blocked = append(b.blocked, held{key: key, cost: 1})
		default:
			return true
		}
	}
	return false
}

// open writes the attempts. Each is charged to all limits of its queue.
func (b *batch) open(writes *pgx.Batch, c *candidates) {
	chosen := map[destination][]int64{}
	var order []destination
	for i, c := range b.chosen {
		to := destination{b.to[i], c.Task}
		if chosen[to] == nil {
			order = append(order, to)
		}
		chosen[to] = append(chosen[to], c.ID)
	}
	var ids []int64
	var messageNos []int
	var pools []string
	for _, to := range order {
		calls := chosen[to]
		k := to.pool.Packing(len(calls))
		for i, id := range calls {
			if i%k == 0 {
				b.messageTo = append(b.messageTo, to)
			}

			ids, messageNos, pools = append(ids, id), append(messageNos, len(b.messageTo)-1), append(pools, to.pool.Name)
		}
	}
	if len(ids) == 0 {
		return
	}
	names, perKey, countCost := []string{}, []bool{}, []bool{}
	var sendWithin, ownWithin *time.Duration
	for _, l := range c.head.limits {
		names, perKey, countCost = append(names, l.Name), append(perKey, l.PerKey), append(countCost, l.CountCost)
		if sendWithin == nil || l.SendWithin < *sendWithin {
			sendWithin = &l.SendWithin
		}
		if l.Anchor == limit.AnchorStart && (ownWithin == nil || l.SendWithin < *ownWithin) {
			ownWithin = &l.SendWithin
		}
	}
	b.opened = len(ids)
	writes.Queue(openSQL, pgx.StrictNamedArgs{
		"ids": ids, "message_nos": messageNos, "pools": pools, "now": c.now, "queue": c.queue.Name, "batch": b.id,
		"epoch": b.epoch, "limits": names, "per_key": perKey, "count_cost": countCost,
		"send_within": sendWithin, "own_within": ownWithin, "start_within": ledger.StartWithin, "closes": c.closes,
	}).Query(func(rows pgx.Rows) (err error) {
		b.attempts, err = pgx.CollectRows(rows, pgx.RowToStructByName[claimed])
		return err
	})
}

// openSQL opens attempts. backlog.First has locked the rows of call_queue in this transaction. send_within is how long the worker's
// gate stays open. A custom handler has a gate only if a limit is anchored at the start; else it may send until its deadline.
const openSQL = `
WITH picked AS (
    SELECT * FROM unnest(@ids::bigint[], @message_nos::int[], @pools::text[]) AS p (id, message_no, pool)
), called AS (
    UPDATE call_queue q
    SET status = 'dispatched', attempts = q.attempts + 1, dispatched_at = @now
    FROM picked p
    WHERE q.id BETWEEN p.id AND p.id AND q.status IN ('new', 'error')
    RETURNING q.id, q.attempts, coalesce(q.task, 'http') AS task, coalesce(q.key, '') AS key,
        coalesce(q.cost, 1) AS cost, p.message_no, p.pool
)
INSERT INTO call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, send_within,
    epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, attempts, message_no, @batch, cost, @now, @now, least(@now + @start_within::interval, @closes::timestamptz),
    CASE task WHEN 'http' THEN @send_within::interval ELSE @own_within::interval END,
    @epoch, pool, @queue, task, key, @limits::text[],
    CASE WHEN true = ANY(@per_key::bool[])
        THEN ARRAY(SELECT CASE WHEN l.per_key THEN key ELSE '' END FROM unnest(@per_key::bool[]) AS l (per_key))
        ELSE (SELECT array_fill(''::text, ARRAY[cardinality(@limits::text[])])) END,
    CASE WHEN true = ANY(@count_cost::bool[])
        THEN ARRAY(SELECT CASE WHEN l.count_cost THEN cost ELSE 1 END FROM unnest(@count_cost::bool[]) AS l (count_cost))
        ELSE (SELECT array_fill(1::bigint, ARRAY[cardinality(@limits::text[])])) END
FROM called
ON CONFLICT (call_id) DO NOTHING
RETURNING call_id, attempt, message_no`

// messages are the messages that carry the batch to the workers.
func (b *batch) messages() []handoff.Message {
	list := make([]handoff.Message, len(b.messageTo))
	for i, to := range b.messageTo {
		list[i] = handoff.Message{Pool: to.pool.Name, ID: handoff.ID(b.epoch, b.id, int32(i), 0), Task: to.task}
	}
	for _, a := range b.attempts {
		p := &list[a.MessageNo]
		p.Attempts = append(p.Attempts, handoff.Ref{CallID: a.CallID, Attempt: a.Attempt})
	}
	// Some calls had an open attempt already.
	return slices.DeleteFunc(list, func(p handoff.Message) bool { return len(p.Attempts) == 0 })
}
