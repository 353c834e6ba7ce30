package dispatcher

import "context"

// Tick runs one whole tick under the rules in force.
func (d *Dispatcher) Tick(ctx context.Context) error { return d.tickOnce(ctx) }
