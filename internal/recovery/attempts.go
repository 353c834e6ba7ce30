package recovery

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// overdue is an open attempt that recovery closes.
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

// overdueSQL needs a condition over call_open o. Its arguments are the batch from which on attempts are open, and the calls
// to leave alone.
const overdueSQL = `
SELECT o.call_id, o.attempt, o.token,
    clock_timestamp() - coalesce(o.started_at, o.claimed_at) AS age,
    coalesce(o.send_within, '1 day') AS send_within,
    coalesce(o.deadline - o.started_at, '0') AS deadline,
    o.acked_at - o.started_at AS acked,
    o.start_by - o.claimed_at AS start_within,
    coalesce(q.failed_count, 0) AS failed_count,` + ledger.PolicySQL + `,
    ` + ledger.OnLostSQL + ` AS on_lost
FROM (SELECT * FROM call_open WHERE batch >= $1 AND call_id <> ALL($2::bigint[]) OFFSET 0) o
LEFT JOIN call_queue q ON q.id BETWEEN o.call_id AND o.call_id
LEFT JOIN call_queues r ON r.name = o.queue
WHERE `

func (r *Recoverer) overdue(ctx context.Context, v View, where string) ([]overdue, error) {
	sql := overdueSQL + where + fmt.Sprintf(" ORDER BY o.call_id LIMIT %d", passSize)
	rows, err := r.Pool.Query(ctx, sql, v.OpenFrom, r.isolated.at(r.Now()))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[overdue])
}

// closeLost closes attempts whose worker let the deadline pass: it is frozen, cut off or dead. Their units stay used.
func (r *Recoverer) closeLost(ctx context.Context, v View) (int, error) {
	if r.Now().Before(r.lostAfter) {
		return 0, nil
	}
	rows, err := r.overdue(ctx, v, lostWhere)
	if err != nil {
		return 0, err
	}
	return r.close(ctx, rows, func(o overdue) ledger.Closing {
		arrival := limit.LostArrival(o.SendWithin, o.Deadline, o.Acked)
		return o.lost("the worker was lost: no outcome by the deadline", arrival, r.Random)
	})
}

const lostWhere = `o.started_at IS NOT NULL AND o.deadline < clock_timestamp()`

// closeFormer closes attempts of a former epoch: the server before a failover or restore gave them out. Whether an attempt
// without a start had started there is unknown, so it is charged as of now. The others are bounded by their starts.
func (r *Recoverer) closeFormer(ctx context.Context, v View) (int, error) {
	rows, err := r.overdue(ctx, v, formerWhere)
	if err != nil {
		return 0, err
	}
	return r.close(ctx, rows, func(o overdue) ledger.Closing {
		arrival := limit.Arrival{Written: o.Age, Closed: o.Age}
		if o.Token != nil {
			arrival = limit.LostArrival(o.SendWithin, o.Deadline, o.Acked)
		}
		return o.lost("Postgres failed over or was restored while the attempt was open", arrival, r.Random)
	})
}

const formerWhere = `o.epoch <> (SELECT callq_epoch())`

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

// closeUnstarted takes back attempts that nobody started in time, or before their queue's hours ended. That is safe at any
// moment, because a start is a compare-and-set. While no worker is alive they stay.
func (r *Recoverer) closeUnstarted(ctx context.Context, v View) (int, error) {
	rows, err := r.overdue(ctx, v, unstartedWhere)
	if err != nil {
		return 0, err
	}
	return r.close(ctx, rows, func(o overdue) ledger.Closing {
		why := fmt.Sprintf("not sent: no worker started it within %s", ledger.StartWithin)
		if o.StartWithin < ledger.StartWithin {
			why = "not sent: its queue's hours ended before a worker started it"
		}
		c := o.closing(callqueue.OutcomeNotSent, why)
		c.Status = callqueue.StatusNew
		return c
	})
}

const unstartedWhere = `o.started_at IS NULL AND o.start_by < clock_timestamp()
    AND EXISTS (SELECT 1 FROM call_workers WHERE callq_alive(heartbeat_at))`

// overdueCountSQL needs the same conditions.
const overdueCountSQL = `SELECT count(*) FROM call_open o WHERE `
