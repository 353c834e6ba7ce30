package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/callq/callq/internal/relay"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
	nextKeys       = 100 * time.Millisecond // when there are more keys than a claim looks at
	lookLater      = time.Minute            // ticks come sooner
)

// claim is the claim transaction: it locks the queue's limits, counts what is occupied, and gives
// out what is left, of that and of the workers' room, to the next calls of the queue. With wait,
// it waits for locks.
//
// The commit is the point after which a crash is harmless: the attempts are open, their units
// used, and the sweepers hand over what this process no longer does. That holds too where the
// commit's outcome stays unknown (unknown.go), for the next claim counts under the same locks.
func (d *Dispatcher) claim(tick context.Context, queue string, wait bool) (claimResult, error) {
	ctx, cancel := context.WithTimeout(tick, claimTimeout)
	defer cancel()
	tx, err := d.cfg.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return claimResult{}, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // after Commit it does nothing

	limits, label, free, err := lockQueue(ctx, tx, queue, wait)
	if err != nil {
		return claimResult{}, err
	}
	if !free {
		return claimResult{lookIn: claimBusyRetry}, nil
	}
	now, epoch, err := d.readClock(ctx, tx)
	if err != nil {
		return claimResult{}, err
	}
	if shut := d.shutFor(limits, now, epoch); shut > 0 {
		return claimResult{lookIn: shut, blockedFor: shut}, d.enterEpoch(ctx, tx, limits, epoch)
	}
	seen, err := d.survey(ctx, tx, queue, limits)
	if err != nil {
		return claimResult{}, err
	}
	if paused := seen.pausedFor(); paused > 0 {
		return claimResult{lookIn: min(paused, lookLater)}, nil
	}
	roster := seen.roster.on(label)
	want := min(claimMost, roster.room())
	switch {
	case len(roster.pools) == 0: // no worker carries the label
		return claimResult{lookIn: lookLater}, nil
	case want == 0:
		return roster.full(), nil
	}
	keys, pausedFor := seen.unpaused()
	head, err := d.headroom(ctx, tx, limits, keys, now)
	if errors.Is(err, errClockSetBack) {
		return claimResult{lookIn: minGap}, nil
	}
	if err != nil {
		return claimResult{}, err
	}
	batch, err := d.take(ctx, tx, queue, head, keys, epoch, want, roster)
	if err != nil {
		return claimResult{}, err
	}
	if err := batch.turn(ctx, tx, queue, seen.keys); err != nil {
		return claimResult{}, err
	}
	if err := d.commit(ctx, tick, tx, queue, batch); err != nil {
		return claimResult{}, err
	}
	d.metrics.claimed(queue, len(batch.attempts))
	if len(batch.refused) > 0 {
		d.log.WarnContext(ctx, "calls refused", "queue", queue, "calls", len(batch.refused))
	}
	d.hand.over(tick, batch.parcels()) // however long the claim took

	result := batch.result(head)
	if result.more && roster.room() == 0 {
		result = roster.full()
	}
	result.lookIn = min(result.lookIn, pausedFor)
	if len(seen.keys) == keysMost {
		result.lookIn = min(result.lookIn, nextKeys)
	}
	return result, nil
}

// turn notes where the next claim of the queue begins: after the key served last; or, where none
// of as many keys as a claim looks at could be served, with those behind.
func (b *batch) turn(ctx context.Context, tx pgx.Tx, queue string, keys []string) error {
	after := b.last
	switch {
	case len(keys) < 2:
		return nil
	case len(b.chosen) > 0:
	case len(keys) == keysMost:
		after = keys[keysMost-1]
	default:
		return nil
	}
	if _, err := tx.Exec(ctx, servedSQL, queue, after); err != nil {
		return fmt.Errorf("note the key served last: %w", err)
	}
	return nil
}

const servedSQL = `UPDATE call_queues SET served_key = $2 WHERE name = $1 AND served_key <> $2`

