package tasks

import (
	"context"
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
)

// tellFreed has the dispatchers woken when what has closed frees units of a concurrency limit, gives
// back units that it never used, or not all, or frees slots of a worker that was nearly full: they may have held
// back calls for want of any.
func (w *Worker) tellFreed(closings []ledger.Closing) {
	if slices.ContainsFunc(closings, func(c ledger.Closing) bool { return c.Arrival == nil || c.Saves }) {
		w.unused.Store(true)
		w.wake()
		return
	}
	if 4*len(w.slots) >= 3*cap(w.slots) || slices.ContainsFunc(closings, func(c ledger.Closing) bool { return c.Frees }) {
		w.wake()
	}
}

// wake has the dispatchers woken soon.
func (w *Worker) wake() {
	select {
	case w.freed <- struct{}{}:
	default: // one is waiting, and will be told after this
	}
}

// wakeDispatchers wakes them when there is something to tell, at most every wakeEvery: a NOTIFY
// takes a lock that all commits of its kind share.
func (w *Worker) wakeDispatchers(ctx context.Context) {
	for {
		select {
		case <-w.freed:
		case <-ctx.Done():
			return
		}
		what := ""
		if w.unused.Swap(false) { // of a window: else dispatchers know when the next comes free
			what = callqueue.WakeFreed
		}
		if _, err := w.cfg.Pool.Exec(ctx, wakeSQL, what); err != nil {
			w.log.DebugContext(ctx, "dispatchers not woken", "err", err) // their schedule will
		}
		if !pause(ctx, wakeEvery) {
			return
		}
	}
}

const wakeSQL = `SELECT pg_notify('` + callqueue.WakeChannel + `', $1)`

const wakeEvery = 5 * time.Millisecond
