package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/callq/callq/internal/maintenance"
	"github.com/jackc/pgx/v5/pgxpool"
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

// specs says when each scheduled part runs: the tick, retention, vacuum, and vacuum of tables that need it.
func (s Schedule) specs() []string { return []string{s.Dispatch, s.Retention, s.Vacuum, "@every 10s"} }

func (s Schedule) check() error {
	for _, spec := range s.specs() {
		if _, err := cron.ParseStandard(spec); err != nil {
			return fmt.Errorf("schedule %q: %w", spec, err)
		}
	}
	return nil
}

// jobs is the cron of a dispatcher.
type jobs struct {
	cron *cron.Cron
	runs []scheduled // as Schedule.specs has them. Written by follow only
}

// scheduled is a part that runs on a schedule. It is skipped while its last run has not ended.
type scheduled struct {
	spec string
	job  cron.Job
	id   cron.EntryID
}

// schedule makes the jobs of this dispatcher. cron does not recover panics by itself; Recover stands
// inside, for a panic that passed through SkipIfStillRunning would leave it locked for good.
func (d *Dispatcher) schedule(ctx context.Context, s Schedule) (*jobs, error) {
	log := cronLog{d.cfg.Logger}
	chain := cron.NewChain(cron.SkipIfStillRunning(log), cron.Recover(log))
	j := &jobs{cron: cron.New(cron.WithLocation(time.UTC), cron.WithLogger(log))}
	for i, run := range []func(){
		func() { d.tick(ctx) },
		func() { purge(ctx, d.cfg.Pool, d.settings.current.Load().Retention, d.cfg.Logger) },
		func() { logVacuum(ctx, maintenance.Vacuum(ctx, d.cfg.Pool), d.cfg.Logger) },
		func() { logVacuum(ctx, maintenance.VacuumNeeded(ctx, d.cfg.Pool), d.cfg.Logger) },
	} {
		part := scheduled{spec: s.specs()[i], job: chain.Then(cron.FuncJob(run))}
		id, err := j.cron.AddJob(part.spec, part.job)
		if err != nil {
			return nil, fmt.Errorf("schedule %q: %w", part.spec, err)
		}
		part.id = id
		j.runs = append(j.runs, part)
	}
	return j, nil
}

// follow gives each part whose schedule changed its new one; the others keep their time. s was checked.
func (j *jobs) follow(s Schedule) error {
	for i, spec := range s.specs() {
		part := &j.runs[i]
		if part.spec == spec {
			continue
		}
		id, err := j.cron.AddJob(spec, part.job)
		if err != nil {
			return fmt.Errorf("schedule %q: %w", spec, err)
		}
		j.cron.Remove(part.id)
		part.spec, part.id = spec, id
	}
	return nil
}

// purge runs retention and logs what it did.
func purge(ctx context.Context, pool *pgxpool.Pool, keep maintenance.Retention, log *slog.Logger) {
	purged, err := maintenance.Purge(ctx, pool, keep, nil)
	if err != nil && ctx.Err() == nil {
		log.WarnContext(ctx, "retention cut short", "err", err)
	}
	if purged.Calls+purged.Attempts > 0 {
		log.InfoContext(ctx, "calls purged", "calls", purged.Calls, "attempts", purged.Attempts)
	}
	if purged.Kept > 0 {
		log.WarnContext(ctx, "rows kept that cannot be removed", "rows", purged.Kept, "why", purged.KeptFor)
	}
}

func logVacuum(ctx context.Context, err error, log *slog.Logger) {
	if err != nil && ctx.Err() == nil {
		log.WarnContext(ctx, "vacuum cut short", "err", err)
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
