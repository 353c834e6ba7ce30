package handoff

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// orphanAfter is how long ago a lease must have run out: Asynq's own servers look once a minute.
const orphanAfter = 3 * time.Minute

// Tidy removes what Asynq keeps without need: archived tasks (of workers that died, or cancelled in Asynqmon), tasks without a
// lease, and the queues of all pools but these. It returns how many it removed.
func (b *Broker) Tidy(ctx context.Context, pools []string) (int, error) {
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

// tidy removes a queue, or only some tasks of one that is used: those that are archived, whose lease has ended, or that were
// moved by hand and have none. Asynq's recoverer passes over the last.
func (b *Broker) tidy(ctx context.Context, queue string, used bool) (int, error) {
	key := func(part string) string { return keyOf(queue, part) }
	var pending, active, archived *redis.StringSliceCmd
	var leases *redis.ZSliceCmd
	if _, err := b.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		pending, active = tx.LRange(ctx, key("pending"), 0, -1), tx.LRange(ctx, key("active"), 0, -1)
		archived, leases = tx.ZRange(ctx, key("archived"), 0, -1), tx.ZRangeWithScores(ctx, key("lease"), 0, -1)
		return nil
	}); err != nil {
		return 0, err
	}
	held := map[string]bool{}
	gone := append(archived.Val(), active.Val()...)
	for _, l := range leases.Val() {
		id, _ := l.Member.(string)
		held[id] = used && l.Score > float64(time.Now().Add(-orphanAfter).Unix())
		gone = append(gone, id)
	}
	if !used {
		gone = append(gone, pending.Val()...)
	}
	slices.Sort(gone)
	gone = slices.DeleteFunc(slices.Compact(gone), func(id string) bool { return held[id] })
	if _, err := b.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, id := range gone {
			pipe.LRem(ctx, key("active"), 0, id)
			pipe.ZRem(ctx, key("lease"), id)
			pipe.ZRem(ctx, key("archived"), id)
			pipe.Del(ctx, key("t:"+id))
		}
		return nil
	}); err != nil || used {
		return len(gone), err
	}
	if err := b.client.Del(ctx, key("pending"), key("processed"), key("failed"), key("paused")).Err(); err != nil {
		return len(gone), err
	}
	return len(gone) + 1, b.client.SRem(ctx, queuesKey, queue).Err()
}
