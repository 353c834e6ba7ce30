// Package dispatcher claims calls up to what their limits still allow, hands them over to the
// workers, takes back what was lost on the way, and retires what is old.
//
// It promises that a claim never gives out a unit that may still be in use, however many
// dispatchers run: each counts under the locks of the limits involved, in Postgres. It needs no
// leader. What a crash leaves between two steps, the sweepers of any dispatcher find.
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

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// Config says what a dispatcher needs. Zero values mean the defaults.
type Config struct {
	// Pool says how to reach Postgres; required. Run and Once make connections of their own from its
	// configuration, at least 4, so that their sessions are set as their statements need it.
	Pool  *pgxpool.Pool
	Redis redis.UniversalClient // required
	// Listen is how the one connection that hears wake-ups is made; nil: as Pool's are. It must
	// not go through a pooler in transaction mode.
	Listen *pgx.ConnConfig
	// Rules are applied at the start of Run and Once, for every process that shares the database, unless they were
	// applied before and have been replaced since. Reload replaces these three.
	Rules     Rules
	Schedule  Schedule
	Retention Retention
	Apply     bool                  // Rules are applied even so
	MaxData   int64                 // bytes of call_data in a plain INSERT; default 256 KiB
	Lines     int                   // how many lines of calls a claim looks at; default 256
	Logger    *slog.Logger          // default: none
	Metrics   prometheus.Registerer // default: none
	// Now and Random stand in for a clock that nobody sets and for chance where what is decided depends
	// on them, so that a simulation can be replayed. Default: the time since boot, and rand.Int64N.
	Now    func() time.Time
	Random func(n int64) int64
}

// Dispatcher is one of any number that share a database. Make it with New, then Run, or Once.
type Dispatcher struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	hand    *handover
	wake    chan struct{}      // somebody said that there may be something to claim
	freed   atomic.Bool        // somebody said that units came free: what is in blocked holds no more
	armed   chan time.Duration // a tick says in how long there may be; sent and emptied in turn

	claimWithin time.Duration // claimTimeout, but for tests of claims that wait for one another

	id, name string                   // among those that live (live.go)
	settings atomic.Pointer[Settings] // from the file. Written by the start and by reloadLoop
	next     atomic.Pointer[Settings] // from Reload, not yet taken
	reload   chan struct{}            // next holds something

	// turn is held for a look or a tick: one at a time in a process. It guards what follows.
	turn     sync.Mutex
	clock    limit.Clock
	gains    limit.Gains          // as of the last reading of the clock
	epoch    string               // the last that was noted
	rounds   int                  // of looks: with served it turns the order of the queues, so that those that share a limit take turns
	blocked  map[string]time.Time // queue to when a unit can come free at the earliest (monotonic)
	first    int                  // where that order begins: anywhere, for one that runs once as for the others
	served   map[string]int       // queue to the round in which calls of it were last claimed
	turns    turns
	reach    reach
	openFrom openFrom
	hours    openings
	aside    aside
	// busyUntil is until when sweeps wait for no row: somebody held some (monotonic).
	busyUntil time.Time
	// lostRest is until when nothing is taken for lost, for Postgres was away: workers record first what ended
	// meanwhile (monotonic).
	lostRest time.Time
	// expiredRest is until when no sweep need look for all calls that expired (monotonic).
	expiredRest time.Time

	stopping  atomic.Bool  // the context has ended: what is in hand is finished, and no more is begun
	ticked    atomic.Int64 // when the last tick ended, Unix ns; 0: none yet
	failing   atomic.Bool  // the last tick failed
	published atomic.Bool
}

const (
	tickTimeout  = 30 * time.Second
	stopWithin   = claimTimeout + redisTimeout // what is in hand when the context ends: a claim and its hand-over
	claimTimeout = 5 * time.Second
	claimMost    = 2000 // calls in one claim
	minGap       = 5 * time.Millisecond
)

