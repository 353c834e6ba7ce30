package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/recovery"
	"github.com/jackc/pgx/v5"
)

const (
	tickTimeout = 30 * time.Second
	stopWithin  = claimTimeout + handoff.Timeout // what is in hand when the context ends: a claim and its hand-over
)

// signal wakes who waits, or soon will. As with a time.Ticker, at most one signal waits.
func signal(waiting chan struct{}) {
	select {
	case waiting <- struct{}{}:
	default:
	}
}

// stepLoop ticks when the schedule says so. In between it polls: when notified, and for a while after that, when a unit comes free,
// or when a call falls due. Polls only make things quicker; the ticks alone would do.
func (d *Dispatcher) stepLoop(ctx context.Context) {
	var pace pace
	heard := time.Now()
	due := time.Now().Add(pollLater)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		tick := false
		select {
		case <-ctx.Done():
			return
		case <-d.ticks:
			tick = true
		case <-d.alarm.notified:
			heard = time.Now()
			if wait := max(pace.in(time.Now()), d.claims.standsBy()); wait > 0 && !d.claims.hurried {
				wait = min(wait, time.Until(due))
				due = time.Now().Add(wait)
				timer.Reset(wait)
				continue
			}
		case <-timer.C:
		}
		pace.polled(time.Now())
		next, err := d.observe(ctx, tick)
		if next <= minGap && !d.claims.hurried { // to see what else there is
			next = pace.in(time.Now())
		}
		next = max(next, minGap)
		due = time.Now().Add(next)
		if err == nil { // else whatever has arrived waits for the retry
			next = min(next, max(d.claims.earlyIn(time.Since(heard)), pace.rest(time.Now())))
		}
		timer.Reset(next)
	}
}

// An insert within 80 ms of one that woke the dispatchers tells nobody, and may be committed later. So they poll again soon after a
// wake, and then less and less often.
const earlyFor = 2 * time.Second

// earlyIn is in how long to poll for what told nobody, so long after a wake.
func (c *claimer) earlyIn(quiet time.Duration) time.Duration {
	if quiet > c.earlyFor || c.standsBy() > 0 {
		return pollLater
	}
	return quiet
}

// standsBy says for how long claims are left to another dispatcher.
func (c *claimer) standsBy() time.Duration { return c.standBy.Sub(c.cfg.Now()) }

// observe runs a step. Metrics and Ready learn of ticks, and the log when they begin to fail and when they no longer do.
func (d *Dispatcher) observe(ctx context.Context, tick bool) (next time.Duration, err error) {
	begun := time.Now()
	next, err = d.Step(ctx, tick)
	if !tick {
		return next, err
	}
	d.metrics.tick.Observe(time.Since(begun).Seconds())
	d.ticked.Store(time.Now().UnixNano())
	result := "ok"
	switch {
	case err != nil:
		result = "error"
		if !d.failing && ctx.Err() == nil {
			d.cfg.Logger.WarnContext(ctx, "ticks cut short", "err", err)
		}
	case d.failing:
		d.cfg.Logger.InfoContext(ctx, "ticks whole again")
	}
	d.metrics.ticks.WithLabelValues(result).Inc()
	d.failing = err != nil
	return next, err
}

// Step is one step of Run, for a caller who keeps the time: a whole tick, or a poll between ticks. It says in how long to poll
// again. A panic is an error: other parts of the process, workers say, must not end with it. Do not call Step beside Run.
func (d *Dispatcher) Step(ctx context.Context, tick bool) (next time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			next, err = errRetry, fmt.Errorf("panic: %v", p)
			d.cfg.Logger.ErrorContext(ctx, "step panicked", "tick", tick, "err", err, "stack", string(debug.Stack()))
		}
	}()
	bounded, end := d.inHand(ctx)
	defer end()
	if tick {
		return d.tick(bounded)
	}
	if d.alarm.freed.Swap(false) {
		clear(d.claims.blocked)
	}
	return d.claims.poll(bounded, false)
}

