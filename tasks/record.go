package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/outcome"
	"github.com/callq/callq/internal/schema"
)

// closing ends the attempt, as one that provably sent nothing: it is charged to no limit.
func (a *attempt) closing(how callqueue.Outcome, status callqueue.Status, err error) *ledger.Closing {
	c := &ledger.Closing{
		CallID: a.callID, Attempt: a.number, Token: a.token, Unstarted: !a.started, Outcome: how, Status: status, Frees: a.Frees,
	}
	if a.Epoch != "" { // it was loaded
		c.Opened = &a.Opened
	}
	if err != nil {
		c.Error = clean(err.Error())
	}
	return c
}

// sent has c charge what the attempt may have sent, with the result and the cost that its handler reported.
func (a *attempt) sent(c *ledger.Closing, arrival limit.Arrival, requests *int16) *ledger.Closing {
	c.Arrival, c.Requests, c.Result, c.Settled = &arrival, requests, a.result, a.settled
	c.Code, c.Took, c.Host = a.code, a.took, a.host
	return c
}

// unsent closes an attempt whose request provably never left: the call waits again, after about d.
func (a *attempt) unsent(err error, d time.Duration) *ledger.Closing {
	if !outcome.IsNotSent(err) {
		err = NotSent(err)
	}
	a.late = errors.Is(err, httptask.ErrTooLate)
	c := a.closing(callqueue.OutcomeNotSent, callqueue.StatusNew, err)
	if d > 0 {
		c.Delay = new(d/2 + rand.N(d))
	}
	return c
}

// unstarted closes an attempt whose start was refused so; nil: it is not ours to close.
func (a *attempt) unstarted(why error) *ledger.Closing {
	switch {
	case errors.Is(why, ledger.ErrNotOpen):
		return nil
	case errors.Is(why, ledger.ErrTooLarge), errors.Is(why, errUnreadable):
		return a.ending(Permanent(why))
	case errors.Is(why, ledger.ErrExpired):
		c := a.unsent(why, 0)
		c.Status = callqueue.StatusFailed
		return c
	}
	return a.unsent(why, 0)
}

// ending is how an attempt ends by its handler's word.
func (a *attempt) ending(err error) *ledger.Closing {
	if err == nil {
		return a.closing(callqueue.OutcomeDone, callqueue.StatusDone, nil)
	}
	snooze, snoozes := errors.AsType[*outcome.SnoozeError](err)
	if snoozes && a.snoozedTooOften() {
		snoozes, err = false, Permanent(fmt.Errorf("snoozed %d times, the most that a call may be", maxSnoozes))
	}
	if snoozes { // no failure
		c := a.closing(callqueue.OutcomeSnoozed, callqueue.StatusNew, nil)
		c.Delay = &snooze.After
		return c
	}
	if outcome.IsRefused(err) { // neither is that
		c := a.closing(callqueue.OutcomeRefused, callqueue.StatusNew, err)
		c.Delay = a.again
		return c
	}
	c := a.closing(callqueue.OutcomePermanent, callqueue.StatusFailed, err)
	c.Failed = true
	if outcome.IsPermanent(err) {
		return c
	}
	status, delay := a.Policy.Next(a.FailedCount+1, rand.Int64N)
	if later, ok := errors.AsType[*outcome.RetryAfterError](err); ok {
		delay = later.After
	}
	c.Outcome, c.Status, c.Delay = callqueue.OutcomeError, status, &delay
	return c
}

// maxSnoozes is how often a call may be put off. Each time it uses its limits and adds a row to the ledger, so a handler
// that would do it for ever is stopped.
const maxSnoozes = 500

// snoozedTooOften reports whether the call may not be put off again. Where Postgres does not say so now, it is put off,
// and asked for the next time.
func (a *attempt) snoozedTooOften() (tooOften bool) {
	if a.number <= maxSnoozes { // an earlier one cannot be one too many
		return false
	}
	ctx, cancel := context.WithTimeout(a.w.recording, statementTimeout)
	defer cancel()
	if err := a.w.db.QueryRow(ctx, snoozedSQL, a.callID, maxSnoozes).Scan(&tooOften); err != nil {
		a.w.log.WarnContext(ctx, "snoozes not counted", "call", a.callID, "err", err)
	}
	return tooOften
}

// The ledger's rows of a call stay as long as the call; those before an operator's retry count no longer.
const snoozedSQL = `
SELECT count(*) >= $2 FROM public.call_attempts
WHERE call_id = $1 AND outcome = 'snoozed'
  AND attempt > coalesce((SELECT retried_after FROM public.call_queue WHERE id = $1), 0)`

// clean makes an error's text fit for a text column: valid UTF-8, no NUL, at most 2,000 bytes.
func clean(text string) string {
	const most = 2000
	text = strings.ReplaceAll(text, "\x00", "")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}

// recorder writes the outcomes of attempts, many in a statement, and wakes dispatchers that may wait for what they free.
type recorder struct {
	closings *ledger.Batch[ledger.Closing, error] // the answer is whether the row was free
	closer   ledger.Closer
	db       schema.DB
	log      *slog.Logger
	slots    *slots       // the worker's
	ending   atomic.Int64 // outcomes that are not yet written
	wakes    chan struct{}
	unused   atomic.Bool // units among what came free were given back
	ended    ended
}

