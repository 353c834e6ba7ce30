package tasks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/outcome"
)

// Permanent ends the call as failed, whatever attempts it has left.
func Permanent(err error) error { return outcome.Permanent(err) }

// RetryAfter retries the call after d instead of its queue's backoff. It counts as a failure.
func RetryAfter(d time.Duration, err error) error { return outcome.RetryAfter(d, err) }

// Snooze puts the call off: it is made again after d, at once where d is not above 0. It is no
// failure and uses none of max_attempts; what the handler sent stays counted, and the next attempt
// uses the limits again. A call may be put off 500 times; once more is a permanent error.
func Snooze(d time.Duration) error { return outcome.Snooze(d) }

// NotSent is the handler's word that nothing reached the API: the attempt is charged to no limit
// and does not count as a failure; the call is tried again after the queue's shortest backoff. Where a request
// was written through Call.Client, it is an error like any other.
func NotSent(err error) error { return outcome.NotSent(err) }

// closing ends the attempt. arrival nil: provably never sent, so nothing is charged.
func (a *attempt) closing(how callqueue.Outcome, err error, arrival *limit.Arrival, requests *int16) *ledger.Closing {
	c := &ledger.Closing{
		CallID: a.callID, Attempt: a.number, Token: a.token, Unstarted: a.state != started, Outcome: how, Frees: a.Frees,
		Arrival: arrival, Requests: requests,
	}
	if err != nil {
		c.Error = clean(err.Error())
	}
	return c
}

// byHandler is closing by the handler's word: with its result, and the cost that it reported.
func (a *attempt) byHandler(how callqueue.Outcome, err error, arrival *limit.Arrival, requests *int16) *ledger.Closing {
	c := a.closing(how, err, arrival, requests)
	c.Result, c.Settled = a.result, a.settled
	c.Saves = a.settled != nil && *a.settled < a.Cost && arrival != nil
	return c
}

// unsent closes an attempt whose request provably never left: nothing is charged, and the call
// waits again, after about d.
func (a *attempt) unsent(err error, d time.Duration) *ledger.Closing {
	if !outcome.IsNotSent(err) {
		err = NotSent(err)
	}
	c := a.closing(callqueue.OutcomeNotSent, err, nil, nil)
	c.Status = callqueue.StatusNew
	if d > 0 {
		c.Delay = new(d/2 + rand.N(d))
	}
	return c
}

// expired closes an attempt whose call's time has passed before it was started.
func (a *attempt) expired() *ledger.Closing {
	c := a.unsent(errExpired, 0)
	c.Status = callqueue.StatusFailed
	return c
}

// ending is how an attempt ends by its handler's word.
func (a *attempt) ending(err error, arrival *limit.Arrival, requests *int16) *ledger.Closing {
	if err == nil {
		c := a.byHandler(callqueue.OutcomeDone, nil, arrival, requests)
		c.Status = callqueue.StatusDone
		return c
	}
	c := a.byHandler(callqueue.OutcomeError, err, arrival, requests)
	c.Failed = true
	if outcome.IsPermanent(err) {
		c.Outcome, c.Status = callqueue.OutcomePermanent, callqueue.StatusFailed
		return c
	}
	status, delay := a.Policy.Next(a.FailedCount+1, rand.Int64N)
	if later, ok := errors.AsType[*outcome.RetryAfterError](err); ok {
		delay = later.After
	}
	c.Status, c.Delay = status, &delay
	return c
}

// maxSnoozes is how often a call may be put off. Each time it uses its limits and adds a row to the
// ledger, so a handler that would do it for ever is stopped.
const maxSnoozes = 500

// snoozed puts the call off: no failure, though what was sent stays charged. Nil: whether it
// may be put off could not be learned before the worker ended; recovery finds the attempt.
func (a *attempt) snoozed(err *outcome.SnoozeError, arrival *limit.Arrival, requests *int16) *ledger.Closing {
	if a.number > maxSnoozes { // an earlier one cannot be one too many
		n, known := a.w.countSnoozes(a.callID)
		if !known {
			return nil
		}
		if n >= maxSnoozes {
			return a.ending(Permanent(fmt.Errorf("snoozed %d times, the most that a call may be", n)), arrival, requests)
		}
	}
	c := a.byHandler(callqueue.OutcomeSnoozed, nil, arrival, requests)
	c.Status, c.Delay = callqueue.StatusNew, &err.After
	return c
}

// countSnoozes asks until Postgres answers.
func (w *Worker) countSnoozes(call int64) (n int, known bool) {
	known = retry(w.recording, time.Second, func() error {
		ctx, cancel := context.WithTimeout(w.recording, statementTimeout)
		defer cancel()
		return w.db.QueryRow(ctx, countSnoozesSQL, call).Scan(&n)
	}, func(err error) {
		w.log.WarnContext(w.recording, "snoozes not counted", "call", call, "err", err)
	})
	return n, known
}

// The ledger's rows of a call stay as long as the call; those before an operator's retry count no longer.
// Uses the primary keys.
const countSnoozesSQL = `
SELECT count(*) FROM call_attempts
WHERE call_id = $1 AND outcome = 'snoozed'
  AND attempt > coalesce((SELECT retried_after FROM call_queue WHERE id = $1), 0)`

// clean makes an error's text fit for a text column: valid UTF-8, no NUL, at most 2,000 bytes.
func clean(text string) string {
	const most = 2000
	text = strings.ReplaceAll(text, "\x00", "")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}
