package dispatcher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
)

// The parts of a [Config], under names that other modules can use.
type (
	// Policy is the limits, queues and budgets to apply.
	Policy = policy.Policy
	// Limit bounds how many calls of its queues reach the API.
	Limit = policy.Limit
	// Queue describes which limits its calls use, and how they are retried.
	Queue = policy.Queue
	// Budget is what handlers draw on in Redis while they run.
	Budget = policy.Budget
	// BudgetShape is what only some budgets have.
	BudgetShape = policy.BudgetShape
	// Retention describes how long ended calls are kept.
	Retention = maintenance.Retention
	// Rate is how many units a limit or budget allows. Make one with [ParseRate] or [ParseRateOf], or write
	// Rate{Units: 50} for 50 at once.
	Rate = limit.Rate
	// Algorithm is the name of one, as in config.yaml; "" is sliding_window.
	Algorithm = limit.Algorithm
	// Anchor is from which step on an open attempt's request can be bounded.
	Anchor = limit.Anchor
)

// The anchors.
const (
	AnchorStart  = limit.AnchorStart
	AnchorFinish = limit.AnchorFinish
)

// ParseRate reads a sliding window's rate as people write it, such as 100/1h, 5/s or "100 per 1h".
func ParseRate(text string) (Rate, error) { return limit.ParseRate(text) }

// ParseRateOf reads the rate of any algorithm. burst is a token bucket's; timezone, an IANA name, a fixed window's.
// A leaky bucket's tolerance stands in the text, as in "1 per 10ms, leaky bucket, tolerance 50ms".
func ParseRateOf(text string, algorithm Algorithm, burst int64, timezone string) (Rate, error) {
	return limit.Parse(text, algorithm, burst, timezone)
}

// Settings are what a running dispatcher can be given anew.
type Settings struct {
	Policy    policy.Policy
	Schedule  Schedule
	Retention maintenance.Retention
}

// check refuses settings that contradict themselves, and fills in what is derived and the defaults.
func (s *Settings) check() error {
	if err := s.Policy.Check(); err != nil {
		return err
	}
	return s.Schedule.check()
}

// Reload replaces the settings of a running dispatcher as soon as their policy is applied for every process. Until then the
// former settings hold, however long Postgres is away. An error means that s contradicts itself, and that nothing changed.
func (d *Dispatcher) Reload(s Settings) error {
	if err := s.check(); err != nil {
		return fmt.Errorf("dispatcher: %w", err)
	}
	for {
		select {
		case d.next <- &s:
			return nil
		case <-d.next: // older, and not applied yet
		}
	}
}

func (d *Dispatcher) reloadLoop(ctx context.Context, jobs *jobs) {
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-d.next:
			if applied, _ := d.apply(ctx, next, true); !applied {
				return
			}
		}
		current := d.current.Load()
		jobs.follow(current.Schedule)
		d.alarm.notify(callqueue.WakeFreed)
		d.cfg.Logger.InfoContext(ctx, "new settings in force",
			"queues", len(current.Policy.Queues), "limits", len(current.Policy.Limits))
	}
}

// apply puts settings in force, or newer ones that Reload gives meanwhile. Unless always, it may leave what is in force (join).
// While Postgres is away, or lacks its schema, apply waits. It returns false if ctx ends first.
func (d *Dispatcher) apply(ctx context.Context, s *Settings, always bool) (applied, waited bool) {
	for {
		select {
		case s = <-d.next:
			always = true
		default:
		}
		err := d.join(ctx, *s, always)
		if err == nil || ctx.Err() != nil {
			return err == nil, waited
		}
		if !waited {
			d.cfg.Logger.WarnContext(ctx, "new settings not yet in force: waiting for Postgres", "err", err)
		}
		waited = true
		if !pause(ctx, time.Second) {
			return false, waited
		}
	}
}

// join makes this process a live member, and applies its policy, in one transaction. Unless always, a start may leave what is in
// force. If the answer to a commit is lost, it is done again, which is harmless.
func (d *Dispatcher) join(ctx context.Context, s Settings, always bool) error {
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	if err := d.enterEpoch(ctx); err != nil {
		return err
	}
	changes, kept, err := d.member.Join(ctx, d.cfg.db, s.Policy, always, d.cfg.MaxData)
	if err != nil {
		return err
	}
	for _, change := range changes {
		d.cfg.Logger.InfoContext(ctx, "rules applied", "change", change)
	}
	if kept != nil {
		d.cfg.Logger.WarnContext(ctx, "rules not applied: others stay in force",
			"why", kept.Why, "applied_by", kept.By, "applied_at", kept.At, "fix",
			"start with the configuration in force; SIGHUP, --apply or `callq config apply` puts this one in force")
	}
	d.current.Store(&s)
	d.applied.Store(true)
	return nil
}

// alive keeps the process's row alive while run runs, and removes it at its end.
func (d *Dispatcher) alive(ctx context.Context, run func() error) error {
	var heartbeats sync.WaitGroup
	beating, stop := context.WithCancel(ctx)
	heartbeats.Go(func() { d.heartbeatLoop(beating) })
	err := run()
	stop()
	heartbeats.Wait()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), policy.HeartbeatEvery)
	defer cancel()
	if err := d.member.Leave(bounded, d.cfg.db); err != nil {
		d.cfg.Logger.WarnContext(bounded, "dispatcher's row left to go stale", "err", err)
	}
	return err
}

// heartbeatLoop writes heartbeats until ctx ends. It logs when live dispatchers begin to have another file than what is in force.
func (d *Dispatcher) heartbeatLoop(ctx context.Context) {
	missed, differed := false, false
	for pause(ctx, policy.HeartbeatEvery) {
		others, err := d.member.Heartbeat(ctx, d.cfg.db, d.current.Load().Policy)
		switch differs := len(others) > 0; {
		case err != nil && !missed && ctx.Err() == nil:
			d.cfg.Logger.WarnContext(ctx, "heartbeat missed", "err", err)
		case differs && !differed:
			d.cfg.Logger.WarnContext(ctx, "dispatchers have another configuration than the one in force", "dispatchers", others)
		}
		missed, differed = err != nil, len(others) > 0
	}
}
