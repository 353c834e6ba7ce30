package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/jackc/pgx/v5"
)

// alarm tells stepLoop to poll.
type alarm struct {
	notified chan struct{} // there may be something to claim
	freed    atomic.Bool   // units came free: what is blocked no longer holds
}

func newAlarm() *alarm { return &alarm{notified: make(chan struct{}, 1)} }

// notify has the loop poll soon. If units came free, it also polls the queues that waited for some.
func (a *alarm) notify(freed bool) {
	if freed {
		a.freed.Store(true)
	}
	select {
	case a.notified <- struct{}{}:
	default: // one is waiting already
	}
}

// listen passes on what producers and workers say on the channel callq_wake. It reconnects for as long as ctx lives; meanwhile
// the schedule alone finds the calls.
func (a *alarm) listen(ctx context.Context, config *pgx.ConnConfig, log *slog.Logger) {
	logged := false
	for ctx.Err() == nil {
		err := a.listenOnce(ctx, config, func() { logged = false })
		if ctx.Err() != nil {
			return
		}
		if !logged {
			log.WarnContext(ctx, "notifications not heard", "err", err)
			logged = true
		}
		pause(ctx, time.Second)
	}
}

func (a *alarm) listenOnce(ctx context.Context, config *pgx.ConnConfig, connected func()) error {
	conn, err := pgx.ConnectConfig(ctx, config.Copy())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `LISTEN `+callqueue.WakeChannel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	connected()
	a.notify(true) // for what was said while nobody listened
	for {
		notification, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("wait for notifications: %w", err)
		}
		a.notify(notification.Payload == callqueue.WakeFreed)
	}
}
