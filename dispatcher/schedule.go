package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"
)

// Schedule says when to do what, as cron expressions in UTC (five fields, or @every and the
// like).
type Schedule struct {
	Dispatch  string // default "@every 1s"
	Retention string // default "0 4 * * *"
	Vacuum    string // default "30 4 * * 0"
}

func (s Schedule) withDefaults() Schedule {
	return Schedule{
		Dispatch:  cmp.Or(s.Dispatch, "@every 1s"),
		Retention: cmp.Or(s.Retention, "0 4 * * *"),
		Vacuum:    cmp.Or(s.Vacuum, "30 4 * * 0"),
	}
}

func (s Schedule) check() error {
	for _, spec := range []string{s.Dispatch, s.Retention, s.Vacuum} {
		if _, err := cron.ParseStandard(spec); err != nil {
			return fmt.Errorf("schedule %q: %w", spec, err)
		}
	}
	return nil
}

// schedule makes the cron of this dispatcher; each part runs by itself and is passed over while
// its last run has not ended. cron does not recover panics by itself; Recover stands inside, for
// a panic that passed through SkipIfStillRunning would leave it locked for good.
func (d *Dispatcher) schedule(ctx context.Context) (*cron.Cron, error) {
	log := cronLog{d.log}
	c := cron.New(cron.WithLocation(time.UTC), cron.WithLogger(log),
		cron.WithChain(cron.SkipIfStillRunning(log), cron.Recover(log)))
	for _, part := range []struct {
		spec string
		run  func()
	}{
		{d.cfg.Schedule.Dispatch, func() { d.tick(ctx) }},
		{d.cfg.Schedule.Retention, func() { d.retain(ctx) }},
		{d.cfg.Schedule.Vacuum, func() { d.vacuum(ctx, func(ctx context.Context) error { return Vacuum(ctx, d.cfg.Pool) }) }},
		{"@every 10s", func() { d.vacuum(ctx, d.vacuumNeeded) }},
	} {
		if _, err := c.AddFunc(part.spec, part.run); err != nil {
			return nil, fmt.Errorf("schedule %q: %w", part.spec, err)
		}
	}
	return c, nil
}

// retain and vacuum are the scheduled forms of Retain and Vacuum.
func (d *Dispatcher) retain(ctx context.Context) {
	retired, err := Retain(ctx, d.cfg.Pool, d.cfg.Retention)
	if err != nil && ctx.Err() == nil {
		d.log.WarnContext(ctx, "retention cut short", "err", err)
	}
	if retired.Calls+retired.Attempts > 0 {
		d.log.InfoContext(ctx, "retired", "calls", retired.Calls, "attempts", retired.Attempts)
	}
}

func (d *Dispatcher) vacuum(ctx context.Context, run func(context.Context) error) {
	if err := run(ctx); err != nil && ctx.Err() == nil {
		d.log.WarnContext(ctx, "vacuum cut short", "err", err)
	}
}

// cronLog gives cron's log lines to slog; what it calls information is said at debug.
type cronLog struct{ log *slog.Logger }

func (l cronLog) Info(msg string, keysAndValues ...any) {
	l.log.Debug("cron reported", append([]any{"message", msg}, keysAndValues...)...)
}

func (l cronLog) Error(err error, msg string, keysAndValues ...any) {
	l.log.Error("cron reported", append([]any{"message", msg, "err", err}, keysAndValues...)...)
}
