package claim

import (
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

// order is a claim to make.
type order struct {
	queue   string
	needs   []need // of the queue
	wait    bool   // for locks
	isolate bool   // find the calls that spoiled the claim before it
}

// claim claims from a queue. If what one call holds spoils that, a second claim finds the call, fails it with the reason, and
// claims the others.
func (c *Claimer) claim(tick context.Context, o order) (outcome, error) {
	result, err := c.claimOnce(tick, o)
	if !ledger.Spoiled(err) {
		return result, err
	}
	c.Log.WarnContext(tick, "claim tried again without what spoiled it", "queue", o.queue, "err", err)
	o.isolate = true
	return c.claimOnce(tick, o)
}

// claimOnce runs the claim transaction. It locks the queue, its limits and the workers' capacity (policy.LockForClaim), counts what is
// occupied, and gives out what is left, of that and of the workers' capacity, to the next calls of the queue.
//
// The commit is the point after which a crash is harmless, even if its answer is lost: the attempts are open, their units used,
// and recovery hands over what this process no longer does.
func (c *Claimer) claimOnce(tick context.Context, o order) (outcome, error) {
	ctx, cancel := context.WithTimeout(tick, c.Within)
	defer cancel()
	list, b, result, err := c.transact(ctx, o)
	if err != nil || b == nil {
		return result, err
	}
	c.metrics.claimed.WithLabelValues(o.queue).Add(float64(b.attempts))
	if b.attempts > 0 {
		c.served[o.queue] = c.rounds
	}
	if len(b.refused) > 0 {
		c.Log.WarnContext(ctx, "calls refused", "queue", o.queue, "calls", len(b.refused))
	}
	// Where somebody had set all calls of a message to wait while their attempts are open, nothing was opened.
	b.messages = slices.DeleteFunc(b.messages, func(m handoff.Message) bool { return len(m.Attempts) == 0 })
	b.passed(c.Now().Sub(list.readAt))
	for _, m := range b.messages {
		c.workers.Handed(m.Pool, len(m.Attempts))
	}
	c.needs.promise(ctx, o.needs, b)
	c.Sender.Deliver(tick, b.messages) // however long the claim took
	return c.after(list, b), nil
}

// transact is the claim transaction. Where nothing may be claimed it ends early, without a batch.
func (c *Claimer) transact(ctx context.Context, o order) (list *candidates, b *batch, early outcome, err error) {
	conn, err := schema.Acquire(ctx, c.DB)
	if err != nil {
		return nil, nil, early, fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	defer rollBack(context.WithoutCancel(ctx), conn)
	seen, ended, err := c.prepare(ctx, conn, o.queue, o.wait)
	if err == nil && ended != none {
		if seen.drained.Some { // what was drained from the inbox stays so
			err = c.commit(ctx, conn, seen, new(pgx.Batch))
		}
		if err == nil {
			c.known.keep(o.queue, seen.flows)
		}
	}
	if err == nil && ended == none {
		list, b, ended, err = c.allot(ctx, conn, seen, o)
	}
	if err != nil || ended == none {
		return list, b, early, err
	}
	if !slices.Contains([]event{locked, setBack, outdated, unjudged}, ended) { // of those nothing is known
		c.shares.note(nil, o.queue, 0)
	}
	return nil, nil, outcomeOf(ended, seen.state()), nil
}

// allot chooses calls, and commits attempts of them.
func (c *Claimer) allot(ctx context.Context, conn *schema.Conn, seen *underLocks, o order) (*candidates, *batch, event, error) {
	list, err := c.candidates(ctx, conn, seen, o.needs)
	if errors.Is(err, errClockSetBack) {
		return nil, nil, setBack, nil
	} else if err != nil {
		return nil, nil, none, err
	}
	b, err := c.assemble(ctx, conn, list, o.isolate)
	if err != nil {
		return nil, nil, none, err
	}
	if err = c.commit(ctx, conn, seen, &b.writes); err == nil {
		c.known.keep(o.queue, list.then())
	}
	return list, b, none, err
}

// commit writes and commits, in one trip, and notes what the claim has seen.
func (c *Claimer) commit(ctx context.Context, conn *schema.Conn, s *underLocks, writes *pgx.Batch) error {
	writes.Queue(`COMMIT`)
	if err := conn.SendBatch(ctx, writes).Close(); err != nil {
		return fmt.Errorf("write and commit: %w", err)
	}
	if s.drained.Read || !s.drained.All {
		c.scan.drained[s.queue.Name] = s.drained.UpTo
	}
	c.lowWater.found(s.lowest, s.now)
	return nil
}

// rollBack ends the transaction, if there is one.
func rollBack(ctx context.Context, conn *schema.Conn) {
	if conn.Conn().PgConn().TxStatus() != 'I' {
		_, _ = conn.Exec(ctx, `ROLLBACK`) // else the pool closes the connection
	}
}

// underLocks is what a claim sees before it reads calls, under the locks of the queue and its limits.
type underLocks struct {
	queue     *policy.LockedQueue
	now       time.Time // Postgres's clock
	readAt    time.Time // monotonic, when that had been read
	epoch     string
	closes    *time.Time      // when the queue's hours end; nil: it stays open
	drained   backlog.Drained // from the inbox
	flows     knownFlows      // as far as they are known
	head      *headroom       // nil: of each key
	from      int64           // no attempt of a smaller batch is open
	lowest    *int64          // the smallest batch of an open attempt; nil: there is none
	pools     *pools.Pools    // with the queue's label
	pausedFor time.Duration   // the queue, or one of its limits, as a whole
	keyPauses bool            // some keys may be paused
	probes    bool            // a limit, or a key of one, waits for a probe
	lasts     time.Duration   // what ends the claim early
	lowered   bool            // less remains of a limit at the API than is counted
}

// prepare takes the locks, reads the clock, drains the inbox, and reads workers and pauses. It returns what ends the claim early.
func (c *Claimer) prepare(ctx context.Context, conn *schema.Conn, queue string, wait bool) (s *underLocks, ended event, err error) {
	s = &underLocks{}
	var locks pgx.Batch
	locks.Queue(`BEGIN ISOLATION LEVEL READ COMMITTED`)
	s.queue = policy.LockForClaim(&locks, queue, wait, c.Within)
	read := c.clock.ask(&locks)
	if err := conn.SendBatch(ctx, &locks).Close(); err != nil || !s.queue.Locked {
		return s, locked, ledger.Wrap("lock the queue and its limits", err)
	}
	if err = c.clock.saw(ctx, read); wait && err == nil { // it waited, perhaps for long: when it read the clock is not known well
		read, err = c.clock.read(ctx, conn)
	}
	if err != nil {
		return s, none, err
	}
	s.now, s.epoch, s.readAt = read.now, read.epoch, read.received
	if slices.ContainsFunc(s.queue.Limits, func(l policy.LockedLimit) bool { return l.Epoch != s.epoch }) {
		rollBack(ctx, conn) // to lock all limits, hold none
		c.clock.epoch = ""
		entered, err := c.clock.noteEpoch(ctx, s.epoch)
		if err == nil && !entered {
			return s, unjudged, nil
		}
		return s, outdated, err
	}
	if slices.ContainsFunc(s.queue.Limits, func(l policy.LockedLimit) bool { return l.CompleteSince == nil }) {
		return s, uncounted, nil
	}
	// If this machine does not know a zone that the one which applied the hours knew, other dispatchers claim: this one must not guess.
	h, err := hours.Parse(s.queue.Hours)
	if err != nil {
		return s, none, fmt.Errorf("read the hours %q: %w", s.queue.Hours, err)
	}
	s.from = c.lowWater.in(s.epoch)
	open, until := h.Open(s.now)
	if open && !until.IsZero() {
		s.closes = &until
	}
	var asks pgx.Batch
	s.queue.Draw(&asks)
	c.workers.Ask(&asks, s.from, s.readAt, &s.pools)
	s.askForPauses(&asks)
	if !s.perKey() {
		s.head = c.headroom(&asks, s, nil)
	}
	inbox, parked := c.scan.since(queue)
	before := c.known.take(queue)
	drained, err := backlog.Drain(ctx, conn, &asks, backlog.Due{
		Queue: queue, InboxSince: inbox, FlowsSince: parked, Now: s.now, Known: before.places(),
	})
	c.claims++
	if s.queue.Batch != c.seen+1 { // others have claimed
		clear(c.known)
		before = knownFlows{}
	}
	if before.known() {
		s.queue.Served = before.served
	}
	c.seen, c.standBy, c.claimed = max(c.seen, s.queue.Batch), time.Time{}, c.Now() // others see the number, and stand by
	if err != nil {
		return s, none, err
	}
	if c.lowWater.wentBack(s.epoch, s.queue.Batch) {
		rollBack(ctx, conn)
		return s, setBack, c.restored(ctx)
	}
	if c.lowWater.draw(s.epoch, s.queue.Batch) != s.from { // the workers were read by what no longer holds
		return s, outdated, nil
	}
	s.drained, s.flows = drained, before.filed(drained)
	s.lowest, s.pools = s.pools.OpenFrom, s.pools.On(s.queue.Label)
	return s, c.mayClaim(s, open, until), nil
}

// restored enters the epoch anew after a restore in place, and forgets what was known of the data.
func (c *Claimer) restored(ctx context.Context) error {
	e, err := policy.EnterRestored(ctx, c.DB, c.lowWater.at)
	if err != nil {
		return err
	}
	c.Log.WarnContext(ctx, "after a restore the rest of each limit counts as used", "limits", e.Limits)
	c.lowWater, c.known, c.scan = lowWater{}, known{}, scanWindow{drained: map[string]time.Time{}}
	return nil
}

// askForPauses asks what is paused.
func (s *underLocks) askForPauses(asks *pgx.Batch) {
	asks.Queue(pausedSQL, s.queue.Name, s.queue.LimitNames).QueryRow(func(row pgx.Row) error {
		return row.Scan(&s.pausedFor, &s.keyPauses, &s.probes, &s.lowered)
	})
}

// A pause without an end is read again in a day.
const pausedSQL = `
WITH rules AS (SELECT 'queue' AS what, $1 AS name UNION ALL SELECT 'limit', unnest($2::text[]))
SELECT
    (SELECT coalesce(max(least(p.until, clock_timestamp() + interval '1 day')) - clock_timestamp(), '0')
     FROM rules r JOIN callq.call_pauses p ON p.what = r.what AND p.name = r.name AND p.key = '' AND p.until > clock_timestamp()),
    EXISTS (SELECT FROM rules r JOIN callq.call_pauses p ON p.what = r.what AND p.name = r.name AND p.key > ''),
    EXISTS (SELECT FROM callq.call_pauses p WHERE p.what = 'limit' AND p.name = ANY($2) AND p.spell IS NOT NULL AND p.until <= clock_timestamp()),
    EXISTS (SELECT FROM callq.call_remotes r WHERE r.limit_name = ANY($2) AND r.lowered IS NOT NULL AND r.reset_at > clock_timestamp())`

// pausedKeys returns which of these keys are paused, and for how long.
func (s *underLocks) pausedKeys(ctx context.Context, conn *schema.Conn, keys []string) (map[string]time.Duration, error) {
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

// perKey reports whether a limit counts each key by itself: then units are counted once it is known of which keys.
func (s *underLocks) perKey() bool {
	return slices.ContainsFunc(s.queue.Limits, func(l policy.LockedLimit) bool { return l.PerKey })
}

// mayClaim returns what keeps the queue from being claimed now, which is open or shut until a time.
func (c *Claimer) mayClaim(s *underLocks, open bool, until time.Time) event {
	s.lasts = c.reserved.byOthers(s.queue.Name, s.queue.Limits, c.Now())
	switch {
	case !open:
		s.lasts = max(s.lasts, until.Sub(s.now))
		return closed
	case s.lasts > 0:
		return reserved
	case s.pausedFor > 0:
		s.lasts = s.pausedFor
		return paused
	case len(s.pools.List) == 0:
		return unserved
	case s.pools.Capacity() == 0:
		return full
	}
	return none
}

// state is what outcomeOf has to know of a claim that ended early.
func (s *underLocks) state() state {
	return state{wait: s.lasts, soon: s.drained.Some, highWater: s.pools != nil && s.pools.AboveHighWater()}
}

// after decides when the next claim may do more than this one did.
func (c *Claimer) after(list *candidates, b *batch) outcome {
	s := list.state()
	s.wait, s.stuck, s.more = pollLater, b.stuck != nil, b.more || !list.drained.All && b.stuck == nil
	s.someFull = list.pools.SomeFull()
	s.allFull = list.pools.Capacity() == 0
	lacking, head := b.blocked, list.head
	if s.stuck {
		lacking, head = []held{*b.stuck}, list.head.shared()
	}
	left := b.blocked
	if s.stuck {
		left = append(slices.Clip(left), *b.stuck)
	}
	c.waits.saw(list.head, left, c.Now())
	for _, h := range lacking {
		if wait, known := head.wait(h); known {
			s.wait = min(s.wait, wait)
		} else {
			s.told = true
		}
	}
	s.soon = s.soon || !s.stuck && len(list.paused)+len(b.chosen)+len(b.refused) > 0
	if c.reserved.after(list.queue.Name, list.head, b, c.Now()) { // others may go on
		clear(c.blocked)
		s.soon = true
	}
	return outcomeOf(claimed, s)
}
