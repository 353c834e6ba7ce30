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

// notify has the loop poll soon. If units came free, it also polls the queues that waited for some.
func (a *alarm) notify(freed bool) {
	if freed {
		a.freed.Store(true)
	}
	signal(a.notified)
}

// listen passes on what producers and workers say on the channel of wakes, and reconnects for as long as ctx lives.
func (a *alarm) listen(ctx context.Context, config *pgx.ConnConfig, channel string, log *slog.Logger) {
	for logged := false; ctx.Err() == nil; pause(ctx, time.Second) {
		heard, err := a.listenOnce(ctx, config, channel)
		if ctx.Err() == nil && (heard || !logged) {
			log.WarnContext(ctx, "notifications not heard", "err", err)
			logged = true
		}
	}
}

// listenOnce listens on one connection until that ends. It reports whether it heard anything, or could have.
func (a *alarm) listenOnce(ctx context.Context, config *pgx.ConnConfig, channel string) (heard bool, err error) {
	conn, err := pgx.ConnectConfig(ctx, config.Copy())
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `LISTEN `+channel); err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	a.notify(true) // for what was said while nobody listened
	for {
		notification, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, fmt.Errorf("wait for notifications: %w", err)
		}
		a.notify(notification.Payload == callqueue.WakeFreed)
	}
}
