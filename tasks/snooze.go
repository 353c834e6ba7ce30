package tasks

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

// snoozeMost is how often a call may be put off. Each time it uses its limits and adds a row to the
// ledger, so a handler that would do it for ever is stopped.
const snoozeMost = 500

// snoozed puts the call off for d: no failure, though what was sent stays charged. Nil: whether it
// may be put off could not be learned before the worker ended; the sweeper finds the attempt.
func (a *attempt) snoozed(err *snoozeError, arrival *limit.Arrival, requests *int16) *ledger.Closing {
	if a.number > snoozeMost { // an earlier one cannot be one too many
		n, known := a.w.countSnoozes(a.callID)
		if !known {
			return nil
		}
		if n >= snoozeMost {
			return a.ending(Permanent(fmt.Errorf("snoozed %d times, the most that a call may be", n)), arrival, requests)
		}
	}
	c := a.closing(callqueue.OutcomeSnoozed, nil)
	c.Arrival, c.Requests, c.Result = arrival, requests, a.result
	a.settleCost(c)
	c.Status, c.Delay = callqueue.StatusNew, &err.after
	return c
}

// countSnoozes asks until Postgres answers, as record does.
func (w *Worker) countSnoozes(call int64) (n int, known bool) {
	for said := false; ; said = true {
		err := w.countSnoozesOnce(call, &n)
		if err == nil {
			return n, true
		}
		if !said {
			w.log.WarnContext(w.recording, "snooze waits for Postgres", "call", call, "err", err)
		}
		if !pause(w.recording, time.Second) {
			return 0, false
		}
	}
}

func (w *Worker) countSnoozesOnce(call int64, n *int) error {
	ctx, cancel := context.WithTimeout(w.recording, statementTimeout)
	defer cancel()
	return w.cfg.Pool.QueryRow(ctx, countSnoozesSQL, call).Scan(n)
}

// The ledger's rows of a call stay as long as the call; those before an operator's retry count no longer.
// Uses the primary keys.
const countSnoozesSQL = `
SELECT count(*) FROM call_attempts
WHERE call_id = $1 AND outcome = 'snoozed'
  AND attempt > coalesce((SELECT retried_after FROM call_queue WHERE id = $1), 0)`
