package dispatcher

import "context"

// Tick runs one whole tick under the rules in force.
func (d *Dispatcher) Tick(ctx context.Context) error { return d.tickOnce(ctx) }

// Look claims what it can without waiting for a lock, as between ticks.
func (d *Dispatcher) Look(ctx context.Context) error { _, err := d.lookOnce(ctx); return err }

// VacuumNeeded vacuums what needs it.
func (d *Dispatcher) VacuumNeeded(ctx context.Context) error { return d.vacuumNeeded(ctx) }
