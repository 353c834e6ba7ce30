// Package dispatcher claims calls up to what their limits allow, hands them to the workers, recovers what was lost, and purges
// what is old.
//
// A claim never gives out a unit that may still be in use, however many dispatchers run: each counts under the locks of the
// limits involved, in Postgres. What a crash leaves between two steps, any dispatcher recovers.
package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/callq/callq/internal/boottime"
	"github.com/callq/callq/internal/claim"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/recovery"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// Config is what a dispatcher needs. Zero values mean the defaults.
type Config struct {
	// Pool describes how to reach Postgres; required. Run and Once open connections of their own from its configuration.
	Pool        *pgxpool.Pool
	Redis       redis.UniversalClient // required
	Schema      string                // callq's own; default callq
	TableSchema string                // that of call_queue and call_attempts; default public
	// Budgets is where budgets are; nil: Redis.
	Budgets redis.UniversalClient
	// Listen configures the one connection that hears notifications; nil: as Pool's. It must not go through a pooler in
	// transaction mode.
	Listen *pgx.ConnConfig
	// Policy is applied at the start of Run and Once, for every process that shares the database, unless it was applied
	// before and has been replaced since. Reload replaces these three.
	Policy    policy.Policy
	Schedule  Schedule
	Retention maintenance.Retention
	Apply     bool                  // apply Policy even so
	Failover  policy.Failover       // what is assumed of a server that took over; default policy.Witnessed
	MaxData   int64                 // bytes of call_data in a plain INSERT; default 256 KiB
	Flows     int                   // how many flows a claim reads; default 256
	Logger    *slog.Logger          // default: none
	Metrics   prometheus.Registerer // default: none
	// Now and Random replace a clock that is never set and chance, so that a simulation can be replayed. Default: the time
	// since boot, and rand.Int64N.
	Now    func() time.Time
	Random func(n int64) int64

	db schema.DB // Pool, or what connected made of it
}

func (c *Config) schemas() schema.Names { return schema.Names{Own: c.Schema, Tables: c.TableSchema} }

// Dispatcher is one of any number that share a database. Make it with New, then call Run or Once.
type Dispatcher struct {
	cfg      Config
	metrics  *metrics
	member   policy.Member
	current  atomic.Pointer[Settings] // in force; written by join
	next     chan *Settings           // the newest from Reload, until apply takes it
	ticks    chan struct{}            // the schedule's; one may wait
	alarm    *alarm
	stopping atomic.Bool        // the context has ended: what is in hand is finished, and no more is begun
	applied  atomic.Bool        // for Ready
	ticked   atomic.Int64       // for Ready: when the last tick ended, Unix ns; 0: none yet
	purger   maintenance.Purger // used by the job of retention alone

	// What follows is used by one goroutine only: stepLoop, or the caller of Once or Step. stepping is held by a step, and by a reload,
	// which reads the clock for claims too.
	stepping sync.Mutex
	failing  bool // the last tick failed
	pace     pace
	sender   *handoff.Broker
	claims   *claim.Claimer
	recovery *recovery.Recoverer
}

// New checks cfg and makes a Dispatcher. It starts nothing.
func New(cfg Config) (*Dispatcher, error) {
	if cfg.Pool == nil {
		return nil, errors.New("dispatcher: Config.Pool is required")
	}
	if cfg.Redis == nil {
		return nil, errors.New("dispatcher: Config.Redis is required")
	}
	if err := cfg.schemas().Check(); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	cfg.db = cfg.schemas().In(cfg.Pool)
	initial := Settings{cfg.Policy, cfg.Schedule, cfg.Retention}
	if err := initial.check(); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	cfg.MaxData, cfg.Flows = cmp.Or(cfg.MaxData, 256<<10), cmp.Or(cfg.Flows, 256)
	cfg.Failover = cmp.Or(cfg.Failover, policy.Witnessed)
	cfg.Listen = cmp.Or(cfg.Listen, cfg.Pool.Config().ConnConfig)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Budgets == nil {
		cfg.Budgets = cfg.Redis
	}
	if cfg.Now == nil {
		cfg.Now = boottime.Now
	}
	if cfg.Random == nil {
		cfg.Random = rand.Int64N
	}
	d := &Dispatcher{
		cfg: cfg, metrics: newMetrics(cfg.Metrics), member: policy.NewMember(), alarm: &alarm{notified: make(chan struct{}, 1), askEvery: 8 * time.Second, askWithin: 4 * time.Second},
		next: make(chan *Settings, 1), ticks: make(chan struct{}, 1), sender: handoff.New(cfg.Redis, cfg.db, cfg.Logger),
	}
	d.current.Store(&initial)
	d.claims = claim.New(claim.Config{
		DB: cfg.db, Sender: d.sender, Budgets: cfg.Budgets, Flows: cfg.Flows, Failover: cfg.Failover, Within: claim.Timeout,
		Log: cfg.Logger, Metrics: cfg.Metrics, Now: cfg.Now, Random: cfg.Random, Stop: d.stopping.Load,
	})
	d.pace.earlyFor = earlyFor
	d.recovery = recovery.New(recovery.Config{
		Pool: cfg.db, Sender: d.sender, Log: cfg.Logger, Now: cfg.Now, Random: cfg.Random,
	})
	return d, nil
}

