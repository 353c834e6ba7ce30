package handoff

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// gate is the Redis client of an asynq.Server. Asynq polls for tasks. If there are none, the gate waits in Redis for the next, so
// that an idle worker costs nothing and takes up a task at once. It waits by moving the last id of the list of pending tasks to
// where it is, which changes nothing: a wait that is given up, or whose answer is lost, loses no task.
//
// The lease of a task begins when Asynq asks, so the gate holds the question no longer than askFor; then Asynq asks anew. The
// gate also hides the channel on which Asynqmon cancels tasks: what runs is callq's, and Asynq's listener panics if its Redis
// client is closed before it.
//
// The gate knows Asynq's dequeue script by its first key. If an upgrade changes that, a test fails.
type gate struct {
	redis.UniversalClient
	pending, paused string // keys
	open            context.Context
	log             *slog.Logger

	away     bool // Redis does not answer. Used by Asynq's one dequeuing goroutine only
	isPaused atomic.Bool
	nowhere  *redis.Client // closed
}

const (
	askFor     = 3 * time.Second        // a tenth of the lease
	waitMost   = time.Second            // a stop waits for no longer
	waitGrace  = 2 * time.Second        // for the wait's answer, where Redis is silent
	askAgain   = 250 * time.Millisecond // Asynq itself asks a Redis that is away again at once
	pausedLook = 2 * time.Second
)

// EvalSha runs Asynq's scripts. It answers the dequeue script when there is a task, or when the gate is closed.
func (g *gate) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if len(keys) == 0 || keys[0] != g.pending {
		return g.UniversalClient.EvalSha(ctx, sha, keys, args...)
	}
	for asked, first := time.Now(), !g.isPaused.Load(); g.open.Err() == nil && time.Since(asked) < askFor; first = false {
		answer := g.UniversalClient.EvalSha(ctx, sha, keys, args...)
		err := answer.Err()
		switch {
		case redis.HasErrorPrefix(err, "NOSCRIPT"): // Asynq then sends the script
			return answer
		case err != nil && !errors.Is(err, redis.Nil):
			g.answered(ctx, err)
			pause(g.open, askAgain)
			return answer
		}
		g.answered(ctx, nil)
		if err == nil {
			return answer
		}
		if !first && g.lookPaused() { // else nothing came, or another server was quicker
			pause(g.open, pausedLook)
		}
		g.wait()
	}
	return redis.NewCmdResult(nil, redis.Nil)
}

// Subscribe hides the channel on which Asynq hears of cancelled tasks.
func (g *gate) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	return g.nowhere.Subscribe(ctx, channels...)
}

// wait waits until a task is pending, or for long enough.
func (g *gate) wait() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.open), waitMost+waitGrace)
	defer cancel()
	err := g.BLMove(ctx, g.pending, g.pending, "RIGHT", "RIGHT", waitMost).Err()
	if err != nil && !errors.Is(err, redis.Nil) { // full, or read-only, say; or the command is not allowed
		pause(g.open, askAgain)
	}
}

// lookPaused asks whether the Asynq queue is paused, for example by Asynqmon. Then nobody takes what waits in it.
func (g *gate) lookPaused() bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.open), waitGrace)
	defer cancel()
	n, err := g.Exists(ctx, g.paused).Result()
	if err == nil && g.isPaused.Swap(n > 0) != (n > 0) {
		if n > 0 {
			g.log.WarnContext(ctx, "Asynq queue paused: nothing is taken from it", "queue", g.pending)
		} else {
			g.log.InfoContext(ctx, "Asynq queue resumed", "queue", g.pending)
		}
	}
	return g.isPaused.Load()
}

// answered logs when Redis is gone and when it is back.
func (g *gate) answered(ctx context.Context, err error) {
	switch {
	case err != nil && !g.away:
		g.log.WarnContext(ctx, "waiting for Redis", "err", err)
	case err == nil && g.away:
		g.log.InfoContext(ctx, "Redis is back")
	}
	g.away = err != nil
}

// pause waits d, or less if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
