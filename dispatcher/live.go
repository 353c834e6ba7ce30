package dispatcher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// A dispatcher that lives is a row of call_dispatchers, with the policy that its own file says: so everybody
// can see where that is another than the one in force.

const (
	beatEvery = 2 * time.Second
	lifetime  = 3 * beatEvery // after a beat
)

// Live is a dispatcher that lives.
type Live struct {
	Name    string `db:"name"`     // host/pid
	InForce bool   `db:"in_force"` // what its file says
}

// ReadLive reads the dispatchers that live.
func ReadLive(ctx context.Context, db ledger.DB) ([]Live, error) {
	rows, err := db.Query(ctx, liveSQL, lifetime)
	if err != nil {
		return nil, fmt.Errorf("read the dispatchers: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[Live])
	if err != nil {
		return nil, fmt.Errorf("read the dispatchers: %w", err)
	}
	return list, nil
}

const liveSQL = `
SELECT name, policy IS NOT DISTINCT FROM (SELECT hash FROM call_policies ORDER BY number DESC LIMIT 1) AS in_force
FROM call_dispatchers
WHERE beat_at > clock_timestamp() - $1::interval
ORDER BY name, id`

// OthersOf are the names of those whose file says something else than what is in force.
func OthersOf(live []Live) []string {
	names := []string{}
	for _, l := range live {
		if !l.InForce {
			names = append(names, l.Name)
		}
	}
	return names
}

// enter makes this process one of those that live, and applies its rules. Those of a start, unless always, it may leave
// (policy.go).
func (d *Dispatcher) enter(ctx context.Context, rules Rules, always bool) error {
	hash, err := rules.hash()
	if err != nil {
		return err
	}
	var instead *Policy
	var why string
	changes, err := publish(ctx, d.cfg.Pool, d.name, func(ctx context.Context, p *publication) (err error) {
		if !always {
			if instead, why, err = p.instead(ctx, rules, hash); err != nil {
				return err
			}
		}
		if instead == nil {
			if err := p.apply(ctx, rules, hash); err != nil {
				return err
			}
			if _, err := p.tx.Exec(ctx, noteMaxDataSQL, d.cfg.MaxData); err != nil {
				return fmt.Errorf("note what call_data may have: %w", err)
			}
		}
		if _, err = p.tx.Exec(ctx, beatSQL, d.id, d.name, hash); err != nil { // last, so that no wait ages it
			return fmt.Errorf("note the heartbeat: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, change := range changes {
		d.log.InfoContext(ctx, "rules applied", "change", change)
	}
	if instead != nil {
		d.log.WarnContext(ctx, "rules not applied: others stay in force", "why", why,
			"applied_by", instead.By, "applied_at", instead.At, "fix", "start with the configuration in force; SIGHUP, --apply or `callq config apply` puts this one in force")
	}
	d.published.Store(true)
	return nil
}

// Of the process that came last: enqueue_call reads it.
const noteMaxDataSQL = `
INSERT INTO call_marks AS m (name, position) VALUES ('max_data', $1)
ON CONFLICT (name) DO UPDATE SET position = excluded.position WHERE m.position IS DISTINCT FROM excluded.position`

// present keeps the process's row alive while run runs, and takes it away at its end.
func (d *Dispatcher) present(ctx context.Context, run func() error) error {
	beating, stop := context.WithCancel(ctx)
	var beat sync.WaitGroup
	beat.Go(func() { d.beat(beating) })
	err := run()
	stop()
	beat.Wait()
	d.leave(ctx)
	return err
}

// beat beats until ctx ends, and says when live dispatchers begin and cease to have another file than what is in force.
func (d *Dispatcher) beat(ctx context.Context) {
	failed, differed := false, false
	for pause(ctx, beatEvery) {
		others, err := d.beatOnce(ctx)
		if err != nil {
			if !failed && ctx.Err() == nil {
				d.log.WarnContext(ctx, "heartbeat missed", "err", err)
			}
			failed = true
			continue
		}
		switch differs := len(others) > 0; {
		case differs && !differed:
			d.log.WarnContext(ctx, "dispatchers have another configuration than the one in force", "dispatchers", others)
		case differed && !differs:
			d.log.InfoContext(ctx, "all dispatchers have the configuration in force")
		}
		failed, differed = false, len(others) > 0
	}
}

// beatOnce says that the process lives, and which live ones have another file than what is in force.
func (d *Dispatcher) beatOnce(ctx context.Context) (others []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, beatEvery)
	defer cancel()
	hash, err := d.settings.Load().Rules.hash()
	if err != nil {
		return nil, err
	}
	if _, err := d.cfg.Pool.Exec(ctx, beatSQL, d.id, d.name, hash); err != nil {
		return nil, err
	}
	live, err := ReadLive(ctx, d.cfg.Pool)
	return OthersOf(live), err
}

const beatSQL = `
INSERT INTO call_dispatchers (id, name, policy, beat_at) VALUES ($1, $2, $3, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET policy = excluded.policy, beat_at = excluded.beat_at`

// leave takes the process's row away, so that nobody waits for its beats to be missed.
func (d *Dispatcher) leave(ctx context.Context) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), beatEvery)
	defer cancel()
	if _, err := d.cfg.Pool.Exec(bounded, `DELETE FROM call_dispatchers WHERE id = $1`, d.id); err != nil {
		d.log.WarnContext(bounded, "dispatcher's row left to go stale", "err", err)
	}
}
