package dispatcher

import (
	"context"
	"log/slog"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// handover gives claimed attempts to Asynq. What it does not get through stays open in Postgres, for the
// sweeper to send again; so its errors are only said, and remembered so that nothing more is claimed while Redis
// is known to be away. Guarded by the dispatcher's turn.
type handover struct {
	pool   *pgxpool.Pool
	redis  redis.UniversalClient
	opened *handoff.Broker // nil until it is needed for the first time
	log    *slog.Logger
	away   bool
}

const redisTimeout = 2 * time.Second

// over sends what a claim made. A failure is left to the sweeper.
func (h *handover) over(ctx context.Context, messages []handoff.Message) {
	if err := h.send(ctx, messages); err != nil {
		h.away = true
		h.log.WarnContext(ctx, "hand-over waits for Redis", "err", err)
	}
}

func (h *handover) send(ctx context.Context, messages []handoff.Message) error {
	if len(messages) == 0 {
		return nil
	}
	return h.ask(ctx, func(ctx context.Context, b *handoff.Broker) error { return b.Send(ctx, messages...) })
}

func (h *handover) down() bool { return h.away }

// back asks whether Redis answers again.
func (h *handover) back(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	if err := h.redis.Ping(ctx).Err(); err != nil {
		return false
	}
	h.away = false
	h.log.InfoContext(ctx, "Redis is back")
	return true
}

// pending says which messages of a pool still wait in Redis to be taken.
func (h *handover) pending(ctx context.Context, pool string) (ids map[string]bool, err error) {
	err = h.ask(ctx, func(ctx context.Context, b *handoff.Broker) error { ids, err = b.Pending(ctx, pool); return err })
	return ids, err
}

// tidy takes away what Asynq keeps of these pools without need, and all that it has of others.
func (h *handover) tidy(ctx context.Context, pools []string) (n int, err error) {
	err = h.ask(ctx, func(ctx context.Context, b *handoff.Broker) error { n, err = b.Tidy(ctx, pools); return err })
	return n, err
}

// ask does something with Redis, within redisTimeout.
func (h *handover) ask(ctx context.Context, do func(context.Context, *handoff.Broker) error) error {
	if h.opened == nil {
		broker, err := handoff.Open(ctx, h.redis, h.pool)
		if err != nil {
			return err
		}
		h.opened = broker
	}
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	return do(ctx, h.opened)
}
