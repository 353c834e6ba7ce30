package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// The sweepers find what a crash, a lost message or a frozen process left behind. Each is
// idempotent and acts by compare-and-set, so any number of dispatchers may run them at once.

const (
	sweepMost   = 500             // rows of one kind in one pass
	resendAfter = 5 * time.Second // since the hand-over, when Redis no longer has the message
	lostRest    = 6 * time.Second // a worker tries each second to record what ended
)

// sweeper mends one kind of thing, at most so much in one pass.
type sweeper struct {
	what  string
	run   func(context.Context) (int, error)
	count func(context.Context) (int64, error) // what run would find, if it were repeated to the end
}

func (d *Dispatcher) sweepers() []sweeper {
	return []sweeper{
		{"attempts of an older epoch", d.sweepEpoch, d.counting(overdueCountSQL + epochWhere)},
		{"lost attempts", d.sweepLost, d.counting(overdueCountSQL + lostWhere)},
		{"unstarted attempts", d.sweepUnstarted, d.counting(overdueCountSQL + unstartedWhere)},
		{"attempts that Redis lost", d.resend, d.countUnsent},
		{"expired calls", d.expire, d.counting(expiredCountSQL)},
		{"limits to open", d.openLimits, d.counting(shutCountSQL)},
		{"old usage and workers", d.tidy, nil},
	}
}

func (d *Dispatcher) sweep(ctx context.Context) error {
	var failures error
	for _, s := range d.sweepers() {
		if d.stopping.Load() {
			break
		}
		n, err := s.run(ctx)
		if err != nil {
			failures = errors.Join(failures, fmt.Errorf("sweep %s: %w", s.what, err))
		}
		if n > 0 {
			d.log.InfoContext(ctx, "swept", "what", s.what, "count", n)
			d.metrics.swept(s.what, n)
		}
	}
	return failures
}

// overdue is an open attempt that a sweeper closes.
type overdue struct {
	CallID      int64          `db:"call_id"`
	Attempt     int32          `db:"attempt"`
	Token       *int64         `db:"token"`
	Age         time.Duration  `db:"age"`          // since the start, or the claim where there was none
	SendWithin  time.Duration  `db:"send_within"`  // how long its gate stayed open
	Deadline    time.Duration  `db:"deadline"`     // from the start
	Acked       *time.Duration `db:"acked"`        // from the start; nil: its request was not seen to be acknowledged
	StartWithin time.Duration  `db:"start_within"` // of the claim
	FailedCount int            `db:"failed_count"` // of the call
	MaxAttempts int            `db:"max_attempts"`
	BackoffMin  time.Duration  `db:"backoff_min"`
	BackoffMax  time.Duration  `db:"backoff_max"`
	OnLost      string         `db:"on_lost"`
}

// overdueSQL completes a WHERE over call_open o; its arguments are the batch from which on attempts are open, and
// the calls to leave alone.
const overdueSQL = `
SELECT o.call_id, o.attempt, o.token,
    clock_timestamp() - coalesce(o.started_at, o.claimed_at) AS age,
    coalesce(o.send_within, '1 day') AS send_within,
    coalesce(o.deadline - o.started_at, '0') AS deadline,
    o.acked_at - o.started_at AS acked,
    o.start_by - o.claimed_at AS start_within,
    coalesce(q.failed_count, 0) AS failed_count,
    coalesce(q.max_attempts, r.max_attempts, 3) AS max_attempts,
    coalesce(r.backoff_min, '10 seconds') AS backoff_min,
    coalesce(r.backoff_max, '15 minutes') AS backoff_max,
    coalesce(r.on_lost, 'retry') AS on_lost
FROM (SELECT * FROM call_open WHERE batch >= $1 AND call_id <> ALL($2::bigint[]) OFFSET 0) o
LEFT JOIN call_queue q ON q.id BETWEEN o.call_id AND o.call_id
LEFT JOIN call_queues r ON r.name = o.queue
WHERE `

func (d *Dispatcher) overdue(ctx context.Context, where string) ([]overdue, error) {
	sql := overdueSQL + where + fmt.Sprintf(" ORDER BY o.call_id LIMIT %d", sweepMost)
	rows, err := d.cfg.Pool.Query(ctx, sql, d.openFrom.in(d.epoch), d.aside.now(d.cfg.Now()))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[overdue])
}

// sweepLost ends attempts whose worker let the deadline pass: frozen, cut off or dead. Their
// units stay used.
func (d *Dispatcher) sweepLost(ctx context.Context) (int, error) {
	if d.cfg.Now().Before(d.lostRest) {
		return 0, nil
	}
	rows, err := d.overdue(ctx, lostWhere)
	if err != nil {
		return 0, err
	}
	return d.close(ctx, rows, func(o overdue) ledger.Closing {
		arrival := limit.LostArrival(o.SendWithin, o.Deadline, o.Acked)
		return o.lost("the worker was lost: no outcome by the deadline", arrival, d.cfg.Random)
	})
}

const lostWhere = `o.started_at IS NOT NULL AND o.deadline < clock_timestamp()`