func newRecorder(db schema.DB, log *slog.Logger, s *slots) *recorder {
	r := &recorder{db: db, log: log, slots: s, wakes: make(chan struct{}, 1)}
	weigh := func(c ledger.Closing) int { return len(c.Result) }
	r.closings = ledger.NewBatch(batchSize, weigh, r.linger, func(ctx context.Context, closings []ledger.Closing) ([]error, error) {
		return r.close(ctx, closings, false)
	})
	return r
}

// linger has closes wait for those of other attempts that run, but where somebody may wait for the unit or the slot.
func (r *recorder) linger(c ledger.Closing, _ time.Time) time.Time {
	if c.Frees || frees(c) || r.slots.nearlyFull() || r.ending.Load() >= int64(len(r.slots.tokens)) {
		return time.Time{}
	}
	return time.Now().Add(lingerMost)
}

// close closes attempts. Where somebody's transaction is in the way it closes only those whose rows are free, and answers
// ErrBusy of the others; apart: so it does at once.
func (r *recorder) close(ctx context.Context, closings []ledger.Closing, apart bool) ([]error, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	var busy []int64
	var err error
	if !apart {
		_, err = r.closer.Close(ctx, r.db, closings)
	}
	if apart || ledger.Busy(err) {
		_, busy, err = ledger.CloseFree(ctx, r.db, closings)
	}
	if err != nil {
		return nil, err
	}
	r.freed(closings)
	r.ended.add(closings)
	answers := make([]error, len(closings))
	for i, c := range closings {
		if slices.Contains(busy, c.CallID) {
			answers[i] = ledger.ErrBusy
		}
	}
	return answers, nil
}

// record writes an outcome, and then calls recorded, which must not block. It waits only for a place among the outcomes to be
// written, so that no goroutine is parked for each.
//
// One that is not written then is tried until it is. Closing twice is harmless, so an unknown result is simply tried again. One
// whose row errs, or is held by somebody's transaction, is tried apart from the others, which would wait with it.
func (r *recorder) record(ctx context.Context, c ledger.Closing, recorded func()) {
	r.ending.Add(1)
	done := func() {
		recorded()
		r.ending.Add(-1)
	}
	again := func(apart bool) {
		retry(ctx, 20*time.Millisecond, func() (err error) {
			var answers []error
			if apart {
				answers, err = r.close(ctx, []ledger.Closing{c}, true)
			} else {
				answers, err = r.closings.DoAll(ctx, []ledger.Closing{c})
			}
			err = cmp.Or(err, errors.Join(answers...))
			apart = apart || errors.Is(err, ledger.ErrBusy) || ledger.Spoiled(err)
			switch {
			case ledger.BadData(err) && c.Result != nil:
				r.log.WarnContext(ctx, "result dropped", "call", c.CallID, "attempt", c.Attempt, "err", err)
				c.Result = nil // Postgres does not take it as jsonb; the outcome matters more
			case ledger.BadData(err) && utf8.RuneCountInString(c.Error) < len(c.Error):
				c.Error = strconv.QuoteToASCII(c.Error) // the database's encoding does not have it
			}
			return err
		}, func(err error) {
			r.log.WarnContext(ctx, "outcome not recorded", "call", c.CallID, "attempt", c.Attempt, "err", err)
		})
		done()
	}
	r.closings.Tell(ctx, c, func(busy, err error) {
		if err == nil && busy == nil {
			done()
		} else {
			go again(busy != nil)
		}
	})
}

// freed has the dispatchers woken when what has closed frees units of a concurrency limit, gives back units that it never used,
// or not all, or frees slots of a worker that was nearly full: they may have held back calls for want of any.
func (r *recorder) freed(closings []ledger.Closing) {
	if slices.ContainsFunc(closings, frees) {
		r.unforeseen()
	} else if r.slots.nearlyFull() || slices.ContainsFunc(closings, func(c ledger.Closing) bool { return c.Frees }) {
		r.wake()
	}
}

// frees reports whether units come free that no claim could foresee.
func frees(c ledger.Closing) bool { return c.Arrival == nil || c.Settled != nil }

// unforeseen has the dispatchers woken because units came free that no claim could foresee.
func (r *recorder) unforeseen() {
	r.unused.Store(true)
	r.wake()
}

// wake has the dispatchers woken soon.
func (r *recorder) wake() {
	select {
	case r.wakes <- struct{}{}:
	default: // one is waiting, and will be told after this
	}
}

// wakeDispatchers wakes them when there is something to tell, at most every wakeEvery: a NOTIFY
// takes a lock that all commits of its kind share.
func (r *recorder) wakeDispatchers(ctx context.Context) {
	for {
		select {
		case <-r.wakes:
		case <-ctx.Done():
			return
		}
		what := ""
		if r.unused.Swap(false) { // of a window: else dispatchers know when the next comes free
			what = callqueue.WakeFreed
		}
		r.tell(ctx, what)
		if !pause(ctx, wakeEvery) {
			return
		}
	}
}

// tell wakes the dispatchers.
func (r *recorder) tell(ctx context.Context, what string) {
	if _, err := r.db.Exec(ctx, wakeSQL, what); err != nil {
		r.log.DebugContext(ctx, "dispatchers not woken", "err", err) // their schedule will
	}
}

const wakeSQL = `SELECT pg_notify('` + callqueue.WakeChannel + `', $1)`

const wakeEvery = 5 * time.Millisecond
