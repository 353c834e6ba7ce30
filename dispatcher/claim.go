package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/lines"
	"github.com/jackc/pgx/v5"
)

// claimResult says what a claim did and when the next may do more.
type claimResult struct {
	more       bool          // another claim right away may find more
	lookIn     time.Duration // when to look again, if not more
	blockedFor time.Duration // how long nothing can be claimed, or need be; 0: the limits have room
}

// claimBusyRetry is when a claim comes back that found a limit locked by another dispatcher, or
// the workers full.
const (
	claimBusyRetry = minGap
	claimFullRetry = 20 * time.Millisecond
	lookLater      = time.Minute // ticks come sooner
)

// claimOnce is the claim transaction: it locks the queue's limits, counts what is occupied, and gives
// out what is left, of that and of the workers' room, to the next calls of the queue. With wait,
// it waits for locks. With apart, it finds the calls that spoiled the claim before it (apart.go).
//
// The commit is the point after which a crash is harmless: the attempts are open, their units
// used, and the sweepers hand over what this process no longer does. That holds too where the
// commit's answer is lost: the next claim counts under the same locks, and the sweepers hand over what was
// committed.
func (d *Dispatcher) claimOnce(tick context.Context, queue string, wait, apart bool) (claimResult, error) {
	ctx, cancel := context.WithTimeout(tick, d.claimWithin)
	defer cancel()
	tx, err := d.cfg.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return claimResult{}, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // after Commit it does nothing

	locked, err := d.lockQueue(ctx, tx, queue, wait)
	if err != nil {
		return claimResult{}, err
	}
	if locked == nil {
		return claimResult{lookIn: claimBusyRetry}, nil
	}
	now, epoch, err := d.readClock(ctx, tx)
	if err != nil {
		return claimResult{}, err
	}
	if d.openFrom.wentBack(epoch, locked.Batch) {
		_ = tx.Rollback(ctx) // whoever locks all limits must hold none
		return claimResult{lookIn: minGap}, d.restored(ctx)
	}
	if former(locked.Limits, epoch) {
		_ = tx.Rollback(ctx)
		d.epoch = ""
		return claimResult{lookIn: minGap, more: true}, d.noteEpoch(ctx, epoch)
	}
	if uncounted(locked.Limits) {
		return claimResult{lookIn: time.Second, blockedFor: time.Second}, nil
	}
	hours, err := d.hours.of(locked.Hours)
	if err != nil {
		return claimResult{}, err
	}
	taken, err := lines.Intake(ctx, tx, queue, d.reach.since(queue), now)
	if err != nil {
		return claimResult{}, err
	}
	from := d.openFrom.draw(epoch, locked.Batch)
	seen, err := d.survey(ctx, tx, queue, locked.Limits, from)
	if err != nil {
		return claimResult{}, err
	}
	var closed time.Duration
	if closed, locked.closes = closedFor(hours, now); closed > 0 {
		return d.rest(ctx, tx, queue, taken, seen, claimResult{lookIn: closed, blockedFor: closed})
	}
	if wait := d.turns.others(queue, locked.Limits, d.cfg.Now()); wait > 0 {
		return d.rest(ctx, tx, queue, taken, seen, claimResult{lookIn: wait, blockedFor: wait})
	}
	if seen.pausedFor > 0 {
		return d.rest(ctx, tx, queue, taken, seen, claimResult{lookIn: min(seen.pausedFor, lookLater)})
	}
	roster := seen.roster.on(locked.Label)
	want := min(claimMost, roster.room())
	switch {
	case len(roster.pools) == 0: // no worker carries the label
		return d.rest(ctx, tx, queue, taken, seen, claimResult{lookIn: lookLater})
	case want == 0:
		return d.rest(ctx, tx, queue, taken, seen, roster.full())
	}
	c, err := d.round(ctx, tx, locked, seen, roster, now)
	if errors.Is(err, errClockSetBack) {
		return claimResult{lookIn: minGap}, nil
	}
	if err != nil {
		return claimResult{}, err
	}
	c.apart = apart
	batch, err := d.take(ctx, tx, c, epoch, want)
	if err != nil {
		return claimResult{}, err
	}
	if err := tx.Commit(ctx); err != nil {
		return claimResult{}, fmt.Errorf("commit: %w", err)
	}
	d.took(queue, taken, seen)
	d.metrics.claimed(queue, len(batch.attempts))
	if len(batch.attempts) > 0 {
		d.served[queue] = d.rounds
	}
	if len(batch.refused) > 0 {
		d.log.WarnContext(ctx, "calls refused", "queue", queue, "calls", len(batch.refused))
	}
	d.hand.over(tick, batch.messages()) // however long the claim took

	result := batch.result(c)
	if d.turns.after(queue, c.head, batch, d.cfg.Now()) { // others may go on
		clear(d.blocked)
		result.lookIn = min(result.lookIn, minGap)
	}
	if taken.Some { // what else there is, now or later, the next look will know
		result.lookIn = min(result.lookIn, minGap)
	}
	if !taken.All && batch.stuck == nil {
		result.more = true
	}
	if result.more && roster.room() == 0 {
		result = roster.full()
	}
	result.lookIn = min(result.lookIn, c.pausedFor)
	return result, nil
}

