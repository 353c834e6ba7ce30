// Package claim claims calls up to what their limits, their budgets and the workers' capacity allow, and hands them over.
//
// A claim counts what is occupied under the locks of the queue and its limits, in Postgres, and opens attempts in the same
// transaction. So however many dispatchers claim, no unit is given out that may still be in use.
package claim

import (
	"context"
	"log/slog"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/pools"
	"github.com/callq/callq/internal/schema"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// Timeout bounds a claim.
const Timeout = 5 * time.Second

// Config is what a Claimer works with. All fields are required.
type Config struct {
	DB       schema.DB
	Sender   *handoff.Broker
	Budgets  redis.UniversalClient // where budgets are
	Flows    int                   // how many flows a claim reads
	Failover policy.Failover
	Within   time.Duration // bounds a claim: Timeout, but in tests of claims that wait for one another
	Log      *slog.Logger
	Metrics  prometheus.Registerer // nil: none
	Now      func() time.Time      // a clock that is never set
	Random   func(n int64) int64   // in [0, n)
	Stop     func() bool           // whether to begin nothing more
}

// Claimer claims calls on behalf of one dispatcher. It is not safe for concurrent use, but for UnitWaits.
type Claimer struct {
	Config
	clock   *clockWatch
	metrics metrics

	rounds   int                  // of polls
	served   map[string]int       // queue to the round in which calls of it were last claimed
	blocked  map[string]time.Time // queue to when a unit can come free at the earliest
	standBy  time.Time            // until then another dispatcher claims; see dueQueues
	seen     int64                // the number of the last claim, of whichever dispatcher
	claimed  time.Time            // when this one claimed last
	known    known
	hurried  bool // see Hurried
	reserved reservations
	shares   *shares
	workers  pools.Reader
	runs     runs
	claims   int64 // of this one
	scan     scanWindow
	lowWater lowWater
	needs    needs
	waits    waits
}

// New makes a Claimer.
func New(cfg Config) *Claimer {
	c := &Claimer{
		Config: cfg, metrics: newMetrics(cfg.Metrics), served: map[string]int{}, blocked: map[string]time.Time{},
		reserved: reservations{}, runs: runs{}, known: known{}, scan: scanWindow{drained: map[string]time.Time{}}, waits: waits{of: map[string]unitWait{}},
	}
	c.clock = &clockWatch{cfg: &c.Config}
	c.shares = newShares(&c.Config)
	c.needs = newNeeds(&c.Config, c.metrics)
	return c
}

// Use has the Claimer work on another pool.
func (c *Claimer) Use(db schema.DB) { c.DB, c.needs.DB = db, db }

// ReadClock compares Postgres's clock with the monotonic one, and has the limits enter a new failover epoch. It returns false while
// workers are being asked what the failover lost.
func (c *Claimer) ReadClock(ctx context.Context) (entered bool, err error) {
	r, err := c.clock.read(ctx, c.DB)
	if err != nil {
		return false, err
	}
	return c.clock.noteEpoch(ctx, r.epoch)
}

// Gained is what Postgres's clock ever gained, as far as it is known.
func (c *Claimer) Gained() time.Duration { return c.clock.gains.All() }

// OpenFrom is the low-water mark: no attempt of a smaller batch is open.
func (c *Claimer) OpenFrom() int64 { return c.lowWater.in(c.clock.epoch) }

// Hurried reports that more can be claimed once a slot, or a unit of a concurrency limit, comes free.
func (c *Claimer) Hurried() bool { return c.hurried }

// StandBy is for how long claims are left to another dispatcher.
func (c *Claimer) StandBy() time.Duration { return c.standBy.Sub(c.Now()) }

// Freed tells that units came free that no claim could foresee.
func (c *Claimer) Freed() {
	clear(c.blocked)
	c.waits.freed()
}

// Joined tells that a worker came, perhaps the first of a task, whose flows were left out.
func (c *Claimer) Joined() {
	c.workers.Forget()
	clear(c.known)
}

// UnitWaits returns the longest that a due call had to wait for the next unit of each limit, since it was asked last. Limits that
// always had one are left out, and those of which it is not known.
func (c *Claimer) UnitWaits() map[string]time.Duration { return c.waits.take(c.Now()) }
