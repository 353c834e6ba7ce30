package tasks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// ErrCancelled is the cause (context.Cause) with which a handler's context ends when its call is
// cancelled.
var ErrCancelled = errors.New("the call was cancelled")

// contexts are those of the attempts under way, so that they can be ended when their calls are
// cancelled. A call may have two here: one that was given up as lost and still runs.
type contexts struct {
	mu sync.Mutex
	of map[*attempt]underWay
}

type underWay struct {
	end context.CancelCauseFunc
	// outlived is from when on its handler has run for too long, and what is to be done about it is due; zero: never.
	outlived time.Time
	returned bool // its handler has; what is left is to record how it ended
}

// begin makes the context of an attempt, which the returned function ends. The attempt is under way until forget.
func (c *contexts) begin(ctx context.Context, a *attempt) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[a] = underWay{end: end}
	return ctx, func() {
		end(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		if u, ok := c.of[a]; ok {
			u.returned = true
			c.of[a] = u
		}
	}
}

func (c *contexts) forget(a *attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, a)
}

func (c *contexts) calls() []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]int64, 0, len(c.of))
	for a := range c.of {
		ids = append(ids, a.callID)
	}
	return ids
}

func (c *contexts) cancel(calls []int64) {
	cancelled := make(map[int64]bool, len(calls))
	for _, id := range calls {
		cancelled[id] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for a, u := range c.of {
		if cancelled[a.callID] {
			u.end(ErrCancelled)
		}
	}
}

// hearCancels asks, every beatEvery, which calls under way have been cancelled, while it drains too.
// It asks rather than listens: that works through any pooler, and misses nothing.
func (w *Worker) hearCancels(ctx context.Context) {
	for pause(ctx, beatEvery) {
		if calls := w.contexts.calls(); len(calls) > 0 {
			if err := w.hearCancelsOnce(ctx, calls); err != nil {
				w.log.DebugContext(ctx, "cancelled calls not asked for", "err", err) // the beat says what is wrong
			}
		}
	}
}

func (w *Worker) hearCancelsOnce(ctx context.Context, calls []int64) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := w.cfg.Pool.Query(ctx, cancelledSQL, calls)
	if err != nil {
		return fmt.Errorf("ask for cancelled calls: %w", err)
	}
	cancelled, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("ask for cancelled calls: %w", err)
	}
	w.contexts.cancel(cancelled)
	return nil
}

const cancelledSQL = `SELECT id FROM call_queue WHERE id = ANY($1::bigint[]) AND status = 'cancelled'`

// asCancelled is how an attempt ends whose context ErrCancelled ended: cancelled, unless it is done all
// the same. It stays charged for what it may have sent.
func asCancelled(ctx context.Context, c *ledger.Closing) {
	if c.Outcome == callqueue.OutcomeDone || !errors.Is(context.Cause(ctx), ErrCancelled) {
		return
	}
	c.Outcome, c.Status = callqueue.OutcomeCancelled, callqueue.StatusCancelled
	c.Failed, c.Delay = false, nil
}