// rest ends a claim that cannot claim anything for a while. What it took in stays so: news would pile up.
func (d *Dispatcher) rest(ctx context.Context, tx pgx.Tx, queue string, taken lines.Taken, seen *survey, result claimResult) (claimResult, error) {
	if !taken.Some {
		return result, nil
	}
	if err := tx.Commit(ctx); err != nil {
		return claimResult{}, fmt.Errorf("commit what was taken in: %w", err)
	}
	d.took(queue, taken, seen)
	result.lookIn = min(result.lookIn, minGap)
	return result, nil
}

// took notes what a claim that is committed has seen.
func (d *Dispatcher) took(queue string, taken lines.Taken, seen *survey) {
	d.reach.took(queue, taken.UpTo)
	d.openFrom.found(seen.roster.openFrom, d.clock.Last())
}

// result says when the next claim may do more than this one did.
func (b *batch) result(c *round) claimResult {
	switch {
	case b.stuck != nil:
		wait, known := c.head.wait(*b.stuck)
		if !known {
			return claimResult{lookIn: lookLater}
		}
		return claimResult{lookIn: wait, blockedFor: wait}
	case b.more:
		return claimResult{more: true}
	}
	result := claimResult{lookIn: lookLater}
	if len(b.chosen)+len(b.refused) > 0 {
		result.lookIn = minGap // the queue is empty for now; when it is not, the next look will know
	}
	for _, h := range b.blocked {
		if wait, known := c.head.wait(h); known {
			result.lookIn = min(result.lookIn, wait)
		}
	}
	return result
}

// batch is what one claim took.
type batch struct {
	served
	id       int64
	epoch    string
	more     bool          // another claim may find more that can be taken now
	to       []destination // of each message
	opened   int           // attempts that were to be opened
	attempts []claimed
}

// destination is what the attempts of a message share: they can be sent again together, to another
// pool if need be.
type destination struct {
	pool *pool
	task string
}

// claimed is an attempt that a claim opened.
type claimed struct {
	CallID   int64 `db:"call_id"`
	Attempt  int32 `db:"attempt"`
	ParcelNo int32 `db:"parcel_no"`
}

// take locks the next calls of the keys that have room, up to want in all and a fair share each, fails
// what is wrong with them, opens an attempt of each other that the limits admit, and notes in the lines
// what became of them.
func (d *Dispatcher) take(ctx context.Context, tx pgx.Tx, c *round, epoch string, want int) (*batch, error) {
	b := &batch{id: c.Batch, epoch: epoch}
	var open []string
	for _, key := range c.keys {
		switch closed, shared := c.head.closed(key); {
		case shared:
			b.stuck = &held{key: key, cost: 1}
			return b, nil
		case closed:
			b.blocked = append(b.blocked, held{key: key, cost: 1})
		default:
			open = append(open, key)
		}
	}
	if err := c.lockFirst(ctx, tx, open, want, d.cfg.MaxData); err != nil {
		return nil, err
	}
	blocked := b.blocked
	var err error
	b.served, err = c.serve(open, want, func(call *lines.Call) error { return lines.Read(ctx, tx, d.cfg.MaxData, call) })
	if err == nil && c.apart {
		err = d.tryEach(ctx, tx, &b.served)
	}
	if err != nil {
		return nil, err
	}
	b.blocked = append(b.blocked, blocked...)
	b.more = b.unfinished(open, c)

	var writes pgx.Batch
	b.refuse(&writes)
	b.open(&writes, c)
	c.note(&writes, b)
	if writes.Len() == 0 {
		return b, nil
	}
	if err := tx.SendBatch(ctx, &writes).Close(); err != nil {
		return nil, fmt.Errorf("open attempts: %w", err)
	}
	if len(b.attempts) == b.opened {
		return b, nil
	}
	return b, d.leaveOpen(ctx, tx, b)
}