// tick does everything that is due. If one part fails, the others still get their turn; the next tick finds what is left.
func (d *Dispatcher) tick(ctx context.Context) (time.Duration, error) {
	if err := d.readClock(ctx); err != nil {
		return errRetry, err
	}
	recoverErr := d.recovery.Pass(ctx, d.view(), d.stopping.Load, d.metrics.recovered)
	next, pollErr := d.claims.poll(ctx, true)
	return next, errors.Join(recoverErr, pollErr)
}

// readClock begins a tick: a step of Postgres's clock must be seen before anything is computed back from that clock, and also
// while there is nothing to claim.
func (d *Dispatcher) readClock(ctx context.Context) error {
	r, err := d.clock.read(ctx, d.cfg.db)
	if err != nil {
		d.recovery.PostgresAway()
		return err
	}
	_, err = d.clock.noteEpoch(ctx, r.epoch)
	return err
}

// judgeEvery is how often a new epoch's verdict is asked for while workers are being asked.
const judgeEvery = 200 * time.Millisecond

// enterEpoch waits until a new epoch is entered, which takes seconds.
func (d *Dispatcher) enterEpoch(ctx context.Context) error {
	for {
		r, err := d.clock.read(ctx, d.cfg.db)
		if err != nil {
			return err
		}
		if entered, err := d.clock.noteEpoch(ctx, r.epoch); entered || err != nil {
			return err
		}
		if !pause(ctx, judgeEvery) {
			return ctx.Err()
		}
	}
}

func (d *Dispatcher) view() recovery.View {
	return recovery.View{OpenFrom: d.claims.lowWater.in(d.clock.epoch), Gained: d.clock.gains.All()}
}

// inHand is the context of a step. A claim in hand is finished and handed over after ctx has ended: tickTimeout bounds it, and
// from ctx's end stopWithin.
func (d *Dispatcher) inHand(ctx context.Context) (bounded context.Context, end func()) {
	d.stopping.Store(ctx.Err() != nil)
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickTimeout)
	stop := context.AfterFunc(ctx, func() {
		d.stopping.Store(true)
		if pause(bounded, stopWithin) {
			cancel()
		}
	})
	return bounded, func() { stop(); cancel() }
}

// pause waits d, or less if ctx ends: then it returns false.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// poll gives each queue that is due a turn, and says when to poll again. Without wait, it skips queues whose limits cannot have
// room yet, and leaves what takes long to the next poll. With wait, it ends when nothing more can be claimed.
func (c *claimer) poll(ctx context.Context, wait bool) (time.Duration, error) {
	if left := c.standsBy(); left > 0 && !wait {
		return left, nil
	}
	for {
		if !c.sender.Reachable(ctx) {
			return errRetry, errors.New("claims wait for Redis")
		}
		queues, others, err := c.dueQueues(ctx)
		if err != nil {
			return errRetry, err
		}
		if others && !wait {
			c.standBy = c.cfg.Now().Add(standFor)
			return standFor, nil
		}
		round := outcome{pollIn: pollLater}
		for _, queue := range c.inTurn(queues) {
			result, claimErr := c.turn(ctx, queue, wait)
			err = errors.Join(err, claimErr)
			round.pollIn, round.more = min(round.pollIn, result.pollIn), round.more || result.more
			round.hurried = round.hurried || result.hurried
		}
		c.hurried = round.hurried || round.more
		switch {
		case err != nil:
			return errRetry, err
		case !round.more || !wait || c.stop():
			return min(round.pollIn, c.scan.again(c.cfg.Now())), nil
		}
	}
}

// inTurn orders the queues for a round, so that those that share a limit take turns: first those that were served longest ago,
// and of these any, so that a dispatcher that runs once does not always favor the same one.
func (c *claimer) inTurn(queues []dueQueue) []dueQueue {
	c.rounds++
	if len(queues) == 0 {
		return nil
	}
	first := c.cfg.Random(int64(len(queues)))
	list := slices.Concat(queues[first:], queues[:first])
	slices.SortStableFunc(list, func(a, b dueQueue) int { return cmp.Compare(c.served[a.Name], c.served[b.Name]) })
	return list
}

const turnFor = 250 * time.Millisecond

