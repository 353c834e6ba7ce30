package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// Draw takes n units of a budget, waiting until they are free. It reserves them at once, so that draws are
// served in turn and none is passed by a smaller one, and returns when they may be used; where that would be
// after ctx's deadline it takes nothing and returns a *[BudgetError] at once. When ctx ends while it waits, its
// units stay used. More units than the budget's burst are an error, and so is a budget that no live dispatcher's
// configuration has.
//
// While Redis is away it waits for it, or, of a budget with on_outage open, goes through. Draw may be called
// by several goroutines of a handler at once. A Call that no worker made, as in a test of the handler, has all
// budgets and waits for none.
func (c *Call) Draw(ctx context.Context, name string, n int64) error {
	_, err := c.draw(ctx, name, n, true)
	return err
}

// TryDraw takes n units of a budget if they are free now, and then returns 0. Otherwise it takes nothing, and
// returns how long they would have to be waited for. While Redis is away that is an error, unless the budget's
// on_outage is open.
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
	if err != nil {
		if _, refused := errors.AsType[*BudgetError](err); !refused {
			err = fmt.Errorf("draw %d of budget %q: %w", n, name, err)
		}
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

	used    chan struct{} // closed by the first draw: from then on the rules are followed
	reading singleflight.Group

	mu     sync.Mutex
	rules  map[string]budgetRule // nil: not read yet
	readAt time.Time
	away   map[string]time.Time // budgets for which Redis did not answer: when to ask it again
}

type budgetRule struct {
	budget.Rule
	open bool // a draw goes through while Redis is away
}

const (
	// answerWithin is how long Redis may take: then it counts as away.
	answerWithin = 2 * time.Second
	// askAgain is when a Redis that was away is asked again, by one draw of each budget.
	askAgain = 250 * time.Millisecond
	// unknownFor is how old the rules may be before they are read again for a budget that is not among them.
	unknownFor = time.Second
)

func newBudgets(db *pgxpool.Pool, redis redis.UniversalClient, log *slog.Logger, m *metrics) *budgets {
	return &budgets{db: db, redis: redis, log: log, metrics: m, used: make(chan struct{}), away: map[string]time.Time{}}
}

// follow reads the rules every heartbeatEvery, once there was a draw. While Postgres is away the last ones hold.
func (b *budgets) follow(ctx context.Context) {
	select {
	case <-b.used:
	case <-ctx.Done():
	}
	for pause(ctx, heartbeatEvery) {
		if err := b.read(ctx); err != nil {
			b.log.DebugContext(ctx, "budgets not read", "err", err) // the heartbeat says what is wrong
		}
	}
}

func (b *budgets) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	asked := time.Now()
	rows, err := b.db.Query(ctx, budgetsSQL)
	if err != nil {
		return fmt.Errorf("read the budgets: %w", err)
	}
	rules := map[string]budgetRule{}
	var name string
	var rule budgetRule
	if _, err := pgx.ForEachRow(rows, []any{&name, &rule.Rate.Units, &rule.Rate.Window, &rule.Burst, &rule.open}, func() error {
		rules[name] = rule
		return nil
	}); err != nil {
		return fmt.Errorf("read the budgets: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rules == nil {
		close(b.used)
	}
	if asked.After(b.readAt) {
		b.rules, b.readAt = rules, asked
	}
	return nil
}

const budgetsSQL = `SELECT name, rate, window_size, burst, on_outage = 'open' FROM call_budgets`

// rule is a budget's rule in force. One that is not known is looked for anew.
func (b *budgets) rule(ctx context.Context, name string) (budgetRule, error) {
	rule, known, fresh := b.lookUp(name)
	if known {
		return rule, nil
	}
	if !fresh {
		reading := b.reading.DoChan("", func() (any, error) { return nil, b.read(context.WithoutCancel(ctx)) })
		select {
		case answer := <-reading:
			if answer.Err != nil {
				return rule, answer.Err
			}
		case <-ctx.Done():
			return rule, context.Cause(ctx)
		}
		if rule, known, _ = b.lookUp(name); known {
			return rule, nil
		}
	}
	return rule, errors.New("no such budget is in force: add it under budgets in the configuration of serve or dispatch, and reload (SIGHUP) or restart them")
}

func (b *budgets) lookUp(name string) (rule budgetRule, known, fresh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rule, known = b.rules[name]
	return rule, known, b.rules != nil && time.Since(b.readAt) < unknownFor
}

// draw returns when the units may be used; where it may not wait, 0 or for how long it would have had to.
func (b *budgets) draw(ctx context.Context, name string, n int64, mayWait bool) (time.Duration, error) {
	for outage := false; ; outage = true {
		rule, err := b.rule(ctx, name)
		if err != nil {
			return 0, err
		}
		if n > rule.Burst {
			return 0, fmt.Errorf("its burst is %d (%s): draw in parts, or raise the burst", rule.Burst, rule)
		}
		if err := ctx.Err(); err != nil {
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
		}
		if !outage {
			b.metrics.budgetOutages.WithLabelValues(name).Inc()
		}
		if rule.open {
			return 0, nil
		}
		if !mayWait {
			return 0, err
		}
		if !pause(ctx, askAgain) {
			return 0, fmt.Errorf("%w while Redis was away (%w): its on_outage is closed", context.Cause(ctx), err)
		}
	}
}
