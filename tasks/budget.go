package tasks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/callq/callq/internal/budget"
)

// Draw takes n units of a budget, waiting until they are free. It reserves them at once, so that draws are served in
// turn and none is passed by a smaller one, and returns when they may be used; where that would be after ctx's deadline
// it takes nothing and returns a *[BudgetError] at once. When ctx ends while it waits, its units stay used. More units
// than the budget ever has at once (a token bucket's burst, a window's units) are an error, and so is a budget that no live
// dispatcher's configuration has. Of a budget per key, the call's key is drawn on.
//
// While Redis is away it waits for it, or, of a budget with on_outage open, goes through. An answer of Redis that does not pass by
// itself, such as a login without rights to the budget's key, is an error at once. Draw may be called by several
// goroutines of a handler at once. A Call that no worker made, as in a test of the handler, has all budgets and waits for none.
func (c *Call) Draw(ctx context.Context, name string, n int64) error {
	_, err := c.draw(ctx, map[string]int64{name: n}, true)
	return err
}

// DrawAll is Draw of several budgets at one moment: it takes the units of all or of none. While Redis is away it goes through if
// all of them have on_outage open. On a Redis cluster their names must be the same up to the first slash, as openai/requests and
// openai/tokens are.
func (c *Call) DrawAll(ctx context.Context, units map[string]int64) error {
	_, err := c.draw(ctx, units, true)
	return err
}

// TryDraw takes n units of a budget if they are free now, and then returns 0. Otherwise it takes nothing, and returns how long
// they would have to be waited for. While Redis is away that is an error, unless the budget's on_outage is open.
func (c *Call) TryDraw(ctx context.Context, name string, n int64) (time.Duration, error) {
	return c.draw(ctx, map[string]int64{name: n}, false)
}

// Peek returns how many units of a budget are free now. The next draw may find fewer.
func (c *Call) Peek(ctx context.Context, name string) (free int64, err error) {
	if c.budgets == nil {
		return 0, ctx.Err()
	}
	err = c.budgets.with(ctx, name, func(ctx context.Context, u budget.Units) error {
		states, err := budget.Peek(ctx, c.budgets.Redis, u)
		if err == nil {
			free = states[0].Free
		}
		return err
	})
	return free, wrap(err, "peek at budget %q", name)
}

// Adjust corrects what the call has drawn of a budget once the true cost is known: by delta more units, or, below 0, fewer. More
// units were used already, so Adjust waits for none; later draws wait longer. Fewer are given back where they still count, and no
// more than this call has drawn. What is given back late may be lost: a window that has passed does not get it, and a token bucket
// only beside what was granted since. While Redis is away Adjust changes nothing, and that is an error.
func (c *Call) Adjust(ctx context.Context, name string, delta int64) error {
	switch b := c.budgets; {
	case delta == 0 || b == nil:
		return ctx.Err()
	case delta < -maxSettled || delta > maxSettled:
		return fmt.Errorf("adjust budget %q by %d: the most is %d", name, delta, int64(maxSettled))
	default:
		return wrap(b.adjust(ctx, name, delta), "adjust budget %q by %d", name, delta)
	}
}

