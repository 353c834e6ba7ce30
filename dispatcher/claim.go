package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/pools"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

const (
	claimTimeout = 5 * time.Second
	claimSize    = 2000 // calls in one claim
	minGap       = 5 * time.Millisecond
	fullRetry    = 20 * time.Millisecond // the workers are full
	standFor     = 250 * time.Millisecond
	errRetry     = time.Second
	pollLater    = time.Minute           // ticks come sooner
	requeueAfter = 50 * time.Millisecond // whoever holds a call may be done with it in a moment
	asideFor     = 10 * time.Second      // what costs too much is looked at again
)

// claimer claims calls on behalf of one dispatcher: it polls the queues, and runs the claim transaction. It is not safe for
// concurrent use.
type claimer struct {
	cfg      *Config
	metrics  *metrics
	sender   *handoff.Broker
	clock    *clockWatch
	within   time.Duration // claimTimeout, but in tests of claims that wait for one another
	earlyFor time.Duration // but in tests of what needs no early polls
	stop     func() bool   // the context has ended: finish what is in hand, begin nothing

	rounds   int                  // of polls
	served   map[string]int       // queue to the round in which calls of it were last claimed
	blocked  map[string]time.Time // queue to when a unit can come free at the earliest
	standing                      // beside other dispatchers
	hurried  bool                 // more is to be claimed once a slot, or a unit of a concurrency limit, comes free
	reserved reservations
	turnover pools.Turnover
	scan     scanWindow
	lowWater lowWater
	needs    needs
}

// standing is what a dispatcher knows of the others; see dueQueues.
type standing struct {
	standBy time.Time // until then another one claims
	seen    int64     // the number of the last claim, of whichever
}

