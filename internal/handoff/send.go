package handoff

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
		tasks[i] = m.asynqTask(b.Queue(m.Pool))
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
func (b *Broker) Pending(ctx context.Context, pool string) ([]string, error) {
	ctx, end, err := b.begin(ctx)
	defer end()
	if err != nil {
		return nil, err
	}
	return b.client.LRange(ctx, keyOf(b.Queue(pool), "pending"), 0, -1).Result()
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

// Tidy removes what Asynq keeps without need: archived tasks (of workers that died, or cancelled in Asynqmon), and the queues of
// all pools but these. It returns how many it removed.
func (b *Broker) Tidy(ctx context.Context, pools []string) (int, error) {
	ctx, end, err := b.begin(ctx)
	defer end()
	if err != nil {
		return 0, err
	}
	queues, err := b.client.SMembers(ctx, queuesKey).Result()
	if err != nil {
		return 0, fmt.Errorf("list Asynq queues: %w", err)
	}
	tidied := 0
	for _, queue := range queues {
		pool, ours := strings.CutPrefix(queue, b.prefix())
		if !ours {
			continue
		}
		n, err := b.tidy(ctx, queue, slices.Contains(pools, pool))
		if err != nil {
			return tidied, fmt.Errorf("tidy Asynq queue %s: %w", queue, err)
		}
		tidied += n
	}
	return tidied, nil
}

// tidy removes a queue, or only the archived tasks of one that is used. Its servers archive what a worker that died had.
func (b *Broker) tidy(ctx context.Context, queue string, used bool) (int, error) {
	if used {
		return asynq.NewInspectorFromRedisClient(b.client).DeleteAllArchivedTasks(queue)
	}
	key := func(part string) string { return keyOf(queue, part) }
	var pending, active, archived *redis.StringSliceCmd
	if _, err := b.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		pending, active = tx.LRange(ctx, key("pending"), 0, -1), tx.LRange(ctx, key("active"), 0, -1)
		archived = tx.ZRange(ctx, key("archived"), 0, -1)
		return nil
	}); err != nil {
		return 0, err
	}
	ids := slices.Concat(pending.Val(), active.Val(), archived.Val())
	keys := []string{key("pending"), key("active"), key("lease"), key("archived"), key("processed"), key("failed"), key("paused")}
	for _, id := range ids {
		keys = append(keys, key("t:"+id))
	}
	if err := b.client.Del(ctx, keys...).Err(); err != nil {
		return 0, err
	}
	return len(ids) + 1, b.client.SRem(ctx, queuesKey, queue).Err()
}
