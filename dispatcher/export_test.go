package dispatcher

import (
	"context"
	"errors"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/jackc/pgx/v5/pgconn"
)

// Patient lets claims take a minute: however slow the machine, none is cut short.
func (d *Dispatcher) Patient() *Dispatcher {
	d.claims.Within = time.Minute
	return d
}

// Sightless has a dispatcher not look for calls of which nothing told it.
func (d *Dispatcher) Sightless() *Dispatcher {
	d.pace.earlyFor = 0
	return d
}

// Unfrozen runs what applies a policy, again if the machine stood still for so long that Postgres ended it.
func Unfrozen(run func() error) error {
	for {
		err := run()
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "25P03" {
			return err
		}
	}
}

// OnceUnfrozen is Once, and Tick one whole tick under the policy in force.
func (d *Dispatcher) OnceUnfrozen(ctx context.Context) error {
	return Unfrozen(func() error { return d.Once(ctx) })
}

func (d *Dispatcher) Tick(ctx context.Context) error {
	return Unfrozen(func() error { _, err := d.Step(ctx, true); return err })
}

// Poll claims what it can without waiting for a lock, as between ticks.
func (d *Dispatcher) Poll(ctx context.Context) error { _, err := d.Step(ctx, false); return err }

// Verify is what a dispatcher does on schedule.Verify.
func (d *Dispatcher) Verify(ctx context.Context) { d.verify(ctx) }

// LowWater is the batch from which on attempts are open, as the dispatcher knows it.
func (d *Dispatcher) LowWater() int64 { return d.claims.OpenFrom() }

// Join starts a process that lives on, until Leave. Heartbeat returns who has another file than what is in force.
func (d *Dispatcher) Join(ctx context.Context) error {
	return Unfrozen(func() error { return d.join(ctx, *d.current.Load(), d.cfg.Apply) })
}

func (d *Dispatcher) Heartbeat(ctx context.Context) ([]string, error) {
	return d.member.Heartbeat(ctx, d.cfg.Pool, d.current.Load().Policy)
}
func (d *Dispatcher) Leave(ctx context.Context) { _ = d.member.Leave(ctx, d.cfg.Pool) }

// ID is of its row in call_dispatchers.
func (d *Dispatcher) ID() string { return d.member.ID }

// Replace puts settings in force as Run does once they are reloaded, or says why not.
func (d *Dispatcher) Replace(ctx context.Context, s Settings) error {
	if err := s.check(); err != nil {
		return err
	}
	return Unfrozen(func() error { return d.join(ctx, s, true) })
}

// Freed tells what workers do when units came free that no claim could foresee.
func (d *Dispatcher) Freed() { d.alarm.notify(callqueue.WakeFreed) }

// Joined tells what a worker does that comes.
func (d *Dispatcher) Joined() { d.alarm.notify(callqueue.WakeJoined) }

// StandBy has it leave to others what they do, too.
func (d *Dispatcher) StandBy() { d.alarm.standsBy.Store(true) }

// NoteHistory notes the last full minute.
func (d *Dispatcher) NoteHistory(ctx context.Context) { d.noteHistory(ctx) }
