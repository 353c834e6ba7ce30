package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// running are the attempts under way. Two loops watch them, while the worker drains too. One ends the contexts of
// cancelled calls. The other keeps attempts open that outlive their timeouts, and waits for nothing else. A call may have
// two attempts here: one that was given up as lost and still runs.
type running struct {
	db schema.DB
	mu sync.Mutex
	of map[*attempt]*progress
}

// progress is guarded by running's mu.
type progress struct {
	end      context.CancelCauseFunc
	outlives time.Time // from when on it has run for too long, and its deadline is to be put off; zero: never
}

// begin makes the context of an attempt, which the returned function ends. The attempt is under way until forget.
func (r *running) begin(ctx context.Context, a *attempt) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[a] = &progress{end: end}
	return ctx, func() { end(nil) }
}

func (r *running) forget(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, a)
}

// endCancelled ends the contexts of calls that have been cancelled. It asks rather than listens: that works through any
// pooler, and misses nothing.
func (r *running) endCancelled(ctx context.Context) error {
	var calls []int64
	r.mu.Lock()
	for a := range r.of {
		calls = append(calls, a.callID)
	}
	r.mu.Unlock()
	if len(calls) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, _ := r.db.Query(ctx, cancelledSQL, calls) // CollectRows returns its error
	cancelled, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("ask for cancelled calls: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, p := range r.of {
		if slices.Contains(cancelled, a.callID) {
			p.end(ErrCancelled)
		}
	}
	return nil
}

const cancelledSQL = `SELECT id FROM public.call_queue WHERE id = ANY($1::bigint[]) AND status = 'cancelled'`

// asCancelled is how an attempt ends whose context ErrCancelled ended: cancelled, unless it is done all
// the same. It stays charged for what it may have sent.
func asCancelled(ctx context.Context, c *ledger.Closing) {
	if c.Outcome == callqueue.OutcomeDone || !errors.Is(context.Cause(ctx), ErrCancelled) {
		return
	}
	c.Outcome, c.Status = callqueue.OutcomeCancelled, callqueue.StatusCancelled
	c.Failed, c.Delay = false, nil
}

const (
	outliveEvery = 500 * time.Millisecond // half of the second between the timeout and the deadline
	outliveAgain = 10 * time.Second       // of the 30 s that the deadline is put off for
)

// outlivesFrom sets from when on the attempt, if it is still under way, has outlived its timeout.
func (r *running) outlivesFrom(a *attempt, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.of[a]; ok {
		p.outlives = at
	}
}

// vouched are the attempts that have started.
func (r *running) vouched() (list []ledger.Vouched) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, p := range r.of {
		if !p.outlives.IsZero() {
			list = append(list, ledger.Vouched{
				CallID: a.callID, Attempt: a.number, Token: a.token, StartedAt: a.From, Within: a.Timeout + time.Second,
			})
		}
	}
	return list
}

// keepOpen puts off the deadlines of attempts that outlive their timeouts. A handler that does not return when its
// context ends may still send. So its attempt stays open, and its units occupied, for as long as its worker is alive. So
// does an attempt whose outcome waits to be recorded, for somebody's transaction say: the call would be made again.
func (r *running) keepOpen(ctx context.Context) error {
	var list []*attempt
	var open []ledger.Running
	r.mu.Lock()
	for a, p := range r.of {
		if !p.outlives.IsZero() && time.Now().After(p.outlives) {
			list = append(list, a)
			open = append(open, ledger.Running{CallID: a.callID, Attempt: a.number, Token: a.token})
		}
	}
	r.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	kept, err := ledger.KeepOpen(ctx, r.db, open)
	for _, a := range list {
		if slices.Contains(kept, a.callID) { // else somebody has its lock, or it is closed
			r.outlivesFrom(a, time.Now().Add(outliveAgain))
		}
	}
	return err
}