// sweepEpoch ends attempts that a former server, before a failover or restore, gave out. Whether one
// that is not started here had started there is unknown, so it is charged as of now; the others are
// bounded by their starts.
func (d *Dispatcher) sweepEpoch(ctx context.Context) (int, error) {
	rows, err := d.overdue(ctx, epochWhere)
	if err != nil {
		return 0, err
	}
	return d.close(ctx, rows, func(o overdue) ledger.Closing {
		arrival := limit.Arrival{Written: o.Age, Closed: o.Age}
		if o.Token != nil {
			arrival = limit.LostArrival(o.SendWithin, o.Deadline, o.Acked)
		}
		return o.lost("Postgres failed over or was restored while the attempt was open", arrival, d.cfg.Random)
	})
}

const epochWhere = `o.epoch <> (SELECT callq_epoch())`

func (o overdue) lost(why string, arrival limit.Arrival, random func(int64) int64) ledger.Closing {
	c := o.closing(callqueue.OutcomeLost, why)
	c.Arrival, c.Failed, c.Status = &arrival, true, callqueue.StatusFailed
	if o.OnLost != "fail" {
		policy := ledger.Policy{MaxAttempts: o.MaxAttempts, BackoffMin: o.BackoffMin, BackoffMax: o.BackoffMax}
		status, delay := policy.Next(o.FailedCount+1, random)
		c.Status, c.Delay = status, &delay
	}
	return c
}

func (o overdue) closing(outcome callqueue.Outcome, why string) ledger.Closing {
	c := ledger.Closing{CallID: o.CallID, Attempt: o.Attempt, Unstarted: o.Token == nil, Outcome: outcome, Error: why}
	if o.Token != nil {
		c.Token = *o.Token
	}
	return c
}

// sweepUnstarted takes back attempts that nobody started in time. That is safe at any moment, for
// a start is a compare-and-set. While no worker lives they may as well stay. So is what its queue's hours
// recall: they ended before it was started.
func (d *Dispatcher) sweepUnstarted(ctx context.Context) (int, error) {
	rows, err := d.overdue(ctx, unstartedWhere)
	if err != nil {
		return 0, err
	}
	return d.close(ctx, rows, func(o overdue) ledger.Closing {
		why := fmt.Sprintf("not sent: no worker started it within %s", startWithin)
		if o.StartWithin < startWithin {
			why = "not sent: its queue's hours ended before a worker started it"
		}
		c := o.closing(callqueue.OutcomeNotSent, why)
		c.Status = callqueue.StatusNew
		return c
	})
}

const unstartedWhere = `o.started_at IS NULL AND o.start_by < clock_timestamp()
    AND EXISTS (SELECT 1 FROM call_workers WHERE beat_at > clock_timestamp() - interval '6 seconds')`

// handed is one message whose attempts have waited too long for a start.
type handed struct {
	Pool     string  `db:"pool"`
	Task     string  `db:"task"`
	On       string  `db:"on_label"`
	Epoch    string  `db:"epoch"`
	Batch    int64   `db:"batch"`
	ParcelNo int32   `db:"parcel_no"`
	Resend   int32   `db:"resend"`
	CallIDs  []int64 `db:"call_ids"`
	Attempts []int32 `db:"attempts"`
}

// resend hands over again what Redis no longer has, under a new id: a message of the old one may yet
// turn up. No new attempt: a second delivery of the first is harmless. It is sent to a live
// pool, where the one it was meant for is gone.
func (d *Dispatcher) resend(ctx context.Context) (int, error) {
	late, err := d.unsent(ctx)
	if err != nil {
		return 0, err
	}
	var again []handoff.Message
	sent := 0
	for _, u := range late {
		message, err := d.readdress(ctx, u.handed, u.to)
		if ledger.Busy(err) {
			continue // the next sweep comes back to it
		}
		if err != nil {
			return 0, err
		}
		if len(message.Attempts) > 0 { // else another dispatcher was first, or they have started
			again = append(again, message)
			sent += len(message.Attempts)
		}
	}
	return sent, d.hand.send(ctx, again)
}

// unsent is a message that must be sent again, and to which pool.
type unsent struct {
	handed
	to string
}

func (d *Dispatcher) unsent(ctx context.Context) ([]unsent, error) {
	rows, err := d.cfg.Pool.Query(ctx, handedSQL, d.openFrom.in(d.epoch), resendAfter)
	if err != nil {
		return nil, err
	}
	late, err := pgx.CollectRows(rows, pgx.RowToStructByName[handed])
	if err != nil || len(late) == 0 {
		return nil, err
	}
	roster, err := readRoster(ctx, d.cfg.Pool, d.openFrom.in(d.epoch))
	if err != nil {
		return nil, err
	}
	var gone []unsent
	inRedis := map[string]map[string]bool{} // by pool: the ids of the messages there
	for _, h := range late {
		to := roster.on(h.On).poolFor(h.Task, h.Pool)
		if to == h.Pool {
			if inRedis[to] == nil {
				if inRedis[to], err = d.hand.pending(ctx, to); err != nil {
					return nil, err
				}
			}
			if inRedis[to][handoff.ID(h.Epoch, h.Batch, h.ParcelNo, h.Resend)] {
				continue
			}
		}
		gone = append(gone, unsent{h, to})
	}
	return gone, nil
}

