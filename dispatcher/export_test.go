package dispatcher

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Patient lets claims take a minute: however slow the machine, none is cut short.
func (d *Dispatcher) Patient() *Dispatcher {
	d.claimWithin = time.Minute
	return d
}

// Unfrozen runs what publishes, again where the machine stood still for so long that Postgres ended it.
func Unfrozen(run func() error) error {
	for {
		err := run()
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "25P03" {
			return err
		}
	}
}

// OnceUnfrozen is Once, and Tick one whole tick under the rules in force.
func (d *Dispatcher) OnceUnfrozen(ctx context.Context) error {
	return Unfrozen(func() error { return d.Once(ctx) })
}

func (d *Dispatcher) Tick(ctx context.Context) error {
	return Unfrozen(func() error { return d.tickOnce(ctx) })
}

// Look claims what it can without waiting for a lock, as between ticks.
func (d *Dispatcher) Look(ctx context.Context) error { _, err := d.lookOnce(ctx); return err }

// OpenFrom is the batch from which on attempts are open, as the dispatcher knows it.
func (d *Dispatcher) OpenFrom() int64 { return d.openFrom.from }

// VacuumNeeded vacuums what needs it.
func (d *Dispatcher) VacuumNeeded(ctx context.Context) error { return d.vacuumNeeded(ctx) }

// Join starts a process that lives on, until Leave. Beat says that it lives, and who has another file than what
// is in force.
func (d *Dispatcher) Join(ctx context.Context) error {
	return Unfrozen(func() error { return d.enter(ctx, d.settings.Load().Rules, d.cfg.Apply) })
}
func (d *Dispatcher) Beat(ctx context.Context) ([]string, error) { return d.beatOnce(ctx) }
func (d *Dispatcher) Leave(ctx context.Context)                  { d.leave(ctx) }

// ID is of its row in call_dispatchers.
func (d *Dispatcher) ID() string { return d.id }

// PublishFrozen publishes, and is frozen before the commit until thaw is closed.
func PublishFrozen(ctx context.Context, pool *pgxpool.Pool, rules Rules, frozen chan<- struct{}, thaw <-chan struct{}) error {
	_, err := publish(ctx, pool, "frozen", func(ctx context.Context, p *publication) error {
		hash, err := rules.hash()
		if err != nil {
			return err
		}
		if err := p.apply(ctx, rules, hash); err != nil {
			return err
		}
		close(frozen)
		<-thaw
		return nil
	})
	return err
}

// Replace puts settings in force as Run does once they are reloaded, or says why not.
func (d *Dispatcher) Replace(ctx context.Context, s Settings) error {
	if err := s.check(); err != nil {
		return err
	}
	return Unfrozen(func() error { return d.replace(ctx, s) })
}
