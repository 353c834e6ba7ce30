package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/callq/callq/internal/relay"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// claimResult says what a claim did and when the next may do more.
type claimResult struct {
	more       bool          // another claim right away may find more
	lookIn     time.Duration // when to look again, if not more
	blockedFor time.Duration // how long no unit can come free; 0: the limits have room
}

// claimBusyRetry is when a claim comes back that found a limit locked by another dispatcher, or
// the workers full.
const (
	claimBusyRetry = minGap
	claimFullRetry = 20 * time.Millisecond
	lookLater      = time.Minute // ticks come sooner
)

// candidate is a call that a claim may take. Refusal says what is wrong with it, if anything.
type candidate struct {
	ID      int64   `db:"id"`
	Task    string  `db:"task"`
	Refusal *string `db:"refusal"`
}

// claim is the claim transaction: it locks the queue's limits, counts what is occupied, and gives
// out what is left, of that and of the workers' room, to the next calls of the queue. With wait,
// it waits for locks.
//
// The commit is the point after which a crash is harmless: the attempts are open, their units
// used, and the sweepers hand over what this process no longer does. That holds too where the
// commit's outcome stays unknown, for the next claim counts under the same locks.
func (d *Dispatcher) claim(tick context.Context, queue string, wait bool) (claimResult, error) {
	ctx, cancel := context.WithTimeout(tick, claimTimeout)
	defer cancel()
	tx, err := d.cfg.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return claimResult{}, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // after Commit it does nothing

	limits, free, err := lockQueue(ctx, tx, queue, wait)
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
	if shut := shutFor(limits, now, epoch); shut > 0 {
		return claimResult{lookIn: shut, blockedFor: shut}, d.enterEpoch(ctx, tx, limits, epoch)
	}
	roster, err := readRoster(ctx, tx)
	if err != nil {
		return claimResult{}, err
	}
	want := min(claimMost, roster.room())
	if want == 0 {
		return claimResult{lookIn: claimFullRetry}, nil
	}
	room, blockedFor, err := d.headroom(ctx, tx, limits, now)
	if err != nil {
		return claimResult{}, err
	}
	if room == 0 {
		return claimResult{lookIn: blockedFor, blockedFor: blockedFor}, nil
	}
	want = min(want, room)
	batch, err := d.take(ctx, tx, queue, limits, now, epoch, want, roster)
	if err != nil {
		return claimResult{}, err
	}
	if err := tx.Commit(ctx); err != nil {
		return claimResult{}, fmt.Errorf("commit: %w", err)
	}
	d.metrics.claimed(queue, len(batch.attempts))
	if batch.refused > 0 {
		d.log.WarnContext(ctx, "calls refused", "queue", queue, "calls", batch.refused)
	}
	d.hand.over(tick, batch.parcels()) // however long the claim took

	result := claimResult{lookIn: lookLater}
	switch {
	case batch.seen < want: // the queue is empty for now; when it is not, the next look will know
		if len(batch.attempts) > 0 {
			result.lookIn = minGap
		}
	case len(batch.attempts) == room:
		result.lookIn, result.blockedFor = blockedFor, blockedFor
	default:
		result.more = true
	}
	return result, nil
}

// batch is what one claim took.
type batch struct {
	id       int64
	epoch    string
	seen     int // candidates looked at
	refused  int
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
	CallID   int64  `db:"call_id"`
	Attempt  int32  `db:"attempt"`
	ParcelNo int32  `db:"parcel_no"`
	Pool     string `db:"pool"`
}

// take picks up to want of the queue's next calls, fails what is wrong with them, and opens an
// attempt of each other.
func (d *Dispatcher) take(ctx context.Context, tx pgx.Tx, queue string, limits []lockedLimit,
	now time.Time, epoch string, want int, roster *roster,
) (*batch, error) {
	candidates, err := d.pick(ctx, tx, queue, now, want, roster.tasks())
	if err != nil {
		return nil, err
	}
	b := &batch{id: rand.Int64(), epoch: epoch, seen: len(candidates)}
	var refused []int64
	var reasons []string
	chosen := map[destination][]int64{}
	for _, c := range candidates {
		if c.Refusal != nil {
			refused, reasons = append(refused, c.ID), append(reasons, *c.Refusal)
			continue
		}
		if p := roster.choose(c.Task); p != nil {
			to := destination{p, c.Task}
			chosen[to] = append(chosen[to], c.ID)
		}
	}
	b.refused = len(refused)
	if err := refuse(ctx, tx, refused, reasons); err != nil {
		return nil, err
	}
	return b, b.open(ctx, tx, queue, limits, now, chosen)
}

