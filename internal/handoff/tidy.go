package handoff

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// orphanAfter is how long ago a lease must have run out: Asynq's own servers look once a minute.
const orphanAfter = 3 * time.Minute

// Tidy removes what Asynq keeps without need: archived tasks (of workers that died, or cancelled in Asynqmon), tasks without a lease,
// and the queues of all pools but these. It returns how many it removed.
func (b *Broker) Tidy(ctx context.Context, pools []string) (int, error) {
	inspector := asynq.NewInspectorFromRedisClient(b.client)
	queues, err := within(ctx, inspector.Queues)
	if err != nil {
		return 0, fmt.Errorf("list Asynq queues: %w", err)
	}
	tidied := 0
	for _, queue := range queues {
		pool, ours := strings.CutPrefix(queue, b.prefix())
		if !ours {
			continue
		}
		part := b.removeArchived
		if !slices.Contains(pools, pool) {
			part = b.removeQueue
		}
		n, err := part(ctx, inspector, queue)
		if err != nil {
			return tidied, fmt.Errorf("tidy Asynq queue %s: %w", queue, err)
		}
		tidied += n
	}
	return tidied, nil
}

func (b *Broker) removeArchived(ctx context.Context, inspector *asynq.Inspector, queue string) (int, error) {
	archived, err := within(ctx, func() (int, error) { return inspector.DeleteAllArchivedTasks(queue) })
	if err != nil {
		return 0, err
	}
	orphans, err := b.removeActive(ctx, queue, time.Now().Add(-orphanAfter))
	return archived + orphans, err
}

// removeQueue first removes active tasks, which Asynq refuses to delete, and last the counters, which Asynq leaves.
func (b *Broker) removeQueue(ctx context.Context, inspector *asynq.Inspector, queue string) (int, error) {
	if _, err := b.removeActive(ctx, queue, time.Now().Add(24*time.Hour)); err != nil {
		return 0, err
	}
	_, err := within(ctx, func() (any, error) { return nil, inspector.DeleteQueue(queue, true) })
	if err != nil && !isNotFound(err) {
		return 0, err
	}
	return 1, b.client.Del(ctx, keyOf(queue, "processed"), keyOf(queue, "failed"), keyOf(queue, "paused")).Err()
}

// removeActive takes away tasks whose lease ended by then, or that have none: Asynq's recoverer passes over
// what was moved by hand.
func (b *Broker) removeActive(ctx context.Context, queue string, by time.Time) (int, error) {
	active, lease := keyOf(queue, "active"), keyOf(queue, "lease")
	var ids *redis.StringSliceCmd
	var leases *redis.ZSliceCmd
	if _, err := b.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		ids, leases = tx.LRange(ctx, active, 0, -1), tx.ZRangeWithScores(ctx, lease, 0, -1)
		return nil
	}); err != nil {
		return 0, err
	}
	held := map[string]bool{}
	gone := map[string]bool{}
	for _, l := range leases.Val() {
		id, _ := l.Member.(string)
		held[id] = l.Score > float64(by.Unix())
		gone[id] = !held[id]
	}
	for _, id := range ids.Val() {
		gone[id] = !held[id]
	}
	n := 0
	_, err := b.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for id, orphan := range gone {
			if !orphan {
				continue
			}
			n++
			pipe.LRem(ctx, active, 0, id)
			pipe.ZRem(ctx, lease, id)
			pipe.Del(ctx, keyOf(queue, "t:"+id))
		}
		return nil
	})
	return n, err
}

// Paused are the queues of any callq that somebody has paused.
func Paused(ctx context.Context, client redis.UniversalClient) ([]string, error) {
	inspector := asynq.NewInspectorFromRedisClient(client)
	queues, err := within(ctx, inspector.Queues)
	if err != nil {
		return nil, fmt.Errorf("list Asynq queues: %w", err)
	}
	var paused []string
	for _, queue := range queues {
		if !strings.HasPrefix(queue, prefix) {
			continue
		}
		n, err := client.Exists(ctx, keyOf(queue, "paused")).Result()
		if err != nil {
			return nil, fmt.Errorf("look whether Asynq queue %s is paused: %w", queue, err)
		}
		if n > 0 {
			paused = append(paused, queue)
		}
	}
	slices.Sort(paused)
	return paused, nil
}
