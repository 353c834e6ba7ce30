package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/callq/callq/internal/history"
	"github.com/callq/callq/internal/maintenance"
	"github.com/robfig/cron/v3"
)

// Schedule describes when to do what, as cron expressions in UTC (five fields, or @every and the like).
type Schedule struct {
	Dispatch  string // default "@every 1s"
	Retention string // default "0 4 * * *"
	Vacuum    string // default "30 4 * * 0"
	Verify    string // default "off": never
}

// off is the schedule of what never runs.
const off = "off"

// specs returns when each job runs: the tick, retention, vacuum, vacuum of tables that need it, the history of a minute, and verify.
func (s Schedule) specs() []string {
	return []string{s.Dispatch, s.Retention, s.Vacuum, "@every 10s", "* * * * *", s.Verify}
}

// check fills in the defaults.
func (s *Schedule) check() error {
	s.Dispatch = cmp.Or(s.Dispatch, "@every 1s")
	s.Retention = cmp.Or(s.Retention, "0 4 * * *")
	s.Vacuum = cmp.Or(s.Vacuum, "30 4 * * 0")
	s.Verify = cmp.Or(s.Verify, off)
	specs := s.specs()
	if s.Verify == off { // it alone may be
		specs = specs[:len(specs)-1]
	}
	for _, spec := range specs {
		if strings.Contains(spec, "TZ=") && !strings.Contains(spec, " ") { // cron would panic
			return fmt.Errorf("schedule %q: it has a time zone, and no times", spec)
		}
		if _, err := cron.ParseStandard(spec); err != nil {
			return fmt.Errorf("schedule %q: %w", spec, err)
		}
	}
	return nil
}

// jobs are what a dispatcher runs on a schedule. A job is skipped while its last run has not ended.
type jobs struct {
	cron *cron.Cron
	of   Schedule
	runs []cron.Job // as Schedule.specs has them
}

// newJobs makes the jobs. cron does not recover panics by itself; Recover stands inside, for a panic that passed through
// SkipIfStillRunning would leave it locked for good. Both are of a job whatever its schedule: what follow adds anew does not run
// beside what still runs.
func (d *Dispatcher) newJobs(ctx context.Context) *jobs {
	log := cron.PrintfLogger(slog.NewLogLogger(d.cfg.Logger.Handler(), slog.LevelError))
	chain := cron.NewChain(cron.SkipIfStillRunning(log), cron.Recover(log))
	j := &jobs{cron: cron.New(cron.WithLocation(time.UTC), cron.WithLogger(log))}
	for _, run := range []cron.FuncJob{
		func() { signal(d.ticks) },
		func() { d.purge(ctx) },
		func() { d.logJob(ctx, "vacuum", maintenance.Vacuum(ctx, d.cfg.db)) },
		func() { d.logJob(ctx, "vacuum", maintenance.VacuumNeeded(ctx, d.cfg.db)) },
		func() { d.noteHistory(ctx) },
		func() { d.verify(ctx) },
	} {
		j.runs = append(j.runs, chain.Then(run))
	}
	j.follow(d.current.Load().Schedule)
	return j
}

// follow has the jobs run by s. Those whose schedule stays keep their time.
func (j *jobs) follow(s Schedule) {
	if s == j.of {
		return
	}
	for _, entry := range j.cron.Entries() {
		j.cron.Remove(entry.ID)
	}
	for i, spec := range s.specs() {
		if spec != off {
			_, _ = j.cron.AddJob(spec, j.runs[i]) // s was checked
		}
	}
	j.of = s
}

// purge runs retention and logs what it did.
func (d *Dispatcher) purge(ctx context.Context) {
	purged, err := d.purger.Purge(ctx, d.cfg.db, d.current.Load().Retention)
	d.logJob(ctx, "retention", err)
	if purged.Calls+purged.Attempts+purged.Results > 0 {
		d.cfg.Logger.InfoContext(ctx, "calls purged", "calls", purged.Calls, "attempts", purged.Attempts, "results", purged.Results)
	}
	if purged.Kept > 0 {
		d.cfg.Logger.WarnContext(ctx, "rows kept that cannot be removed", "rows", purged.Kept, "why", purged.KeptFor)
	}
}

// noteHistory notes the minute that has ended, unless nothing of it is kept. A dispatcher that stands by first lets the other do so, which
// has more to say.
func (d *Dispatcher) noteHistory(ctx context.Context) {
	if d.current.Load().Retention.History < 0 {
		return
	}
	if d.alarm.standsBy.Load() && !pause(ctx, historyLater) {
		return
	}
	d.stepping.Lock()
	openFrom := d.claims.OpenFrom()
	d.stepping.Unlock()
	d.logJob(ctx, "history", history.Note(ctx, d.cfg.db, d.claims.UnitWaits(), openFrom))
}

const historyLater = 5 * time.Second

func (d *Dispatcher) logJob(ctx context.Context, job string, err error) {
	if err != nil && ctx.Err() == nil {
		d.cfg.Logger.WarnContext(ctx, "job cut short", "job", job, "err", err)
	}
}
