package tasks

import (
	"context"
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// A handler that does not return when its context ends may still send. So its attempt stays open, and its units
// occupied, for as long as its worker is alive, which puts off the deadline by which it would be taken for lost. So does
// that of an attempt whose outcome waits to be recorded, for somebody's transaction say: the call would be made again.

const (
	outliveEvery = 500 * time.Millisecond // half of the second between the timeout and the deadline
	outliveAgain = 10 * time.Second       // of the 30 s that the deadline is put off for
)

// outlivesFrom sets from when on the attempt, if it is still under way, has outlived its handler's timeout. It reports
// whether the handler still runs.
func (r *running) outlivesFrom(a *attempt, at time.Time) (runs bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.of[a]
	if ok {
		p.outlives = at
	}
	return ok && !p.returned
}

// keepOpen looks after attempts whose handlers outlive their timeouts.
func (r *running) keepOpen(ctx context.Context) {
	for pause(ctx, outliveEvery) {
		now := time.Now()
		list := r.list(func(p *progress) bool { return !p.outlives.IsZero() && p.outlives.Before(now) })
		if len(list) == 0 {
			continue
		}
		if err := r.putOff(ctx, list); err != nil {
			r.log.DebugContext(ctx, "attempts not kept open", "err", err) // the heartbeat says what is wrong
		}
	}
}

func (r *running) putOff(ctx context.Context, list []*attempt) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	open := make([]ledger.Running, len(list))
	for i, a := range list {
		open[i] = ledger.Running{CallID: a.callID, Attempt: a.number, Token: a.token}
	}
	kept, err := ledger.KeepOpen(ctx, r.db, open)
	if err != nil {
		return err
	}
	for _, a := range list {
		if !slices.Contains(kept, a.callID) {
			continue // somebody has its lock, or it is closed
		}
		runs := r.outlivesFrom(a, time.Now().Add(outliveAgain))
		if runs && time.Since(a.m0) < a.Timeout+outliveAgain { // once
			r.log.WarnContext(ctx, "handler outlived its timeout", "task", a.Task,
				"call", a.callID, "attempt", a.number, "timeout", a.Timeout)
		}
	}
	return nil
}