// Throttle halves a budget's rate for all who draw on it, down to a sixteenth; call it when the API answers 429. The rate comes
// back within a minute. Of many calls within a second, one counts. Of a budget per key it is the key's rate.
func (c *Call) Throttle(ctx context.Context, name string) error {
	if c.budgets == nil {
		return ctx.Err()
	}
	return wrap(c.budgets.with(ctx, name, func(ctx context.Context, u budget.Units) error {
		multiplier, err := budget.Throttle(ctx, c.budgets.Redis, u)
		if err == nil {
			c.budgets.metrics.budgetMultiplier.WithLabelValues(name).Set(multiplier)
		}
		return err
	}), "throttle budget %q", name)
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

func (c *Call) draw(ctx context.Context, units map[string]int64, mayWait bool) (time.Duration, error) {
	names := slices.Sorted(maps.Keys(units))
	for _, name := range names {
		if units[name] < 1 {
			return 0, fmt.Errorf("draw %d units of budget %q: draw 1 at least", units[name], name)
		}
	}
	if c.budgets == nil || len(names) == 0 {
		return 0, ctx.Err()
	}
	wait, err := c.budgets.draw(ctx, names, units, mayWait)
	if _, refused := errors.AsType[*BudgetError](err); err != nil && !refused {
		var parts []string
		for _, name := range names {
			parts = append(parts, fmt.Sprintf("%d of budget %q", units[name], name))
		}
		err = fmt.Errorf("draw %s: %w", strings.Join(parts, " and "), err)
	}
	return wait, err
}

// BudgetError means that what a draw asked for comes free too late for its context. Nothing was taken.
type BudgetError struct {
	Budget string
	Units  int64
	Wait   time.Duration // until the units would have been free
	Left   time.Duration // until the context's deadline
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("budget %q has %d free in %s, and the context ends in %s: put the call off (tasks.Snooze), or raise its timeout or the budget's rate",
		e.Budget, e.Units, e.Wait.Round(time.Millisecond), e.Left.Round(time.Millisecond))
}

// budgets is what one attempt draws on.
type budgets struct {
	*budget.Store
	metrics    *metrics
	queue, key string
	owner      string // of its promises; see internal/budget
	released   func() // units came free that no claim could foresee

	mu    sync.Mutex
	drawn map[string][]drawn
}

// drawn is a draw, less what was given back of it.
type drawn struct {
	units int64
	part  *budget.Part // nil: it went through uncounted
}

const (
	// answerWithin is how long Redis may take: then it counts as away.
	answerWithin = 2 * time.Second
	// askAgain is when a Redis that was away is asked again.
	askAgain = 250 * time.Millisecond
	// budgetsEvery is how often the budgets in force are read again.
	budgetsEvery = 2 * time.Second
	// mostDrawn is how many draws of a budget a call remembers. Beyond that, the first two count as one, as old as the older:
	// then fewer units may be given back.
	mostDrawn = 64
)

// with asks Redis about one budget.
func (b *budgets) with(ctx context.Context, name string, ask func(context.Context, budget.Units) error) error {
	e, err := b.Rule(ctx, name)
	if err != nil {
		return err
	}
	u := budget.Units{Name: name, Rule: e.Rule, Key: b.key, N: 1}
	return b.Ask(ctx, []budget.Units{u}, func(ctx context.Context) error { return ask(ctx, u) })
}

// draw returns when the units may be used; where it may not wait, 0 or for how long it would have had to.
func (b *budgets) draw(ctx context.Context, names []string, of map[string]int64, mayWait bool) (time.Duration, error) {
	for outage := false; ; outage = true {
		units, open, owner := make([]budget.Units, len(names)), true, ""
		for i, name := range names {
			e, err := b.Rule(ctx, name)
			if err != nil {
				return 0, err
			}
			units[i], open = budget.Units{Name: name, Rule: e.Rule, Key: b.key, N: of[name]}, open && e.Open
			if slices.Contains(e.NeededBy, b.queue) {
				owner = b.owner
			}
			if most := e.Most(b.key); of[name] > most {
				return 0, fmt.Errorf("the most at once is %d (%s): draw in parts, or raise it", most, &e.Rule)
			}
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		left, maxWait := budget.Forever, time.Duration(0)
		if deadline, ok := ctx.Deadline(); ok {
			left = max(0, time.Until(deadline))
		}
		if mayWait {
			maxWait = left
		}
		var grant budget.Grant
		err := b.Ask(ctx, units, func(ctx context.Context) (err error) {
			grant, err = budget.Draw(ctx, b.Redis, owner, maxWait, units...)
			return err
		})
		switch {
		case err == nil && grant.Drawn:
			b.note(units, &grant)
			if grant.Wait > 0 && !pause(ctx, grant.Wait) {
				return 0, fmt.Errorf("%w while it waited for its turn", context.Cause(ctx))
			}
			return 0, nil
		case err == nil:
			last := units[grant.Last]
			b.metrics.budgetRefused.WithLabelValues(last.Name).Inc()
			if mayWait {
				return 0, &BudgetError{Budget: last.Name, Units: last.N, Wait: grant.Wait, Left: left}
			}
			return grant.Wait, nil
		case budget.Lasting(err):
			return 0, err
		case ctx.Err() != nil:
			return 0, fmt.Errorf("%w before Redis had answered (%w)", context.Cause(ctx), err)
		case !outage:
			for _, name := range names {
				b.metrics.budgetOutages.WithLabelValues(name).Inc()
			}
		}
		switch {
		case open:
			b.note(units, nil)
			return 0, nil
		case !mayWait:
			return 0, err
		case !pause(ctx, askAgain):
			return 0, fmt.Errorf("%w while Redis was away (%w): its on_outage is closed", context.Cause(ctx), err)
		}
	}
}

// note counts what was drawn, and keeps it for Adjust; without a grant it went through uncounted.
func (b *budgets) note(units []budget.Units, grant *budget.Grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.drawn == nil {
		b.drawn = map[string][]drawn{}
	}
	for i, u := range units {
		d := drawn{units: u.N}
		if grant == nil {
			b.metrics.budgetUncounted.WithLabelValues(u.Name).Add(float64(u.N))
		} else {
			d.part = &grant.Parts[i]
			b.metrics.budgetUnits.WithLabelValues(u.Name).Add(float64(u.N))
			b.metrics.budgetWait.WithLabelValues(u.Name).Observe(grant.Wait.Seconds())
			b.metrics.budgetMultiplier.WithLabelValues(u.Name).Set(d.part.Multiplier)
		}
		list := append(b.drawn[u.Name], d)
		if len(list) > mostDrawn {
			list[0].units += list[1].units
			list = slices.Delete(list, 1, 2)
		}
		b.drawn[u.Name] = list
	}
}

// adjust gives back what was drawn last first.
func (b *budgets) adjust(ctx context.Context, name string, delta int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	list, total := b.drawn[name], int64(0)
	for _, d := range list {
		total += d.units
	}
	switch {
	case len(list) == 0:
		return errors.New("the call has drawn none of it")
	case -delta > total:
		return fmt.Errorf("the call has drawn %d of it", total)
	}
	for delta != 0 {
		last := &list[len(list)-1]
		by := max(delta, -last.units)
		if last.part != nil {
			if err := b.with(ctx, name, func(ctx context.Context, u budget.Units) error {
				return budget.Adjust(ctx, b.Redis, u, *last.part, by)
			}); err != nil {
				return err
			}
		}
		delta -= by
		if last.units += by; last.units == 0 {
			list = list[:len(list)-1]
			b.drawn[name] = list
		}
		if by < 0 {
			b.released()
		}
	}
	return nil
}

// promised is the owner of what a claim promised the attempt, if its queue needs budgets.
func (a *attempt) promised() string { return budget.Owner(a.w.database, a.callID) }

// unpromise ends what the attempt was promised and has not drawn. What it leaves, as while Redis is away, dispatchers find.
func (a *attempt) unpromise() {
	for name, rule := range a.w.budgets.NeededBy(a.Queue) {
		u, left := []budget.Units{{Name: name, Rule: rule, Key: a.Key}}, int64(0)
		err := a.w.budgets.Ask(a.w.recording, u, func(ctx context.Context) (err error) {
			left, err = a.w.cfg.Budgets.HDel(ctx, u[0].Promised(), a.promised()).Result()
			return err
		})
		if err == nil && left > 0 {
			a.w.recorder.unforeseen()
		}
	}
}
