package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/jackc/pgx/v5"
)

// listen passes on what producers and workers say on the channel callq_wake. It reconnects for
// as long as ctx lives; meanwhile the schedule alone finds the calls.
func (d *Dispatcher) listen(ctx context.Context) {
	said := false
	for ctx.Err() == nil {
		err := d.listenOnce(ctx, func() { said = false })
		if ctx.Err() != nil {
			return
		}
		if !said {
			d.log.WarnContext(ctx, "wake-ups not heard", "err", err)
			said = true
		}
		pause(ctx, time.Second)
	}
}

func (d *Dispatcher) listenOnce(ctx context.Context, connected func()) error {
	conn, err := pgx.ConnectConfig(ctx, d.cfg.Listen.Copy())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, listenSQL); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	connected()
	d.wakeUp(true) // for what was said while nobody listened
	for {
		said, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("wait for notifications: %w", err)
		}
		d.wakeUp(said.Payload == callqueue.WakeFreed)
	}
}

const listenSQL = `LISTEN ` + callqueue.WakeChannel

// wakeUp has the loop look soon; where units came free, at the queues too that waited for none.
func (d *Dispatcher) wakeUp(freed bool) {
	if freed {
		d.freed.Store(true)
	}
	select {
	case d.wake <- struct{}{}:
	default: // one is waiting already
	}
}