// leaveOpen has calls that somebody set to wait by hand while an attempt of theirs is open be dispatched again, as they
// were: what becomes of them that attempt will say. It cannot end before this claim does, which has locked the calls.
func (d *Dispatcher) leaveOpen(ctx context.Context, tx pgx.Tx, b *batch) error {
	var ids []int64
	for _, c := range b.chosen {
		if !slices.ContainsFunc(b.attempts, func(a claimed) bool { return a.CallID == c.ID }) {
			ids = append(ids, c.ID)
		}
	}
	left, err := tx.Exec(ctx, leaveOpenSQL, ids)
	if err != nil {
		return fmt.Errorf("leave attempts open: %w", err)
	}
	if left.RowsAffected() != int64(len(ids)) {
		return fmt.Errorf("open attempts: %d of %d locked calls were opened", len(b.attempts), b.opened)
	}
	d.log.WarnContext(ctx, "calls were set to wait though an attempt of theirs is open: they are dispatched again", "calls", ids)
	return nil
}

const leaveOpenSQL = `
UPDATE call_queue q
SET attempts = o.attempt, dispatched_at = o.claimed_at
FROM call_open o
WHERE q.id = ANY ($1::bigint[]) AND o.call_id BETWEEN q.id AND q.id AND q.status = 'dispatched'`

// unfinished says whether another claim right away may find more: a key that has room left has more calls
// that a pool has room for. Where it has, and a shared limit is exhausted, the batch is stuck.
func (b *batch) unfinished(keys []string, c *round) bool {
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
func (b *batch) open(writes *pgx.Batch, c *round) {
	chosen := map[destination][]int64{}
	var order []destination
	for i, c := range b.chosen {
		to := destination{b.pools[i], c.Task}
		if chosen[to] == nil {
			order = append(order, to)
		}
		chosen[to] = append(chosen[to], c.ID)
	}
	var ids []int64
	var parcelNos []int32
	var pools []string
	for _, to := range order {
		calls := chosen[to]
		k := to.pool.packing(len(calls))
		for i, id := range calls {
			if i%k == 0 {
				b.to = append(b.to, to)
			}
			parcel := int32(len(b.to) - 1) //nolint:gosec // a claim has no more calls than workers have room
			ids, parcelNos, pools = append(ids, id), append(parcelNos, parcel), append(pools, to.pool.Name)
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
		"ids": ids, "parcel_nos": parcelNos, "pools": pools, "now": c.head.now, "queue": c.Name, "batch": b.id,
		"epoch": b.epoch, "limits": names, "per_key": perKey, "count_cost": countCost,
		"send_within": sendWithin, "own_within": ownWithin, "start_within": startWithin, "closes": c.closes,
	}).Query(func(rows pgx.Rows) (err error) {
		b.attempts, err = pgx.CollectRows(rows, pgx.RowToStructByName[claimed])
		return err
	})
}

// startWithin is how long a claimed attempt may wait for its start. Where its queue's hours end sooner, that
// is the end: nothing starts after it, whoever lives, and the sweepers take back what was handed over.
const startWithin = 30 * time.Second

// The rows of call_queue are locked by lines.First in this transaction. send_within is for how long the
// worker's gate stays open: of a handler of one's own only where a limit is anchored at the start, else it may
// send until its deadline.
const openSQL = `
WITH picked AS (
    SELECT * FROM unnest(@ids::bigint[], @parcel_nos::int[], @pools::text[]) AS p (id, parcel_no, pool)
), called AS (
    UPDATE call_queue q
    SET status = 'dispatched', attempts = q.attempts + 1, dispatched_at = @now
    FROM picked p
    WHERE q.id BETWEEN p.id AND p.id AND q.status IN ('new', 'error')
    RETURNING q.id, q.attempts, coalesce(q.task, 'http') AS task, coalesce(q.key, '') AS key,
        coalesce(q.cost, 1) AS cost, p.parcel_no, p.pool
)
INSERT INTO call_open (call_id, attempt, parcel_no, batch, cost, claimed_at, handed_at, start_by, send_within,
    epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, attempts, parcel_no, @batch, cost, @now, @now, least(@now + @start_within::interval, @closes::timestamptz),
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
RETURNING call_id, attempt, parcel_no`

// messages are what carries the batch to the workers.
func (b *batch) messages() []handoff.Message {
	list := make([]handoff.Message, len(b.to))
	for i, to := range b.to {
		list[i] = handoff.Message{Pool: to.pool.Name, ID: handoff.ID(b.epoch, b.id, int32(i), 0), Task: to.task}
	}
	for _, a := range b.attempts {
		p := &list[a.ParcelNo]
		p.Attempts = append(p.Attempts, handoff.Ref{CallID: a.CallID, Attempt: a.Attempt})
	}
	// Of some calls an attempt was open already.
	return slices.DeleteFunc(list, func(p handoff.Message) bool { return len(p.Attempts) == 0 })
}