// New checks cfg and makes a Dispatcher. It starts nothing.
func New(cfg Config) (*Dispatcher, error) {
	if cfg.Pool == nil {
		return nil, errors.New("dispatcher: Config.Pool is required")
	}
	if cfg.Redis == nil {
		return nil, errors.New("dispatcher: Config.Redis is required")
	}
	settings := Settings{cfg.Rules, cfg.Schedule, cfg.Retention}
	if err := settings.check(); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	cfg.MaxData = cmp.Or(cfg.MaxData, 256<<10)
	cfg.Lines = cmp.Or(cfg.Lines, 256)
	if cfg.Listen == nil {
		cfg.Listen = cfg.Pool.Config().ConnConfig
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = sinceBoot
	}
	if cfg.Random == nil {
		cfg.Random = rand.Int64N
	}
	d := &Dispatcher{
		cfg:     cfg,
		log:     cfg.Logger,
		metrics: newMetrics(cfg.Metrics),
		hand:    &handover{pool: cfg.Pool, redis: cfg.Redis, log: cfg.Logger},
		wake:    make(chan struct{}, 1),
		armed:   make(chan time.Duration, 1),
		reload:  make(chan struct{}, 1),
		blocked: map[string]time.Time{},
		served:  map[string]int{},
		turns:   turns{},
		hours:   openings{},
		aside:   aside{},
		reach:   reach{takenIn: map[string]time.Time{}},

		claimWithin: claimTimeout,
	}
	d.name = processName()
	d.id = fmt.Sprintf("%s-%x", d.name, rand.Uint32())
	d.settings.Store(&settings)
	d.first = int(cfg.Random(1 << 16))
	return d, nil
}

// Ready says why the dispatcher does not dispatch, or nil: its rules are not published, or no
// tick has ended for too long.
func (d *Dispatcher) Ready() error {
	if !d.published.Load() {
		return errors.New("limits and queues are not yet published to Postgres")
	}
	if last := d.ticked.Load(); last != 0 && time.Since(time.Unix(0, last)) > 2*tickTimeout {
		return fmt.Errorf("no tick has ended since %s", time.Unix(0, last).UTC().Format(time.RFC3339))
	}
	return nil
}

// Run applies the rules, then dispatches on its schedule and between ticks until ctx ends; the
// claim in hand is finished and handed over. It waits for Postgres for as long as that is away.
func (d *Dispatcher) Run(ctx context.Context) error {
	return d.connected(ctx, func() error {
		if !d.joinWhenUp(ctx) {
			return nil
		}
		return d.present(ctx, func() error { return d.dispatch(ctx) })
	})
}

// connected runs a part on connections of its own.
func (d *Dispatcher) connected(ctx context.Context, part func() error) error {
	given := d.cfg.Pool
	own, end, err := ledger.Connect(ctx, given, 4)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer end()
	defer func() { d.cfg.Pool, d.hand.pool = given, given }()
	d.cfg.Pool, d.hand.pool = own, own
	return part()
}

// dispatch is Run once the rules are published.
func (d *Dispatcher) dispatch(ctx context.Context) error {
	settings := d.settings.Load()
	jobs, err := d.schedule(ctx, settings.Schedule)
	if err != nil {
		return err
	}
	d.log.InfoContext(ctx, "dispatcher started", "queues", len(settings.Rules.Queues), "limits", len(settings.Rules.Limits))
	var parts sync.WaitGroup
	parts.Go(func() { d.listen(ctx) })
	parts.Go(func() { d.lookLoop(ctx) })
	parts.Go(func() { d.reloadLoop(ctx, jobs) })
	parts.Go(func() { d.tick(ctx) })
	jobs.cron.Start()
	<-ctx.Done()
	d.log.Info("dispatcher draining") //nolint:sloglint // ctx has ended
	<-jobs.cron.Stop().Done()
	parts.Wait()
	d.log.Info("dispatcher stopped") //nolint:sloglint // ctx has ended
	return nil
}

// Once applies the rules, as Run does, and runs one whole tick: sweepers, then claims until nothing more may
// be claimed. Any number may run at once.
func (d *Dispatcher) Once(ctx context.Context) error {
	return d.connected(ctx, func() error {
		if err := d.enter(ctx, d.settings.Load().Rules, d.cfg.Apply); err != nil {
			return err
		}
		return d.present(ctx, func() error { return d.tickOnce(ctx) })
	})
}

