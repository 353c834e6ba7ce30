package recovery

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// overdue is an open attempt that recovery closes.
type overdue struct {
	CallID      int64          `db:"call_id"`
	Attempt     int32          `db:"attempt"`
	Token       int64          `db:"token"`
	Unstarted   bool           `db:"unstarted"`
	Age         time.Duration  `db:"age"`          // since the start, or the claim where there was none
	SendWithin  time.Duration  `db:"send_within"`  // how long its gate stayed open
	Deadline    time.Duration  `db:"deadline"`     // from the start
	Acked       *time.Duration `db:"acked"`        // from the start; nil: its request was not seen to be acknowledged
	Overtaken   *time.Duration `db:"overtaken"`    // likewise, to have been read
	URL         string         `db:"url"`          // that it asked for; "": unknown
	FailedCount int            `db:"failed_count"` // of the call
	OnLost      string         `db:"on_lost"`
	ledger.Policy
}

// overdueSQL needs a condition over call_open o. Its arguments are the batch from which on attempts are open, and the calls
// to leave alone.
const overdueSQL = `
SELECT o.call_id, o.attempt, coalesce(o.token, 0) AS token, o.started_at IS NULL AS unstarted,
    clock_timestamp() - coalesce(o.started_at, o.claimed_at) AS age,
    coalesce(o.send_within, '1 day') AS send_within,
    coalesce(o.deadline - o.started_at, '0') AS deadline,
    o.acked_at - o.started_at AS acked, o.overtaken_at - o.started_at AS overtaken,
    CASE WHEN o.task = 'http' THEN coalesce(left(q.call_data ->> 'url', 4096), '') ELSE '' END AS url,
    coalesce(q.failed_count, 0) AS failed_count,` + ledger.PolicySQL + `,
    ` + ledger.OnLostSQL + ` AS on_lost
FROM (SELECT * FROM callq.call_open WHERE batch >= $1 AND call_id <> ALL($2::bigint[]) OFFSET 0) o
LEFT JOIN public.call_queue q ON q.id BETWEEN o.call_id AND o.call_id
LEFT JOIN callq.call_queues r ON r.name = o.queue
WHERE `

// overdueCountSQL needs the same conditions.
const overdueCountSQL = `SELECT count(*) FROM callq.call_open o WHERE `

// close closes the first attempts that a condition holds for. One that errs is isolated. One whose row another transaction
// holds is left to a later pass.
func (r *Recoverer) close(ctx context.Context, v View, where string, closing func(overdue) ledger.Closing) (n int, err error) {
	sql := overdueSQL + where + fmt.Sprintf(" ORDER BY o.call_id LIMIT %d", passSize)
	rows, _ := r.Pool.Query(ctx, sql, v.OpenFrom, r.leftAlone())
	closings, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ledger.Closing, error) {
		o, err := pgx.RowToStructByName[overdue](row)
		return closing(o), err
	})
	if err != nil {
		return 0, err
	}
	err = ledger.Apart(closings, func(some []ledger.Closing) error {
		closed, busy, err := ledger.CloseFree(ctx, r.Pool, some)
		for _, id := range busy { // others hold their rows; callq doctor names those that hold them for long
			r.isolated[id] = r.Now().Add(time.Second)
		}
		n += len(closed)
		return err
	}, func(c ledger.Closing, err error) { r.isolate(ctx, c.CallID, err) })
	return n, err
}

// closeLost closes attempts whose worker let the deadline pass: it is frozen, cut off or dead. Being lost frees no unit early:
// each counts until its until has left the window.
func (r *Recoverer) closeLost(ctx context.Context, v View) (int, error) {
	if r.Now().Before(r.lostAfter) {
		return 0, nil
	}
	return r.close(ctx, v, lostWhere, r.lost("the worker was lost: no outcome by the deadline"))
}

const lostWhere = `o.started_at IS NOT NULL AND o.deadline < clock_timestamp()`

// closeFormer closes attempts of a former epoch: the server before a failover or restore gave them out.
func (r *Recoverer) closeFormer(ctx context.Context, v View) (int, error) {
	return r.close(ctx, v, formerWhere, r.lost("Postgres failed over or was restored while the attempt was open"))
}

// While workers are asked whether anything is missing, these attempts are left alone: if nothing is, they go on.
const formerWhere = `o.epoch <> (SELECT callq.epoch())
    AND (SELECT verdict IS NOT NULL FROM callq.call_epochs WHERE epoch = callq.epoch())`

// lost closes attempts that may have been sent. Their starts bound them. Whether one of a former epoch without a start had
// started there is unknown, so it is charged as of now.
func (r *Recoverer) lost(why string) func(overdue) ledger.Closing {
	return func(o overdue) ledger.Closing {
		host := httptask.Host(o.URL)
		arrival := limit.LostArrival(o.SendWithin, o.Deadline, o.Acked, o.Overtaken, host != "")
		if o.Unstarted {
			arrival = limit.Arrival{Written: o.Age, Closed: o.Age, Lost: true}
		}
		c := ledger.Closing{
			CallID: o.CallID, Attempt: o.Attempt, Token: o.Token, Unstarted: o.Unstarted,
			Outcome: callqueue.OutcomeLost, Error: why, Arrival: &arrival, Host: host, Failed: true, Status: callqueue.StatusFailed,
		}
		if o.OnLost != "fail" {
			status, delay := o.Next(o.FailedCount+1, r.Random)
			c.Status, c.Delay = status, &delay
		}
		return c
	}
}

// closeUnstarted takes back attempts that were not started in time, or before their queue's hours ended. That is safe at any
// moment, because a start is a compare-and-set. While no worker is alive they stay.
func (r *Recoverer) closeUnstarted(ctx context.Context, v View) (int, error) {
	return r.close(ctx, v, unstartedWhere, func(o overdue) ledger.Closing {
		return ledger.Closing{
			CallID: o.CallID, Attempt: o.Attempt, Unstarted: true, Status: callqueue.StatusNew,
			Outcome: callqueue.OutcomeNotSent, Error: "not sent: no worker started it in time",
		}
	})
}

// One of a former epoch may have started there. A run goes back as soon as no worker has it.
const unstartedWhere = `o.started_at IS NULL AND o.epoch = (SELECT callq.epoch())
    AND (o.start_by < clock_timestamp() OR o.rooms IS NOT NULL AND o.handed_at < clock_timestamp() - interval '5 seconds'
        AND NOT EXISTS (SELECT FROM callq.call_workers w WHERE w.id = o.worker AND callq.alive(w.heartbeat_at)))
    AND EXISTS (SELECT 1 FROM callq.call_workers WHERE callq.alive(heartbeat_at))`

// prove ends the doubt about attempts without an answer. A later request to their host was answered, or one is to ask whether the
// host is back.
func (r *Recoverer) prove(ctx context.Context, _ View) (int, error) {
	proven, assumed, err := ledger.Prove(ctx, r.Pool)
	if assumed > 0 {
		r.Log.WarnContext(ctx, "requests without an answer counted as arrived, without proof", "count", assumed)
	}
	return proven + assumed, err
}