// outcome says what a claim did, and when the next may do more.
type outcome struct {
	more       bool          // another claim right away may find more
	hurried    bool          // likewise, once a slot or a unit of a concurrency limit comes free
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
// the calls that spoiled the claim before it.
//
// The commit is the point after which a crash is harmless, even if its answer is lost: the attempts are open, their units used,
// and recovery hands over what this process no longer does.
func (c *claimer) claimOnce(tick context.Context, queue string, wait, isolate bool) (outcome, error) {
	ctx, cancel := context.WithTimeout(tick, c.within)
	defer cancel()
	list, b, early, err := c.transact(ctx, queue, wait, isolate)
	if err != nil || early != nil {
		return *cmp.Or(early, &outcome{}), err
	}
	c.metrics.claims.WithLabelValues(queue).Add(float64(b.attempts))
	if b.attempts > 0 {
		c.served[queue] = c.rounds
	}
	if len(b.refused) > 0 {
		c.cfg.Logger.WarnContext(ctx, "calls refused", "queue", queue, "calls", len(b.refused))
	}
	// Where somebody had set all calls of a message to wait while their attempts are open, nothing was opened.
	b.messages = slices.DeleteFunc(b.messages, func(m handoff.Message) bool { return len(m.Attempts) == 0 })
	b.passed(c.cfg.Now().Sub(list.readAt))
	for _, m := range b.messages {
		c.turnover.Handed(m.Pool, len(m.Attempts))
	}
	c.sender.Deliver(tick, b.messages) // however long the claim took
	return c.after(list, b), nil
}

// transact is the claim transaction. Where nothing may be claimed it ends early.
func (c *claimer) transact(ctx context.Context, queue string, wait, isolate bool) (list *candidates, b *batch, early *outcome, err error) {
	conn, err := schema.Acquire(ctx, c.cfg.db)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	defer rollBack(context.WithoutCancel(ctx), conn)
	seen, early, err := c.look(ctx, conn, queue, wait)
	switch {
	case err != nil || early != nil && !seen.drained.Some:
		return nil, nil, early, err
	case early != nil: // what was drained from the inbox stays so
		early.pollIn = min(early.pollIn, minGap)
		return nil, nil, early, c.commit(ctx, conn, seen, new(pgx.Batch))
	}
	list, err = c.candidates(ctx, conn, seen)
	if errors.Is(err, errClockSetBack) {
		return nil, nil, &outcome{pollIn: minGap}, nil
	}
	if err == nil {
		b, err = c.take(ctx, conn, list, isolate)
	}
	if err == nil && !c.needs.promise(ctx, list, b) {
		return nil, nil, restFor(needsAgain), nil
	}
	if err == nil {
		err = c.commit(ctx, conn, seen, &b.writes)
	}
	return list, b, nil, err
}

// commit writes and commits, in one trip, and notes what the claim has seen.
func (c *claimer) commit(ctx context.Context, conn *schema.Conn, s *snapshot, writes *pgx.Batch) error {
	writes.Queue(`COMMIT`)
	if err := conn.SendBatch(ctx, writes).Close(); err != nil {
		return fmt.Errorf("write and commit: %w", err)
	}
	c.scan.drained[s.queue.Name] = s.drained.UpTo
	c.lowWater.found(s.lowest, s.now)
	return nil
}

// rollBack ends the transaction, if there is one.
func rollBack(ctx context.Context, conn *schema.Conn) {
	if conn.Conn().PgConn().TxStatus() != 'I' {
		_, _ = conn.Exec(ctx, `ROLLBACK`) // else the pool closes the connection
	}
}

// snapshot is what a claim sees before it looks at calls, under the locks of the queue and its limits.
type snapshot struct {
	queue     *policy.LockedQueue
	now       time.Time // Postgres's clock
	readAt    time.Time // monotonic, when that had been read
	epoch     string
	closes    *time.Time      // when the queue's hours end; nil: it stays open
	drained   backlog.Drained // from the inbox
	from      int64           // no attempt of a smaller batch is open
	lowest    *int64          // the smallest batch of an open attempt; nil: there is none
	pools     *pools.Pools    // with the queue's label
	pausedFor time.Duration   // the queue, or one of its limits, as a whole
	keyPauses bool            // some keys may be paused
	probes    bool            // a limit, or a key of one, waits for a probe
	lowered   bool            // an API says that less remains of a limit than is counted
}

// look takes the locks, reads the clock, drains the inbox, and looks at workers and pauses. If nothing may be claimed, the claim
// ends early, with an outcome.
func (c *claimer) look(ctx context.Context, conn *schema.Conn, queue string, wait bool) (s *snapshot, early *outcome, err error) {
	s = &snapshot{}
	var locks pgx.Batch
	locks.Queue(`BEGIN ISOLATION LEVEL READ COMMITTED`)
	s.queue = policy.LockQueue(&locks, queue, wait, c.within)
	read := c.clock.ask(&locks)
	if err := conn.SendBatch(ctx, &locks).Close(); err != nil || !s.queue.Locked {
		return s, &outcome{pollIn: minGap}, ledger.Wrap("lock the queue and its limits", err)
	}
	if err = c.clock.saw(ctx, read); wait && err == nil { // it waited, perhaps for long: when it read the clock is not known well
		read, err = c.clock.read(ctx, conn)
	}
	if err != nil {
		return s, nil, err
	}
	s.now, s.epoch, s.readAt = read.now, read.epoch, read.received
	if slices.ContainsFunc(s.queue.Limits, func(l policy.LockedLimit) bool { return l.Epoch != s.epoch }) {
		rollBack(ctx, conn) // whoever locks all limits must hold none
		c.clock.epoch = ""
		entered, err := c.clock.noteEpoch(ctx, s.epoch)
		if err == nil && !entered {
			return s, restFor(judgeEvery), nil
		}
		return s, &outcome{pollIn: minGap, more: true}, err
	}
	if slices.ContainsFunc(s.queue.Limits, func(l policy.LockedLimit) bool { return l.CompleteSince == nil }) {
		return s, restFor(time.Second), nil
	}
	// If this machine does not know a zone that the one which applied the hours knew, other dispatchers claim: nobody may guess.
	h, err := hours.Parse(s.queue.Hours)
	if err != nil {
		return s, nil, fmt.Errorf("read the hours %q: %w", s.queue.Hours, err)
	}
	s.from = c.lowWater.in(s.epoch)
	var asks pgx.Batch
	s.queue.Draw(&asks)
	s.askForWorkers(&asks, &c.turnover)
	drained, err := backlog.Drain(ctx, conn, &asks, queue, c.scan.since(queue), s.now)
	c.seen, c.standBy = max(c.seen, s.queue.Batch), time.Time{} // others see the number, and stand by
	if err != nil {
		return s, nil, err
	}
	if c.lowWater.wentBack(s.epoch, s.queue.Batch) {
		rollBack(ctx, conn)
		return s, &outcome{pollIn: minGap}, c.restored(ctx)
	}
	if c.lowWater.draw(s.epoch, s.queue.Batch) != s.from { // the workers were read by what no longer holds
		return s, &outcome{more: true}, nil
	}
	s.drained = drained
	s.lowest, s.pools = s.pools.OpenFrom, s.pools.On(s.queue.Label)
	return s, c.mayClaim(s, h), nil
}

// restored enters the epoch anew after a restore in place, and forgets what was known of the data.
func (c *claimer) restored(ctx context.Context) error {
	e, err := policy.EnterRestored(ctx, c.cfg.db, c.lowWater.at)
	if err != nil {
		return err
	}
	c.cfg.Logger.WarnContext(ctx, "after a restore the rest of each limit counts as used", "limits", e.Limits)
	c.lowWater, c.scan = lowWater{}, scanWindow{drained: map[string]time.Time{}}
	return nil
}

// askForWorkers asks for the workers' pools, and what is paused.
func (s *snapshot) askForWorkers(asks *pgx.Batch, turnover *pools.Turnover) {
	asks.Queue(pools.SQL, s.from).Query(func(rows pgx.Rows) (err error) {
		s.pools, err = pools.Collect(rows, turnover, s.readAt)
		return err
	})
	asks.Queue(pausedSQL, s.queue.Name, s.queue.LimitNames).QueryRow(func(row pgx.Row) error {
		return row.Scan(&s.pausedFor, &s.keyPauses, &s.probes, &s.lowered)
	})
}

// A pause without an end is looked at again in a day.
const pausedSQL = `
WITH rules AS (SELECT 'queue' AS what, $1 AS name UNION ALL SELECT 'limit', unnest($2::text[]))
SELECT
    (SELECT coalesce(max(least(p.until, clock_timestamp() + interval '1 day')) - clock_timestamp(), '0')
     FROM rules r JOIN callq.call_pauses p ON p.what = r.what AND p.name = r.name AND p.key = '' AND p.until > clock_timestamp()),
    EXISTS (SELECT FROM rules r JOIN callq.call_pauses p ON p.what = r.what AND p.name = r.name AND p.key > ''),
    EXISTS (SELECT FROM callq.call_pauses p WHERE p.what = 'limit' AND p.name = ANY($2) AND p.spell IS NOT NULL AND p.until <= clock_timestamp()),
    EXISTS (SELECT FROM callq.call_remotes r WHERE r.limit_name = ANY($2) AND r.lowered IS NOT NULL AND r.reset_at > clock_timestamp())`

// pausedKeys returns which of these keys are paused, and for how long.
func (s *snapshot) pausedKeys(ctx context.Context, conn *schema.Conn, keys []string) (map[string]time.Duration, error) {
	paused := map[string]time.Duration{}
	if !s.keyPauses || len(keys) == 0 {
		return paused, nil
	}
	rows, _ := conn.Query(ctx, pausedKeysSQL, s.queue.Name, s.queue.LimitNames, keys)
	var key string
	var wait time.Duration
	_, err := pgx.ForEachRow(rows, []any{&key, &wait}, func() error {
		paused[key] = max(paused[key], wait)
		return nil
	})
	return paused, ledger.Wrap("look at paused keys", err)
}

const pausedKeysSQL = `
SELECT p.key, least(p.until, clock_timestamp() + interval '1 day') - clock_timestamp()
FROM (SELECT 'queue' AS what, $1 AS name UNION ALL SELECT 'limit', unnest($2::text[])) r
CROSS JOIN unnest($3::text[]) AS k (key)
JOIN callq.call_pauses p ON p.what = r.what AND p.name = r.name AND p.key = k.key
WHERE k.key <> '' AND p.until > clock_timestamp()`

// restFor is an outcome for a queue of which nothing can be claimed for a while.
func restFor(wait time.Duration) *outcome { return &outcome{pollIn: wait, blockedFor: wait} }

// mayClaim says when to come back if nothing may be claimed now; else it returns nil.
func (c *claimer) mayClaim(s *snapshot, h hours.Hours) *outcome {
	wait := c.reserved.byOthers(s.queue.Name, s.queue.Limits, c.cfg.Now())
	switch open, until := h.Open(s.now); {
	case !open:
		wait = max(wait, min(until.Sub(s.now), pollLater))
	case !until.IsZero():
		s.closes = &until
	}
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

// whenFull is what a claim comes to that finds the workers full, or leaves them so. If all are above the high-water mark, a
// poll that is notified is not worth reading all of call_open.
func whenFull(p *pools.Pools) *outcome {
	if p.AboveHighWater() {
		return &outcome{hurried: true, pollIn: fullRetry, blockedFor: fullRetry}
	}
	return &outcome{hurried: true, pollIn: fullRetry}
}

// after says when the next claim may do more than this one did.
func (c *claimer) after(list *candidates, b *batch) outcome {
	result := outcome{pollIn: pollLater, more: b.more || !list.drained.All && b.stuck == nil}
	result.hurried = slices.ContainsFunc(list.pools.List, func(p *pools.Pool) bool { return p.Capacity <= 0 })
	if b.stuck != nil {
		if wait, known := list.head.shared().wait(*b.stuck); known {
			result.pollIn, result.blockedFor = wait, wait
		} else {
			result.hurried = true
		}
	} else {
		for _, h := range b.blocked {
			if wait, known := list.head.wait(h); known {
				result.pollIn = min(result.pollIn, wait)
			} else {
				result.hurried = true
			}
		}
	}
	// What else there is, now or later, the next poll will know.
	soon := list.drained.Some || b.stuck == nil && len(list.paused)+len(b.chosen)+len(b.refused) > 0
	if c.reserved.after(list.queue.Name, list.head, b, c.cfg.Now()) { // others may go on
		clear(c.blocked)
		soon = true
	}
	if soon {
		result.pollIn = min(result.pollIn, minGap)
	}
	if result.more && list.pools.Capacity() == 0 {
		result = *whenFull(list.pools)
	}
	return result
}