// Turn is one turn of Run's, for whoever keeps the time: a whole tick, or a look between ticks. It
// says in how long to look again. Not for use beside Run.
func (d *Dispatcher) Turn(ctx context.Context, tick bool) (time.Duration, error) {
	if !tick {
		return d.lookOnce(ctx)
	}
	if err := d.tickOnce(ctx); err != nil {
		return 0, err
	}
	return <-d.armed, nil
}

// joinWhenUp applies the rules, waiting for Postgres and its schema; false: ctx ended first. What is reloaded
// meanwhile counts.
func (d *Dispatcher) joinWhenUp(ctx context.Context) bool {
	always := d.cfg.Apply
	for said := false; ; {
		if next := d.next.Swap(nil); next != nil {
			d.settings.Store(next)
			always = true
		}
		err := d.enter(ctx, d.settings.Load().Rules, always)
		if err == nil || ctx.Err() != nil {
			return err == nil
		}
		d.lostRest = d.cfg.Now().Add(lostRest)
		if !said {
			d.log.WarnContext(ctx, "waiting for Postgres", "err", err)
			said = true
		}
		if !pause(ctx, time.Second) {
			return false
		}
	}
}

// tick runs tickOnce and says when its outcome changed: once, not at every tick.
func (d *Dispatcher) tick(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	begun := time.Now()
	err := d.tickOnce(ctx)
	d.metrics.ticked(time.Since(begun), err)
	d.ticked.Store(time.Now().UnixNano())
	switch failed := err != nil; {
	case ctx.Err() != nil || d.failing.Swap(failed) == failed:
	case failed:
		d.log.WarnContext(ctx, "ticks cut short", "err", err)
	default:
		d.log.InfoContext(ctx, "ticks whole again")
	}
}

// tickOnce does everything that is due. A failure of one part does not keep the others from
// their turn; what is left over is found by the next tick.
func (d *Dispatcher) tickOnce(ctx context.Context) error {
	bounded, end := d.inHand(ctx)
	defer end()
	d.turn.Lock()
	defer d.turn.Unlock()
	// A step forward must be seen before anything is reckoned back from Postgres's clock, and also
	// while there is nothing to claim.
	_, epoch, err := d.readClock(bounded, d.cfg.Pool)
	if err != nil {
		d.lostRest = d.cfg.Now().Add(lostRest)
		return err
	}
	if err := d.noteEpoch(bounded, epoch); err != nil {
		return err
	}
	sweepErr := d.sweep(bounded)
	next, lookErr := d.look(bounded, true)
	if lookErr == nil {
		d.disarm()
		d.armed <- next
	}
	return errors.Join(sweepErr, lookErr)
}

// lookLoop claims between ticks: when woken, when a unit comes free, when a call falls due. It
// only makes things quicker; the ticks alone would do.
func (d *Dispatcher) lookLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		woken := false
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
			woken = true
		case next := <-d.armed:
			timer.Reset(max(next, minGap))
			continue
		case <-timer.C:
		}
		next, err := d.lookOnce(ctx)
		if err != nil {
			d.log.DebugContext(ctx, "look cut short", "err", err)
			next = time.Second
		}
		if woken { // one client wakes once in 5 ms: what it inserted meanwhile is there by then
			next = min(next, minGap+time.Millisecond)
		}
		timer.Reset(max(next, minGap))
	}
}

func (d *Dispatcher) lookOnce(ctx context.Context) (time.Duration, error) {
	bounded, end := d.inHand(ctx)
	defer end()
	d.turn.Lock()
	defer d.turn.Unlock()
	d.disarm() // this look knows better
	if d.freed.Swap(false) {
		clear(d.blocked)
	}
	return d.look(bounded, false)
}

// inHand is the context of a tick or a look. A claim in hand is finished after ctx has ended, so that it
// is handed over and not left to the sweepers: tickTimeout bounds it, and from ctx's end stopWithin.
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

// disarm takes back what a tick has said and the loop has not heard yet.
func (d *Dispatcher) disarm() {
	select {
	case <-d.armed:
	default:
	}
}

// pause waits d, or less if ctx ends: then it returns false.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