// turn claims from a queue that is due and may have room, until its limits, the workers or its calls run out, or other queues
// have waited long enough: then there is more.
func (c *claimer) turn(ctx context.Context, queue dueQueue, wait bool) (outcome, error) {
	began := c.cfg.Now()
	switch blockedFor := c.blocked[queue.Name].Sub(began); {
	case c.stop():
		return outcome{}, nil
	case !queue.Due:
		return outcome{pollIn: queue.In}, nil
	case !wait && blockedFor > 2*minGap: // not by a hair: the others' turn may be first
		return outcome{pollIn: blockedFor}, nil
	}
	if wait, err := c.needs.short(ctx, queue, began); err != nil || wait > 0 {
		c.blocked[queue.Name] = began.Add(wait)
		return outcome{pollIn: wait}, err
	}
	for pollIn := pollLater; ; pollIn = minGap { // what falls due after what was claimed, the next poll will know
		result, err := c.claim(ctx, queue.Name, wait)
		if err != nil {
			return outcome{}, fmt.Errorf("claim from queue %q: %w", queue.Name, err)
		}
		now := c.cfg.Now()
		c.blocked[queue.Name] = now.Add(result.blockedFor)
		if !result.more || c.stop() {
			return outcome{pollIn: min(pollIn, result.pollIn), hurried: result.hurried}, nil
		}
		if now.Sub(began) >= turnFor {
			return outcome{pollIn: minGap, more: true}, nil
		}
	}
}

// dueQueue is a queue with when its next call may be claimed.
type dueQueue struct {
	Name string        `db:"name"`
	Due  bool          `db:"due"`
	In   time.Duration `db:"due_in"`
	// Needs are units of budgets that each call draws.
	Needs map[string]int64 `db:"needs"`
	// Drawn is the number of the last claim, of whatever dispatcher.
	Drawn int64 `db:"drawn"`
}

// dueQueues reports also whether another dispatcher has claimed, after this one, since this one looked last. Then this one stands
// by: of two that both claim whenever a unit comes free, one claims for nothing. If the other dies, this one looks soon enough.
func (c *claimer) dueQueues(ctx context.Context) (due []dueQueue, others bool, err error) {
	began := c.cfg.Now()
	queues, since := c.scan.begin(began)
	rows, _ := c.cfg.db.Query(ctx, dueSQL, queues, since)
	due, err = pgx.CollectRows(rows, pgx.RowToStructByName[dueQueue])
	if err != nil {
		return nil, false, fmt.Errorf("look for due calls: %w", err)
	}
	c.scan.end(began, c.cfg.Now())
	if len(due) > 0 {
		others = c.seen > 0 && due[0].Drawn > c.seen
		c.seen = due[0].Drawn
	}
	return due, others, nil
}

// Three probes per queue: inbox rows, flows to wake, flows to claim from. run_at may be infinite, of which nothing can be
// subtracted.
const dueSQL = `
SELECT name, first_at <= clock_timestamp() AS due,
    least(greatest(first_at, clock_timestamp()), clock_timestamp() + interval '1 min') - clock_timestamp() AS due_in, needs,
    (SELECT coalesce(pg_sequence_last_value('callq.call_batch_seq'), 0)) AS drawn
FROM (
    SELECT r.name, nullif(r.needs, '{}') AS needs, least(n.at, w.at, a.at) AS first_at
    FROM callq.call_queues r
    LEFT JOIN unnest($1::text[], $2::timestamptz[]) AS s (queue, since) ON s.queue = r.name
    LEFT JOIN LATERAL (
        SELECT at FROM callq.call_inbox
        WHERE queue = r.name AND at >= coalesce(s.since, '-infinity')
        ORDER BY at LIMIT 1
    ) n ON true
    LEFT JOIN LATERAL (
        SELECT wake_at AS at FROM callq.call_flows
        WHERE queue = r.name AND wake_at IS NOT NULL AND wake_at >= coalesce(s.since, '-infinity')
        ORDER BY wake_at LIMIT 1
    ) w ON true
    LEFT JOIN LATERAL (
        SELECT timestamptz '-infinity' AS at FROM callq.call_flows
        WHERE queue = r.name AND wake_at IS NULL AND calls > 0
        LIMIT 1
    ) a ON true
) first
WHERE first_at IS NOT NULL
ORDER BY name`
