package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/callq/callq/internal/claim"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/recovery"
)

const (
	tickTimeout = 30 * time.Second
	retryIn     = time.Second
	stopWithin  = claim.Timeout + handoff.Timeout // what is in hand when the context ends: a claim and its hand-over
)

// signal wakes who waits, or soon will. As with a time.Ticker, at most one signal waits.
func signal(waiting chan struct{}) {
	select {
	case waiting <- struct{}{}:
	default:
	}
}

// stepLoop ticks on schedule. In between it polls: when notified, and for a while after that, when a unit comes free,
// or when a call falls due. Polls only make things quicker; the ticks alone would do.
func (d *Dispatcher) stepLoop(ctx context.Context) {
	d.pace.toldAt = time.Now()
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
			if wait := d.pace.told(time.Now(), d.polls(0, nil)); wait > 0 {
				timer.Reset(wait)
				continue
			}
		case <-timer.C:
		}
		d.pace.polled(time.Now())
		in, err := d.observe(ctx, tick)
		left := d.polls(in, err)
		d.alarm.standsBy.Store(left.standBy > 0)
		timer.Reset(d.pace.stepped(time.Now(), left))
	}
}

func (d *Dispatcher) polls(in time.Duration, err error) polls {
	return polls{in: in, standBy: d.claims.StandBy(), hurried: d.claims.Hurried(), failed: err != nil}
}

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
			d.cfg.Logger.WarnContext(ctx, "tick cut short", "err", err)
		}
	case d.failing:
		d.cfg.Logger.InfoContext(ctx, "ticks complete again")
	}
	d.metrics.ticks.WithLabelValues(result).Inc()
	d.failing = err != nil
	return next, err
}

// Step is one step of Run, for a caller who keeps the time: a whole tick, or a poll between ticks. It returns in how long to poll
// again. A panic is an error: other parts of the process, workers say, must not end with it. Do not call Step beside Run.
func (d *Dispatcher) Step(ctx context.Context, tick bool) (next time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			next, err = retryIn, fmt.Errorf("panic: %v", p)
			d.cfg.Logger.ErrorContext(ctx, "step panicked", "tick", tick, "err", err, "stack", string(debug.Stack()))
		}
	}()
	bounded, end := d.inHand(ctx)
	defer end()
	d.stepping.Lock()
	defer d.stepping.Unlock()
	if tick {
		return d.tick(bounded)
	}
	if d.alarm.freed.Swap(false) {
		d.claims.Freed()
	}
	if d.alarm.joined.Swap(false) {
		d.claims.Joined()
	}
	return d.claims.Poll(bounded, false)
}

// tick does everything that is due, unless another dispatcher does. If one part fails, the others still get their turn; the next tick
// finds what is left. A step of Postgres's clock must be seen before anything is computed back from that clock, and also while there is
// nothing to claim.
func (d *Dispatcher) tick(ctx context.Context) (time.Duration, error) {
	if _, err := d.claims.ReadClock(ctx); err != nil {
		d.recovery.PostgresAway()
		return retryIn, err
	}
	if left, err := d.claims.LeavesTick(ctx); left > 0 || err != nil {
		return left, err
	}
	recoverErr := d.recovery.Pass(ctx, d.view(), d.stopping.Load, d.metrics.recovered)
	next, pollErr := d.claims.Poll(ctx, true)
	return next, errors.Join(recoverErr, pollErr)
}

// enterEpoch waits until a new failover epoch is entered, which takes seconds.
func (d *Dispatcher) enterEpoch(ctx context.Context) error {
	read := func() (bool, error) {
		d.stepping.Lock()
		defer d.stepping.Unlock()
		return d.claims.ReadClock(ctx)
	}
	for {
		if entered, err := read(); entered || err != nil {
			return err
		}
		if !pause(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func (d *Dispatcher) view() recovery.View {
	return recovery.View{OpenFrom: d.claims.OpenFrom(), Gained: d.claims.Gained()}
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
