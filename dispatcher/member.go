package dispatcher

import (
	"context"
	"sync"

	"github.com/callq/callq/internal/policy"
)

// join makes this process a live member, and applies its policy. Unless always, a start may leave what is in force.
func (d *Dispatcher) join(ctx context.Context, p policy.Policy, always bool) error {
	changes, kept, err := d.member.Join(ctx, d.cfg.Pool, policy.Joining{Policy: p, Always: always, MaxData: d.cfg.MaxData})
	if err != nil {
		return err
	}
	for _, change := range changes {
		d.cfg.Logger.InfoContext(ctx, "rules applied", "change", change)
	}
	if kept != nil {
		d.cfg.Logger.WarnContext(ctx, "rules not applied: others stay in force", "why", kept.Why,
			"applied_by", kept.By, "applied_at", kept.At, "fix", "start with the configuration in force; SIGHUP, --apply or `callq config apply` puts this one in force")
	}
	d.applied.Store(true)
	return nil
}

// alive keeps the process's row alive while run runs, and removes it at its end.
func (d *Dispatcher) alive(ctx context.Context, run func() error) error {
	beating, stop := context.WithCancel(ctx)
	var heartbeats sync.WaitGroup
	heartbeats.Go(func() { d.heartbeatLoop(beating) })
	err := run()
	stop()
	heartbeats.Wait()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), policy.HeartbeatEvery)
	defer cancel()
	if err := d.member.Leave(bounded, d.cfg.Pool); err != nil {
		d.cfg.Logger.WarnContext(bounded, "dispatcher's row left to go stale", "err", err)
	}
	return err
}

// heartbeatLoop writes heartbeats until ctx ends. It logs when live dispatchers begin and cease to have another file than what is in
// force.
func (d *Dispatcher) heartbeatLoop(ctx context.Context) {
	failed, differed := false, false
	for pause(ctx, policy.HeartbeatEvery) {
		others, err := d.member.Heartbeat(ctx, d.cfg.Pool, d.current.Load().Policy)
		if err != nil {
			if !failed && ctx.Err() == nil {
				d.cfg.Logger.WarnContext(ctx, "heartbeat missed", "err", err)
			}
			failed = true
			continue
		}
		switch differs := len(others) > 0; {
		case differs && !differed:
			d.cfg.Logger.WarnContext(ctx, "dispatchers have another configuration than the one in force", "dispatchers", others)
		case differed && !differs:
			d.cfg.Logger.InfoContext(ctx, "all dispatchers have the configuration in force")
		}
		failed, differed = false, len(others) > 0
	}
}
