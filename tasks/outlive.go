package tasks

import (
	"context"
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
)

// A handler that does not return when its context ends may still send. So its attempt stays open, and its units
// occupied, for as long as its worker lives, which puts off the deadline by which it would be taken for lost. So does that
// of an attempt whose outcome waits to be recorded, for somebody's transaction say: the call would be made again.

const (
	outliveEvery = 500 * time.Millisecond // half of the second between the timeout and the deadline
	outliveAgain = 10 * time.Second       // of the 30 s that the deadline is put off for
)

// outlivedFrom sets from when on the attempt, if it is still under way, has outlived its handler's timeout. It says
// whether the handler still runs.
func (c *contexts) outlivedFrom(a *attempt, at time.Time) (running bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u, ok := c.of[a]
	if ok {
		u.outlived = at
		c.of[a] = u
	}
	return ok && !u.returned
}

func (c *contexts) outlived(now time.Time) (list []*attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for a, u := range c.of {
		if !u.outlived.IsZero() && u.outlived.Before(now) {
			list = append(list, a)
		}
	}
	return list
}

// keepOpen looks after attempts whose handlers outlive their timeouts, while it drains too.
func (w *Worker) keepOpen(ctx context.Context) {
	for pause(ctx, outliveEvery) {
		list := w.contexts.outlived(time.Now())
		if len(list) == 0 {
			continue
		}
		if err := w.keepOpenOnce(ctx, list); err != nil {
			w.log.DebugContext(ctx, "attempts not kept open", "err", err) // the beat says what is wrong
		}
	}
}

func (w *Worker) keepOpenOnce(ctx context.Context, list []*attempt) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	running := make([]ledger.Running, len(list))
	for i, a := range list {
		running[i] = ledger.Running{CallID: a.callID, Attempt: a.number, Token: a.token}
	}
	kept, err := ledger.KeepOpen(ctx, w.cfg.Pool, running)
	if err != nil {
		return err
	}
	for _, a := range list {
		if !slices.Contains(kept, a.callID) {
			continue // somebody has its lock, or it is closed
		}
		running := w.contexts.outlivedFrom(a, time.Now().Add(outliveAgain))
		if running && time.Since(a.m0) < a.Timeout+outliveAgain { // once
			w.log.WarnContext(ctx, "handler outlives its timeout: it does not return though its context has ended",
				"task", a.Task, "call", a.callID, "attempt", a.number, "timeout", a.Timeout)
		}
	}
	return nil
}
