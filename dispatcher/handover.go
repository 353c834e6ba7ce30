package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/callq/callq/tasks"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// handover gives claimed attempts to Asynq. What it does not get through stays open in Postgres,
// for the sweeper to send again; so its errors are only said, and remembered so that nothing
// more is claimed while Redis is known to be away. Guarded by the dispatcher's turn.
type handover struct {
	redis     redis.UniversalClient
	client    *asynq.Client
	inspector *asynq.Inspector
	log       *slog.Logger
	away      bool
}

// delivery is one Asynq task: some attempts of one claim for one pool.
type delivery struct {
	pool string
	id   string
	refs []tasks.Ref
}

const (
	redisTimeout = 2 * time.Second
	asynqLife    = 24 * time.Hour // an Asynq task older than this is archived unrun
)

func newHandover(client redis.UniversalClient, log *slog.Logger) *handover {
	return &handover{
		redis:     client,
		client:    asynq.NewClientFromRedisClient(client),
		inspector: asynq.NewInspectorFromRedisClient(client),
		log:       log,
	}
}

// over enqueues deliveries. After the first that fails the others are left to the sweeper.
func (h *handover) over(ctx context.Context, deliveries []delivery) {
	for _, d := range deliveries {
		if err := h.enqueue(ctx, d); err != nil {
			h.away = true
			h.log.WarnContext(ctx, "hand-over waits for Redis", "err", err)
			return
		}
	}
}

// enqueue sends one Asynq task. One that is there already under its id is success. Asynq's own
// retries and retention are off, for the ledger is the authority; timeout and deadline are set
// because Asynq would choose for us.
func (h *handover) enqueue(ctx context.Context, d delivery) error {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	_, err := h.client.EnqueueContext(ctx, asynq.NewTask(tasks.TypeAttempts, tasks.EncodePayload(d.refs)),
		asynq.TaskID(d.id), asynq.Queue(tasks.AsynqQueue(d.pool)), asynq.MaxRetry(0), asynq.Retention(0),
		asynq.Timeout(asynqLife), asynq.Deadline(time.Now().Add(asynqLife)))
	if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) {
		return fmt.Errorf("enqueue Asynq task %s: %w", d.id, err)
	}
	return nil
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

// pending says whether an Asynq task still waits in Redis to be taken. Unknown is an error. A
// queue or task that is not found was lost, or taken.
func (h *handover) pending(pool, id string) (bool, error) {
	info, err := h.inspector.GetTaskInfo(tasks.AsynqQueue(pool), id)
	switch {
	case errors.Is(err, asynq.ErrQueueNotFound):
		// Asynq's client remembers which queues it has announced and does not see a flush: a new
		// one announces them again.
		h.client = asynq.NewClientFromRedisClient(h.redis)
		return false, nil
	case errors.Is(err, asynq.ErrTaskNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up Asynq task %s: %w", id, err)
	}
	return info.State == asynq.TaskStatePending, nil
}
