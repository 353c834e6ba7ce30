package dispatcher

import (
	"context"
	"log/slog"
	"time"

	"github.com/callq/callq/internal/relay"
	"github.com/redis/go-redis/v9"
)

// handover gives claimed attempts to the relay. What it does not get through stays open in
// Postgres, for the sweeper to send again; so its errors are only said, and remembered so that
// nothing more is claimed while Redis is known to be away. Guarded by the dispatcher's turn.
type handover struct {
	redis redis.UniversalClient
	log   *slog.Logger
	away  bool
}

const redisTimeout = 2 * time.Second

// over sends what a claim made. A failure is left to the sweeper.
func (h *handover) over(ctx context.Context, parcels []relay.Parcel) {
	if err := h.send(ctx, parcels); err != nil {
		h.away = true
		h.log.WarnContext(ctx, "hand-over waits for Redis", "err", err)
	}
}

func (h *handover) send(ctx context.Context, parcels []relay.Parcel) error {
	if len(parcels) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	return relay.Send(ctx, h.redis, parcels...)
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

// waiting says which parcels of a pool still wait in Redis to be taken.
func (h *handover) waiting(ctx context.Context, pool string) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	return relay.Waiting(ctx, h.redis, pool)
}