// result says when the next claim may do more than this one did.
func (b *batch) result(head *headroom) claimResult {
	switch {
	case b.stuck != nil:
		wait, known := head.wait(*b.stuck)
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
	for _, c := range b.blocked {
		if wait, known := head.wait(c); known {
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
	more     bool          // a key may have more that can be taken now
	to       []destination // of each parcel
	attempts []claimed
}

// destination is what the attempts of a parcel share: they can be sent again together, to another
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

// take picks the next calls of the keys that have room, up to want in all and a fair share each,
// fails what is wrong with them, and opens an attempt of each other that the limits admit.
func (d *Dispatcher) take(ctx context.Context, tx pgx.Tx, queue string, head *headroom, keys []string, epoch string,
	want int, roster *roster,
) (*batch, error) {
	b := &batch{id: d.cfg.Random(math.MaxInt64), epoch: epoch}
	var open []string
	for _, key := range keys {
		switch closed, shared := head.closed(key); {
		case shared:
			b.stuck = &held{key, 1}
			return b, nil
		case closed:
			b.blocked = append(b.blocked, held{key, 1})
		default:
			open = append(open, key)
		}
	}
	if len(open) == 0 {
		return b, nil
	}
	share := int64((want + len(open) - 1) / len(open))
	shares := make([]int64, len(open))
	for i, key := range open {
		shares[i] = min(share, head.Most(key))
	}
	candidates, err := d.pick(ctx, tx, queue, head.now, open, shares, roster.tasks())
	if err != nil {
		return nil, err
	}
	blocked := b.blocked
	b.served = serve(open, candidates, head.limits, head.Admission, roster, want)
	b.blocked = append(b.blocked, blocked...)
	b.more = b.unfinished(open, shares, candidates, head)
	if err := refuse(ctx, tx, b.refused); err != nil {
		return nil, err
	}
	return b, b.open(ctx, tx, queue, head)
}

// unfinished says whether another claim right away may find more: a key that has room left had as
// many calls as were asked for. Where it had, and a shared limit is exhausted, the batch is stuck.
func (b *batch) unfinished(keys []string, shares []int64, candidates []candidate, head *headroom) bool {
	if b.stuck != nil || len(b.chosen)+len(b.refused) == 0 {
		return false
	}
	found := map[string]int64{}
	for _, c := range candidates {
		found[c.Key]++
	}
	for _, c := range b.blocked {
		delete(found, c.key)
	}
	for i, key := range keys {
		if found[key] < shares[i] {
			continue
		}
		switch closed, shared := head.closed(key); {
		case shared:
			b.stuck = &held{key, 1}
			return false
		case closed:
			b.blocked = append(b.blocked, held{key, 1})
		default:
			return true
		}
	}
	return false
}

// refuse fails calls that can never be made as they are. They have no attempt and use no unit.
func refuse(ctx context.Context, tx pgx.Tx, calls []candidate) error {
	if len(calls) == 0 {
		return nil
	}
	ids, reasons := make([]int64, len(calls)), make([]string, len(calls))
	for i, c := range calls {
		ids[i], reasons[i] = c.ID, *c.Refusal
	}
	if _, err := tx.Exec(ctx, refuseSQL, ids, reasons); err != nil {
		return fmt.Errorf("refuse calls: %w", err)
	}
	return nil
}

const refuseSQL = `
UPDATE call_queue q
SET status = 'failed', error_message = r.reason, unique_key = NULL,
    finished_at = clock_timestamp(), failed_at = clock_timestamp()
FROM unnest($1::bigint[], $2::text[]) AS r (id, reason)
WHERE q.id = r.id AND q.status IN ('new', 'error')`

// open writes the attempts. Each is charged to all limits of its queue.
func (b *batch) open(ctx context.Context, tx pgx.Tx, queue string, head *headroom) error {
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
			ids, parcelNos, pools = append(ids, id), append(parcelNos, int32(len(b.to)-1)), append(pools, to.pool.Name)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	names, perKey, countCost := []string{}, []bool{}, []bool{}
	var sendWithin *time.Duration
	for _, l := range head.limits {
		names, perKey, countCost = append(names, l.Name), append(perKey, l.PerKey), append(countCost, l.CountCost)
		if sendWithin == nil || l.SendWithin < *sendWithin {
			sendWithin = &l.SendWithin
		}
	}
	rows, err := tx.Query(ctx, openSQL, pgx.StrictNamedArgs{
		"ids": ids, "parcel_nos": parcelNos, "pools": pools, "now": head.now, "queue": queue, "batch": b.id,
		"epoch": b.epoch, "limits": names, "per_key": perKey, "count_cost": countCost,
		"send_within": sendWithin, "start_within": startWithin,
	})
	if err != nil {
		return fmt.Errorf("open attempts: %w", err)
	}
	if b.attempts, err = pgx.CollectRows(rows, pgx.RowToStructByName[claimed]); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "23505" {
			return fmt.Errorf("open attempts: a call has an open attempt and waits all the same (%s); run callq verify", pg.Detail)
		}
		return fmt.Errorf("open attempts: %w", err)
	}
	if len(b.attempts) != len(ids) {
		return fmt.Errorf("open attempts: %d of %d locked calls were opened", len(b.attempts), len(ids))
	}
	return nil
}

// startWithin is how long a claimed attempt may wait for its start.
const startWithin = 30 * time.Second

// The rows of call_queue are locked by pickSQL in this transaction.
const openSQL = `
WITH picked AS (
    SELECT * FROM unnest(@ids::bigint[], @parcel_nos::int[], @pools::text[]) AS p (id, parcel_no, pool)
), called AS (
    UPDATE call_queue q
    SET status = 'dispatched', attempts = q.attempts + 1, dispatched_at = @now
    FROM picked p
    WHERE q.id = p.id AND q.status IN ('new', 'error')
    RETURNING q.id, q.attempts, coalesce(q.task, 'http') AS task, coalesce(q.key, '') AS key,
        coalesce(q.cost, 1) AS cost, p.parcel_no, p.pool
)
INSERT INTO call_open (call_id, attempt, parcel_no, batch, cost, claimed_at, handed_at, start_by, send_within,
    epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, attempts, parcel_no, @batch, cost, @now, @now, @now + @start_within::interval, @send_within::interval,
    @epoch, pool, @queue, task, key, @limits::text[],
    CASE WHEN true = ANY(@per_key::bool[])
        THEN ARRAY(SELECT CASE WHEN l.per_key THEN key ELSE '' END FROM unnest(@per_key::bool[]) AS l (per_key))
        ELSE (SELECT array_fill(''::text, ARRAY[cardinality(@limits::text[])])) END,
    CASE WHEN true = ANY(@count_cost::bool[])
        THEN ARRAY(SELECT CASE WHEN l.count_cost THEN cost ELSE 1 END FROM unnest(@count_cost::bool[]) AS l (count_cost))
        ELSE (SELECT array_fill(1::bigint, ARRAY[cardinality(@limits::text[])])) END
FROM called
RETURNING call_id, attempt, parcel_no`

// parcels are what carries the batch to the workers.
func (b *batch) parcels() []relay.Parcel {
	list := make([]relay.Parcel, len(b.to))
	for i, to := range b.to {
		list[i] = relay.Parcel{Pool: to.pool.Name, ID: relay.ID(b.epoch, b.id, int32(i), 0), Task: to.task}
	}
	for _, a := range b.attempts {
		p := &list[a.ParcelNo]
		p.Attempts = append(p.Attempts, relay.Ref{CallID: a.CallID, Attempt: a.Attempt})
	}
	// Of a batch that was read back some may have started, or gone, meanwhile.
	return slices.DeleteFunc(list, func(p relay.Parcel) bool { return len(p.Attempts) == 0 })
}
