package handoff

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// Send hands messages over, in one round trip. After an error they may have arrived all the same. A message whose id is there
// already is not sent again.
func (b *Broker) Send(ctx context.Context, messages ...Message) error {
	if len(messages) == 0 {
		return nil
	}
	ctx, end, err := b.begin(ctx)
	defer end()
	if err != nil {
		return err
	}
	tasks := make([]*asynq.Task, len(messages))
	for i, m := range messages {
		if tasks[i], err = m.asynqTask(b.Queue(m.Pool)); err != nil {
			return err
		}
	}
	collected := &batch{UniversalClient: b.client, pipe: b.client.Pipeline()}
	if err := enqueue(ctx, collected, tasks); err != nil {
		return fmt.Errorf("send %d Asynq tasks: %w", len(tasks), err)
	}
	answers, err := collected.pipe.Exec(ctx)
	if slices.ContainsFunc(answers, func(c redis.Cmder) bool { return redis.HasErrorPrefix(c.Err(), "NOSCRIPT") }) {
		err = enqueue(ctx, b.client, tasks) // to a Redis that is new Asynq sends its script, too
	}
	if err != nil {
		return fmt.Errorf("send %d Asynq tasks: %w", len(tasks), err)
	}
	return nil
}

// enqueue makes a new asynq.Client each time: a client announces a queue only once, and not again after Redis was emptied.
func enqueue(ctx context.Context, client redis.UniversalClient, tasks []*asynq.Task) error {
	sender := asynq.NewClientFromRedisClient(client)
	for _, t := range tasks {
		if _, err := sender.EnqueueContext(ctx, t); err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) {
			return err
		}
	}
	return nil
}

// batch collects what an asynq.Client sends into one pipeline. One at a time, 16 tasks take six times as long.
type batch struct {
	redis.UniversalClient
	pipe redis.Pipeliner
}

// SAdd announces a queue.
func (b *batch) SAdd(ctx context.Context, key string, members ...any) *redis.IntCmd {
	return b.pipe.SAdd(ctx, key, members...)
}

// EvalSha enqueues a task. It answers at once as if all were well; the pipeline learns what Redis says.
func (b *batch) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	b.pipe.EvalSha(ctx, sha, keys, args...)
	return redis.NewCmdResult(int64(1), nil)
}

// Pending returns the ids of the messages that nobody has taken yet; dispatchers keep them to what workers can take up soon.
// (Asynq's Inspector lists them by pages, and misses some if others are taken meanwhile.)
func (b *Broker) Pending(ctx context.Context, pool string) (map[string]bool, error) {
	ctx, end, err := b.begin(ctx)
	defer end()
	if err != nil {
		return nil, err
	}
	list, err := b.client.LRange(ctx, keyOf(b.Queue(pool), "pending"), 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("look up the Asynq tasks of pool %s: %w", pool, err)
	}
	ids := make(map[string]bool, len(list))
	for _, id := range list {
		ids[id] = true
	}
	return ids, nil
}

// Timeout bounds each exchange with Redis.
const Timeout = 2 * time.Second

// begin opens the Broker for one exchange with Redis, whose context it returns.
func (b *Broker) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	err := b.open(ctx)
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	return ctx, cancel, err
}

// Deliver sends what a claim opened. A failure is left to recovery: it is only logged.
func (b *Broker) Deliver(ctx context.Context, messages []Message) {
	if err := b.Send(ctx, messages...); err != nil {
		b.away = true
		b.log.WarnContext(ctx, "hand-over waits for Redis", "err", err)
	}
}

// Reachable reports whether Redis answered when it was last needed, or answers again.
func (b *Broker) Reachable(ctx context.Context) bool {
	if !b.away {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if b.client.Ping(ctx).Err() != nil {
		return false
	}
	b.away = false
	b.log.InfoContext(ctx, "Redis is back")
	return true
}
