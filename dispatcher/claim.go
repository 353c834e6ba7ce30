package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pools"
	"github.com/jackc/pgx/v5"
)

const (
	claimTimeout = 5 * time.Second
	claimSize    = 2000 // calls in one claim
	minGap       = 5 * time.Millisecond
	busyRetry    = minGap                // another dispatcher holds a lock
	fullRetry    = 20 * time.Millisecond // the workers are full
	errRetry     = time.Second
	pollLater    = time.Minute // ticks come sooner
)

// claimer claims calls on behalf of one dispatcher: it polls the queues, and runs the claim transaction. It is not safe for
// concurrent use.
type claimer struct {
	cfg     *Config
	metrics *metrics
	sender  *handoff.Broker
	clock   *clockWatch
	within  time.Duration // claimTimeout, but in tests of claims that wait for one another
	stop    func() bool   // the context has ended: finish what is in hand, begin nothing

	order    order
	blocked  map[string]time.Time // queue to when a unit can come free at the earliest
	reserved reservations
	scan     scanWindow
	lowWater lowWater
}

func newClaimer(cfg *Config, m *metrics, sender *handoff.Broker, clock *clockWatch, stop func() bool) *claimer {
	return &claimer{
		cfg: cfg, metrics: m, sender: sender, clock: clock, within: claimTimeout, stop: stop,
		order: order{first: int(cfg.Random(1 << 16)), served: map[string]int{}}, blocked: map[string]time.Time{},
		reserved: reservations{}, scan: scanWindow{drained: map[string]time.Time{}},
	}
}

// outcome says what a claim did, and when the next may do more.
type outcome struct {
	more       bool          // another claim right away may find more
	pollIn     time.Duration // when to poll again, if not more
	blockedFor time.Duration // how long nothing can be claimed, or need be; 0: the limits have room
}

// claim claims from a queue. If what one call holds spoils that, a second claim finds the call, fails it with the reason, and
// claims the others.
func (c *claimer) claim(tick context.Context, queue string, wait bool) (outcome, error) {
	result, err := c.claimOnce(tick, queue, wait, false)
	if !ledger.Spoiled(err) {
		return result, err
	}
	c.cfg.Logger.WarnContext(tick, "claim tried again without what spoiled it", "queue", queue, "err", err)
	return c.claimOnce(tick, queue, wait, true)
}

// claimOnce runs the claim transaction. It locks the queue's limits, counts what is occupied, and gives out what is left, of
// that and of the workers' capacity, to the next calls of the queue. With wait, it waits for locks. With isolate, it looks for
// the calls that spoiled the claim before it (isolate.go).
//
// The commit is the point after which a crash is harmless: the attempts are open, their units used, and recovery hands over
// what this process no longer does. That holds too if the answer to the commit is lost.
func (c *claimer) claimOnce(tick context.Context, queue string, wait, isolate bool) (outcome, error) {
	ctx, cancel := context.WithTimeout(tick, c.within)
	defer cancel()
	tx, err := c.cfg.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return outcome{}, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // after Commit it does nothing

	seen, early, err := c.look(ctx, tx, queue, wait)
	switch {
	case err != nil:
		return outcome{}, err
	case early != nil && seen.drained.Some: // what was drained from the inbox stays so
		early.pollIn = min(early.pollIn, minGap)
		return *early, c.commit(ctx, tx, seen)
	case early != nil:
		return *early, nil
	}
	list, err := c.candidates(ctx, tx, seen)
	if errors.Is(err, errClockSetBack) {
		return outcome{pollIn: minGap}, nil
	}
	if err != nil {
		return outcome{}, err
	}
	list.isolate = isolate
	b, err := c.take(ctx, tx, list)
	if err != nil {
		return outcome{}, err
	}
	if err := c.commit(ctx, tx, seen); err != nil {
		return outcome{}, err
	}
	c.metrics.claimed(queue, b.attempts)
	if b.attempts > 0 {
		c.order.note(queue)
	}
	if len(b.refused) > 0 {
		c.cfg.Logger.WarnContext(ctx, "calls refused", "queue", queue, "calls", len(b.refused))
	}
	c.sender.Deliver(tick, b.messages) // however long the claim took
	return c.after(list, b), nil
}

// commit commits, and notes what the claim has seen.
func (c *claimer) commit(ctx context.Context, tx pgx.Tx, s *snapshot) error {
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	c.scan.note(s.queue.Name, s.drained.UpTo)
	c.lowWater.found(s.lowest, c.clock.clock.Last())
	return nil
}

// restFor is an outcome for a queue of which nothing can be claimed for a while.
func restFor(wait time.Duration) *outcome { return &outcome{pollIn: wait, blockedFor: wait} }

// mayClaim says when to come back if nothing may be claimed now; else it returns nil.
func (c *claimer) mayClaim(s *snapshot) *outcome {
	wait, closes := closedFor(s.hours, s.now)
	s.closes = closes
	wait = max(wait, c.reserved.byOthers(s.queue.Name, s.queue.Limits, c.cfg.Now()))
	switch {
	case wait > 0:
		return restFor(wait)
	case s.pausedFor > 0:
		return &outcome{pollIn: min(s.pausedFor, pollLater)}
	case len(s.pools.List) == 0: // no worker carries the label
		return &outcome{pollIn: pollLater}
	case s.pools.Capacity() == 0:
		return whenFull(s.pools)
	}
	return nil
}

// closedFor is how long a queue outside its hours need not be polled; 0: the queue is open, until closes (nil: for good).
func closedFor(h hours.Hours, now time.Time) (wait time.Duration, closes *time.Time) {
	open, until := h.Open(now)
	switch {
	case open && until.IsZero():
		return 0, nil
	case open:
		return 0, &until
	}
	return min(until.Sub(now), pollLater), nil
}

// whenFull is what a claim comes to that finds the workers full, or leaves them so. If all are above the high-water mark, a
// poll that is notified is not worth reading all of call_open.
func whenFull(p *pools.Pools) *outcome {
	if p.AboveHighWater() {
		return restFor(fullRetry)
	}
	return &outcome{pollIn: fullRetry}
}

// after says when the next claim may do more than this one did.
func (c *claimer) after(list *candidates, b *batch) outcome {
	result := b.outcome(list)
	if c.reserved.after(list.queue.Name, list.head, b, c.cfg.Now()) { // others may go on
		clear(c.blocked)
		result.pollIn = min(result.pollIn, minGap)
	}
	if list.drained.Some { // what else there is, now or later, the next poll will know
		result.pollIn = min(result.pollIn, minGap)
	}
	if !list.drained.All && b.stuck == nil {
		result.more = true
	}
	if result.more && list.pools.Capacity() == 0 {
		result = *whenFull(list.pools)
	}
	result.pollIn = min(result.pollIn, list.unpausedFor)
	return result
}

// outcome says when the next claim may do more, as far as limits and calls go.
func (b *batch) outcome(c *candidates) outcome {
	result := outcome{pollIn: pollLater}
	switch {
	case b.stuck != nil:
		if wait, known := c.head.wait(*b.stuck); known {
			result = *restFor(wait)
		}
		return result
	case b.more:
		return outcome{more: true}
	case len(b.chosen)+len(b.refused) > 0:
		result.pollIn = minGap // the queue is empty for now; when it is not, the next poll will know
	}
	for _, h := range b.blocked {
		if wait, known := c.head.wait(h); known {
			result.pollIn = min(result.pollIn, wait)
		}
	}
	return result
}
