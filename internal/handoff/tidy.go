package handoff

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

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
