package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrCancelled is the cause (context.Cause) with which a handler's context ends when its call is
// cancelled.
var ErrCancelled = errors.New("the call was cancelled")

// running are the attempts under way. Two loops look after them, while the worker drains too: one ends the contexts of
// cancelled calls, the other keeps attempts open whose handlers do not return. A call may have two attempts here: one
// that was given up as lost and still runs.
type running struct {
	db  *pgxpool.Pool
	log *slog.Logger
	mu  sync.Mutex
	of  map[*attempt]*progress
}

// progress is guarded by running's mu.
type progress struct {
	end      context.CancelCauseFunc
	outlives time.Time // from when on its handler has run for too long, and what is to be done about it is due; zero: never
	returned bool      // its handler has; what is left is to record how it ended
}

func newRunning(db *pgxpool.Pool, log *slog.Logger) *running {
	return &running{db: db, log: log, of: map[*attempt]*progress{}}
}

// begin makes the context of an attempt, which the returned function ends. The attempt is under way until forget.
func (r *running) begin(ctx context.Context, a *attempt) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	p := &progress{end: end}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[a] = p
	return ctx, func() {
		end(nil)
		r.mu.Lock()
		defer r.mu.Unlock()
		p.returned = true
	}
}

func (r *running) forget(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, a)
}

// list returns the attempts that are so.
func (r *running) list(so func(*progress) bool) (attempts []*attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, p := range r.of {
		if so(p) {
			attempts = append(attempts, a)
		}
	}
	return attempts
}

// watchCancels asks, every heartbeatEvery, which calls under way have been cancelled.
// It asks rather than listens: that works through any pooler, and misses nothing.
func (r *running) watchCancels(ctx context.Context) {
	for pause(ctx, heartbeatEvery) {
		if err := r.endCancelled(ctx); err != nil {
			r.log.DebugContext(ctx, "cancelled calls not asked for", "err", err) // the heartbeat says what is wrong
		}
	}
}

func (r *running) endCancelled(ctx context.Context) error {
	attempts := r.list(func(*progress) bool { return true })
	if len(attempts) == 0 {
		return nil
	}
	calls := make([]int64, len(attempts))
	for i, a := range attempts {
		calls[i] = a.callID
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := r.db.Query(ctx, cancelledSQL, calls)
	if err != nil {
		return fmt.Errorf("ask for cancelled calls: %w", err)
	}
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