// Ready returns why the dispatcher does not dispatch, or returns nil.
func (d *Dispatcher) Ready() error {
	if !d.applied.Load() {
		return errors.New("limits and queues are not yet applied to Postgres")
	}
	if last := d.ticked.Load(); last != 0 && time.Since(time.Unix(0, last)) > 2*tickTimeout {
		return fmt.Errorf("no tick has ended since %s", time.Unix(0, last).UTC().Format(time.RFC3339))
	}
	return nil
}

// Run applies the policy, then dispatches on its schedule and between ticks until ctx ends. A claim in hand is finished and
// handed over. Run waits for Postgres for as long as it is away.
func (d *Dispatcher) Run(ctx context.Context) error {
	return d.connected(ctx, func() error {
		applied, waited := d.apply(ctx, d.current.Load(), d.cfg.Apply)
		if !applied {
			return nil
		}
		if waited {
			d.recovery.PostgresAway()
		}
		return d.alive(ctx, func() error { d.dispatch(ctx); return nil })
	})
}

// Once applies the policy as Run does, then runs one whole tick: recovery, and claims until nothing more may be claimed. Any
// number may run at once.
func (d *Dispatcher) Once(ctx context.Context) error {
	return d.connected(ctx, func() error {
		if err := d.join(ctx, *d.current.Load(), d.cfg.Apply); err != nil {
			return err
		}
		return d.alive(ctx, func() error {
			_, err := d.Step(ctx, true)
			return err
		})
	})
}

// Recover runs every step of recovery until it finds nothing more, and repairs the backlog, for which it reads all calls. It
// claims and applies nothing. With dryRun, it counts what it would recover, and changes nothing.
func (d *Dispatcher) Recover(ctx context.Context, dryRun bool) ([]recovery.Recovered, error) {
	if !dryRun {
		if err := d.enterEpoch(ctx); err != nil {
			return nil, err
		}
	}
	return d.recovery.All(ctx, d.view(), dryRun)
}

// connected runs a part on connections of its own.
func (d *Dispatcher) connected(ctx context.Context, part func() error) error {
	given := d.cfg.db
	own, end, err := ledger.Connect(ctx, d.cfg.Pool, d.cfg.schemas(), 4)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer end()
	use := func(pool schema.DB) {
		d.cfg.db, d.recovery.Pool, d.sender.DB = pool, pool, pool
		d.claims.Use(pool)
	}
	use(own)
	defer use(given)
	return part()
}

// dispatch is Run once the policy is applied.
func (d *Dispatcher) dispatch(ctx context.Context) {
	current, jobs := d.current.Load(), d.newJobs(ctx)
	d.cfg.Logger.InfoContext(ctx, "dispatcher started",
		"queues", len(current.Policy.Queues), "limits", len(current.Policy.Limits))
	var parts sync.WaitGroup
	parts.Go(func() { d.alarm.listen(ctx, d.cfg.Listen, d.cfg.schemas(), d.cfg.Logger) })
	parts.Go(func() { d.stepLoop(ctx) })
	parts.Go(func() { d.reloadLoop(ctx, jobs) })
	signal(d.ticks)
	jobs.cron.Start()
	<-ctx.Done()
	over := context.WithoutCancel(ctx)
	d.cfg.Logger.InfoContext(over, "dispatcher draining")
	<-jobs.cron.Stop().Done()
	parts.Wait()
	d.cfg.Logger.InfoContext(over, "dispatcher stopped")
}
