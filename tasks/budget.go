package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// Draw takes n units of a budget, waiting until they are free. It reserves them at once, so that draws are served in
// turn and none is passed by a smaller one, and returns when they may be used; where that would be after ctx's deadline
// it takes nothing and returns a *[BudgetError] at once. When ctx ends while it waits, its units stay used. More units
// than the budget's burst are an error, and so is a budget that no live dispatcher's configuration has.
//
// While Redis is away it waits for it, or, of a budget with on_outage open, goes through. Draw may be called by several
// goroutines of a handler at once. A Call that no worker made, as in a test of the handler, has all budgets and waits for none.
func (c *Call) Draw(ctx context.Context, name string, n int64) error {
	_, err := c.draw(ctx, name, n, true)
	return err
}

// TryDraw takes n units of a budget if they are free now, and then returns 0. Otherwise it takes nothing, and returns how long
// they would have to be waited for. While Redis is away that is an error, unless the budget's on_outage is open.
func (c *Call) TryDraw(ctx context.Context, name string, n int64) (time.Duration, error) {
	return c.draw(ctx, name, n, false)
}

func (c *Call) draw(ctx context.Context, name string, n int64, mayWait bool) (time.Duration, error) {
	if n < 1 {
		return 0, fmt.Errorf("draw %d units of budget %q: draw 1 at least", n, name)
	}
	if c.budgets == nil {
		return 0, ctx.Err()
	}
	wait, err := c.budgets.draw(ctx, name, n, mayWait)
	if _, refused := errors.AsType[*BudgetError](err); err != nil && !refused {
		err = fmt.Errorf("draw %d of budget %q: %w", n, name, err)
	}
	return wait, err
}

// BudgetError says that what a draw asked for comes free too late for its context. Nothing was taken.
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

// budgets is what handlers draw on: the rules that are in force, and buckets in Redis.
type budgets struct {
	db      *pgxpool.Pool
	redis   redis.UniversalClient
	log     *slog.Logger
	metrics *metrics

	rules atomic.Pointer[map[string]budgetRule] // as they were read last; nil: they were not
	// away has, by budget, when to ask again a Redis that does not answer. A cluster may have lost one budget's node alone, and a
	// key that is not callq's spoils one budget alone.
	away sync.Map
}

type budgetRule struct {
	budget.Rule
	open bool // a draw goes through while Redis is away
}

const (
	// answerWithin is how long Redis may take: then it counts as away. (A client without ContextTimeoutEnabled has timeouts
	// of its own.)
	answerWithin = 2 * time.Second
	// askAgain is when a Redis that was away is asked again.
	askAgain = 250 * time.Millisecond
	// budgetsEvery is how often the rules are read again. While Postgres is away the last that were read hold.
	budgetsEvery = 2 * time.Second
)

// rule is a budget's rule in force. One that is not known is read at once.
func (b *budgets) rule(ctx context.Context, name string) (rule budgetRule, err error) {
	for range 2 {
		if rules := b.rules.Load(); rules != nil {
			if rule, known := (*rules)[name]; known {
				return rule, nil
			}
		}
		if err := b.read(ctx); err != nil {
			return rule, err
		}
	}
	return rule, errors.New("no such budget is in force: add it under budgets in the configuration of serve or " +
		"dispatch, and reload (SIGHUP) or restart them")
}

func (b *budgets) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, _ := b.db.Query(ctx, budgetsSQL) // ForEachRow returns its error
	rules := map[string]budgetRule{}
	var name string
	var rule budgetRule
	_, err := pgx.ForEachRow(rows, []any{&name, &rule.Rate.Units, &rule.Rate.Window, &rule.Burst, &rule.open}, func() error {
		rules[name] = rule
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the budgets: %w", err)
	}
	b.rules.Store(&rules)
	return nil
}

const budgetsSQL = `SELECT name, rate, window_size, burst, on_outage = 'open' FROM call_budgets`

// draw returns when the units may be used; where it may not wait, 0 or for how long it would have had to.
func (b *budgets) draw(ctx context.Context, name string, n int64, mayWait bool) (time.Duration, error) {
	for outage := false; ; outage = true {
		rule, err := b.rule(ctx, name)
		switch {
		case err != nil:
			return 0, err
		case n > rule.Burst:
			return 0, fmt.Errorf("its burst is %d (%s): draw in parts, or raise the burst", rule.Burst, rule)
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		}
		left, maxWait := budget.Forever, time.Duration(0)
		if deadline, ok := ctx.Deadline(); ok {
			left = max(0, time.Until(deadline))
		}
		if mayWait {
			maxWait = left
		}
		grant, err := b.ask(ctx, name, rule, n, maxWait)
		switch {
		case err == nil && grant.Drawn:
			b.metrics.budgetUnits.WithLabelValues(name).Add(float64(n))
			b.metrics.budgetWait.WithLabelValues(name).Observe(grant.Wait.Seconds())
			if grant.Wait > 0 && !pause(ctx, grant.Wait) {
				return 0, fmt.Errorf("%w while it waited for its turn", context.Cause(ctx))
			}
			return 0, nil
		case err == nil:
			b.metrics.budgetRefused.WithLabelValues(name).Inc()
			if mayWait {
				return 0, &BudgetError{Budget: name, Units: n, Wait: grant.Wait, Left: left}
			}
			return grant.Wait, nil
		case ctx.Err() != nil:
			return 0, fmt.Errorf("%w before Redis had answered (%w)", context.Cause(ctx), err)
		case !outage:
			b.metrics.budgetOutages.WithLabelValues(name).Inc()
		}
		switch {
		case rule.open:
			return 0, nil
		case !mayWait:
			return 0, err
		case !pause(ctx, askAgain):
			return 0, fmt.Errorf("%w while Redis was away (%w): its on_outage is closed", context.Cause(ctx), err)
		}
	}
}

// ask asks Redis, and logs when it ceases to answer. While it does not, one draw of the budget asks from time to time: the others
// need not wait for an answer that does not come, and a frozen Redis grants later all that it was asked for.
func (b *budgets) ask(ctx context.Context, name string, rule budgetRule, n int64, maxWait time.Duration) (budget.Grant, error) {
	if again, away := b.away.Load(name); away {
		if time.Now().Before(again.(time.Time)) || !b.away.CompareAndSwap(name, again, time.Now().Add(answerWithin+askAgain)) {
			return budget.Grant{}, errors.New("no answer from Redis, which is asked again soon")
		}
	}
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	grant, err := budget.Draw(bounded, b.redis, name, rule.Rule, n, maxWait)
	if err == nil {
		b.away.Delete(name)
	} else if ctx.Err() == nil { // else the draw ended: if it was the one that asked, another does so in answerWithin
		if _, away := b.away.Swap(name, time.Now().Add(askAgain)); !away {
			b.log.WarnContext(ctx, "Redis does not answer draws: they wait, or go through with on_outage open", "budget", name, "err", err)
		}
	}
	return grant, err
}