func (d *Dispatcher) pick(ctx context.Context, tx pgx.Tx, queue string, now time.Time, want int, names []string) ([]candidate, error) {
	rows, err := tx.Query(ctx, pickSQL, pgx.StrictNamedArgs{
		"queue": queue, "now": now, "want": want, "tasks": names, "most": d.cfg.MaxData,
	})
	if err != nil {
		return nil, fmt.Errorf("pick calls: %w", err)
	}
	candidates, err := pgx.CollectRows(rows, pgx.RowToStructByName[candidate])
	if err != nil {
		return nil, fmt.Errorf("pick calls: %w", err)
	}
	return candidates, nil
}

// pickSQL walks call_queue_ready_idx, one priority after the other, and locks what it returns;
// what another dispatcher or a producer's transaction holds is passed over. The outer LIMIT stops
// the walk. call_data is only unpacked where its stored size could hide one over the limit
// (pglz packs at most 300 times).
const pickSQL = `
SELECT c.id, c.task, c.refusal
FROM generate_series(0, 9) AS p (priority)
CROSS JOIN LATERAL (
    SELECT q.id, coalesce(q.task, 'http') AS task,
        CASE
        WHEN q.expires_at <= @now THEN 'expired: not sent by ' || q.expires_at
        WHEN q.priority NOT BETWEEN 0 AND 9 THEN 'priority ' || q.priority || ' is not within 0 to 9'
        WHEN q.cost < 1 THEN 'cost ' || q.cost || ' is below 1'
        WHEN q.max_attempts < 1 THEN 'max_attempts ' || q.max_attempts || ' is below 1'
        WHEN octet_length(q.key) > 255 THEN 'key is longer than 255 bytes'
        WHEN pg_column_size(q.call_data) * 300 > @most::bigint AND octet_length(q.call_data::text) > @most::bigint
            THEN 'call_data has ' || octet_length(q.call_data::text) || ' bytes, over the limit of ' || @most::bigint
        END AS refusal
    FROM call_queue q
    WHERE coalesce(q.queue, 'default') = @queue
      AND least(greatest(coalesce(q.priority, 5), 0), 9) = p.priority
      AND q.ready_at <= @now
      AND coalesce(q.task, 'http') = ANY(@tasks)
    ORDER BY q.ready_at, q.id
    LIMIT @want
    FOR UPDATE OF q SKIP LOCKED
) c
LIMIT @want`

// refuse fails calls that can never be made as they are. They have no attempt and use no unit.
func refuse(ctx context.Context, tx pgx.Tx, ids []int64, reasons []string) error {
	if len(ids) == 0 {
		return nil
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
func (b *batch) open(ctx context.Context, tx pgx.Tx, queue string, limits []lockedLimit, now time.Time, chosen map[destination][]int64) error {
	var ids []int64
	var parcelNos []int32
	var pools []string
	next := int32(0)
	for to, calls := range chosen {
		k := to.pool.packing(len(calls))
		for i, id := range calls {
			if i > 0 && i%k == 0 {
				next++
			}
			ids, parcelNos, pools = append(ids, id), append(parcelNos, next), append(pools, to.pool.Name)
		}
		next++
	}
	if len(ids) == 0 {
		return nil
	}
	names := make([]string, len(limits))
	var sendWithin *time.Duration
	for i, l := range limits {
		names[i] = l.Name
		if sendWithin == nil || l.SendWithin < *sendWithin {
			sendWithin = &l.SendWithin
		}
	}
	rows, err := tx.Query(ctx, openSQL, pgx.StrictNamedArgs{
		"ids": ids, "parcel_nos": parcelNos, "pools": pools, "now": now, "queue": queue, "batch": b.id,
		"epoch": b.epoch, "limits": names, "send_within": sendWithin, "start_within": startWithin,
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
    array_fill(''::text, ARRAY[cardinality(@limits::text[])]), array_fill(1::bigint, ARRAY[cardinality(@limits::text[])])
FROM called
RETURNING call_id, attempt, parcel_no, pool`

// parcels are what carries the batch to the workers.
func (b *batch) parcels() []relay.Parcel {
	byNo := map[int32]*relay.Parcel{}
	var order []int32
	for _, a := range b.attempts {
		p := byNo[a.ParcelNo]
		if p == nil {
			p = &relay.Parcel{Pool: a.Pool, ID: relay.ID(b.epoch, b.id, a.ParcelNo, 0)}
			byNo[a.ParcelNo] = p
			order = append(order, a.ParcelNo)
		}
		p.Attempts = append(p.Attempts, relay.Ref{CallID: a.CallID, Attempt: a.Attempt})
	}
	list := make([]relay.Parcel, 0, len(order))
	for _, no := range order {
		list = append(list, *byNo[no])
	}
	return list
}
