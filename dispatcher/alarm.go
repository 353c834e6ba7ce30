package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// alarm tells stepLoop to poll.
type alarm struct {
	notified chan struct{} // there may be something to claim
	freed    atomic.Bool   // units came free: what is blocked no longer holds
	joined   atomic.Bool   // a worker came
	standsBy atomic.Bool   // another dispatcher claims: that one is told of calls
	// For how long its connection may be silent before it is asked for an answer, and for how long that may take. Its TCP may be dead
	// and swallow all that is said, and nothing tells.
	askEvery, askWithin time.Duration
}

// notify has the loop poll soon, for what a wake says. While the dispatcher stands by, the loop does not wake up for what it would
// leave to the other.
func (a *alarm) notify(wake string) {
	switch wake {
	case callqueue.WakeFreed:
		a.freed.Store(true)
	case callqueue.WakeJoined:
		a.joined.Store(true)
	}
	if !a.standsBy.Load() {
		signal(a.notified)
	}
}

// listen passes on what producers and workers say on the channel of wakes, and reconnects for as long as ctx lives.
func (a *alarm) listen(ctx context.Context, config *pgx.ConnConfig, names schema.Names, log *slog.Logger) {
	for logged := false; ctx.Err() == nil; pause(ctx, time.Second) {
		heard, err := a.listenOnce(ctx, config, names)
		if ctx.Err() == nil && (heard || !logged) {
			log.WarnContext(ctx, "notifications not heard", "err", err)
			logged = true
		}
	}
}

// listenOnce listens on one connection until that ends. It reports whether it heard anything, or could have.
func (a *alarm) listenOnce(ctx context.Context, config *pgx.ConnConfig, names schema.Names) (heard bool, err error) {
	conn, err := pgx.ConnectConfig(ctx, config.Copy())
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `LISTEN `+names.WakeChannel()); err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	a.notify(callqueue.WakeFreed) // for what was announced while nothing listened
	var heardAt time.Time
	for {
		notification, err := a.waitOrAsk(ctx, conn)
		switch {
		case err != nil:
			return true, fmt.Errorf("wait for notifications: %w", err)
		case notification != nil:
			a.notify(notification.Payload)
			if notification.Payload == "" && !a.standsBy.Load() && time.Since(heardAt) > hearAgain {
				heardAt = time.Now()
				if _, err := conn.Exec(ctx, names.SQL(heardSQL)); err != nil {
					return true, fmt.Errorf("note what was heard: %w", err)
				}
			}
		}
	}
}

// Inserts are quiet for 80 ms after what this notes, by the one that claims. Of those that notified meanwhile, some are still to be heard.
const (
	hearAgain = 40 * time.Millisecond
	heardSQL  = `SELECT setval('callq.call_wake_seq', (date_part('epoch', clock_timestamp()) * 1000)::bigint)`
)

// waitOrAsk waits for a notification. When none has come for a while, it asks Postgres for an answer, and returns nil.
func (a *alarm) waitOrAsk(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	waiting, cancel := context.WithTimeout(ctx, a.askEvery)
	defer cancel()
	notification, err := conn.WaitForNotification(waiting)
	if err == nil || ctx.Err() != nil || !errors.Is(waiting.Err(), context.DeadlineExceeded) {
		return notification, err
	}
	asking, cancel := context.WithTimeout(ctx, a.askWithin)
	defer cancel()
	return nil, conn.Ping(asking)
}