const handedSQL = `
SELECT o.pool, o.task, coalesce(q.on_label, '') AS on_label, o.epoch, o.batch, o.parcel_no, o.resend,
    array_agg(o.call_id) AS call_ids, array_agg(o.attempt) AS attempts
FROM call_open o LEFT JOIN call_queues q ON q.name = o.queue
WHERE o.batch >= $1 AND o.started_at IS NULL AND o.handed_at < clock_timestamp() - $2::interval AND o.epoch = (SELECT callq_epoch())
GROUP BY 1, 2, 3, 4, 5, 6, 7
ORDER BY min(o.handed_at)`

// readdress takes the next resend number, before the message is sent: should the sending fail, a
// later sweep does not find the new number in Redis.
func (d *Dispatcher) readdress(ctx context.Context, h handed, pool string) (handoff.Message, error) {
	rows, err := d.cfg.Pool.Query(ctx, readdressSQL, pgx.StrictNamedArgs{
		"ids": h.CallIDs, "attempts": h.Attempts, "batch": h.Batch, "resend": h.Resend, "pool": pool,
	})
	if err != nil {
		return handoff.Message{}, err
	}
	refs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[handoff.Ref])
	return handoff.Message{Pool: pool, ID: handoff.ID(h.Epoch, h.Batch, h.ParcelNo, h.Resend+1), Task: h.Task, Attempts: refs}, err
}

// IS NOT DISTINCT FROM keeps call_open_batch_idx out of the plan: the rows are found by their ids.
const readdressSQL = `
WITH locked AS MATERIALIZED (
    SELECT call_id FROM call_open
    WHERE call_id = ANY(@ids) AND (SELECT set_config('lock_timeout', '100ms', true)) = '100ms'
    ORDER BY call_id FOR UPDATE
)
UPDATE call_open o
SET resend = o.resend + 1, handed_at = clock_timestamp(), pool = @pool
FROM locked l, unnest(@ids::bigint[], @attempts::int[]) AS a (call_id, attempt)
WHERE o.call_id BETWEEN l.call_id AND l.call_id AND a.call_id = l.call_id AND o.attempt = a.attempt
  AND o.batch IS NOT DISTINCT FROM @batch AND o.resend = @resend AND o.started_at IS NULL
RETURNING o.call_id, o.attempt`

// tidy removes usage and gains of the clock that no window reaches any more, and workers and dispatchers long gone. A longer window is
// counted anew from the ledger.
func (d *Dispatcher) tidy(ctx context.Context) (int, error) {
	if d.rounds%60 != 0 { // every minute or so is often enough
		return 0, nil
	}
	gained := d.gains.All() // ever: where the clock was set forward, windows reach back further
	if _, err := d.cfg.Pool.Exec(ctx, tidyUsageSQL, gained); err != nil {
		return 0, err
	}
	if _, err := d.cfg.Pool.Exec(ctx, tidyGainsSQL, gained); err != nil {
		return 0, err
	}
	if _, err := d.cfg.Pool.Exec(ctx, tidyWorkersSQL); err != nil {
		return 0, err
	}
	if _, err := d.cfg.Pool.Exec(ctx, tidyDispatchersSQL); err != nil {
		return 0, err
	}
	return d.tidyRedis(ctx)
}

// tidyRedis removes what Asynq archived, or holds for workers that died, and the queues of pools whose last
// worker and attempt are gone.
func (d *Dispatcher) tidyRedis(ctx context.Context) (int, error) {
	if d.hand.down() {
		return 0, nil
	}
	rows, err := d.cfg.Pool.Query(ctx, poolsSQL)
	if err != nil {
		return 0, err
	}
	pools, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	return d.hand.tidy(ctx, pools)
}

const poolsSQL = `SELECT pool FROM call_workers UNION SELECT pool FROM call_open`

const tidyUsageSQL = `
DELETE FROM call_usage u
USING call_limits l
WHERE u.limit_name = ANY (ARRAY[l.name]) AND u.bucket < clock_timestamp() - 2 * l.window_size - interval '1 minute' - $1::interval`

// No window of a limit that is there, or is made twice as long, reaches back further; what was set back verify asks for.
const tidyGainsSQL = `
DELETE FROM call_clock_gains
WHERE at < clock_timestamp() - 2 * (SELECT coalesce(max(window_size), '0') FROM call_limits) - $1::interval
    - CASE WHEN by > '0' THEN interval '1 day' ELSE interval '1 year' END`

const tidyWorkersSQL = `DELETE FROM call_workers WHERE beat_at < clock_timestamp() - interval '1 day'`

// A beat that lies ahead is older than the clock's last step back. One that lives is there again at its next.
const tidyDispatchersSQL = `
DELETE FROM call_dispatchers WHERE beat_at NOT BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute'`
