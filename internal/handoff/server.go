package handoff

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

const (
	checkEvery  = 10 * time.Millisecond // the gate waits in between
	shutDownFor = 2 * time.Second       // a Redis that is silent holds Asynq's shutdown up
)

// Serve takes messages of a pool and delivers them, so many at once, until ctx ends. deliver returns when a message is of no more
// use. Serve returns once all that it received are delivered. While Redis is away, it waits. The Broker must be open.
func (b *Broker) Serve(ctx context.Context, pool string, concurrency int, deliver func(Message)) error {
	var delivering sync.RWMutex                              // read-locked during each delivery
	shut := false                                            // what Asynq still delivers is dropped: recovery sends it again
	handle := func(_ context.Context, t *asynq.Task) error { // Asynq's context ends with Redis, which must not abort calls
		delivering.RLock()
		defer delivering.RUnlock()
		if shut {
			return nil
		}
		message, err := Read(pool, t)
		if err == nil {
			deliver(message)
		}
		return err
	}
	queue, nowhere := b.Queue(pool), redis.NewClient(&redis.Options{})
	_ = nowhere.Close() // it has not connected
	server := asynq.NewServerFromRedisClient(&gate{
		UniversalClient: b.client, pending: keyOf(queue, "pending"), open: ctx, log: b.log, nowhere: nowhere,
	}, asynq.Config{
		Concurrency:       concurrency,
		Queues:            map[string]int{queue: 1},
		TaskCheckInterval: checkEvery,
		// callq neither schedules nor keeps Asynq tasks.
		DelayedTaskCheckInterval: time.Minute,
		JanitorInterval:          time.Hour,
		ShutdownTimeout:          time.Hour, // after it Asynq would send back what is still being delivered
		ErrorHandler: asynq.ErrorHandlerFunc(func(ctx context.Context, _ *asynq.Task, err error) {
			b.log.WarnContext(ctx, "Asynq gave a task up", "err", err) // it panicked, say, or its lease ran out
		}),
		LogLevel: asynq.FatalLevel, // the gate logs what else matters
	})
	if err := server.Start(asynq.HandlerFunc(handle)); err != nil {
		return fmt.Errorf("start Asynq's server: %w", err)
	}
	<-ctx.Done()
	stopped, done := context.WithCancel(context.WithoutCancel(ctx))
	go func() { server.Shutdown(); done() }()
	pause(stopped, shutDownFor)
	delivering.Lock() // once all are delivered: Asynq may have given up some
	shut = true
	delivering.Unlock()
	pause(stopped, shutDownFor) // the last delivery ends Asynq's shutdown
	return nil
}

// gate is the Redis client of an asynq.Server. Asynq polls for tasks. If there are none, the gate waits in Redis for the next, so
// that an idle worker costs nothing and takes up a task at once. It waits by moving the last id of the list of pending tasks to
// where it is, which changes nothing: a wait that is given up, or whose answer is lost, loses no task.
//
// The lease of a task begins when Asynq asks, so the gate waits once, for waitMost, before it answers; then Asynq asks anew. The
// gate also hides the channel on which Asynqmon cancels tasks: what runs is callq's, and Asynq's listener panics if its Redis
// client is closed before it.
//
// The gate knows Asynq's dequeue script by its first key. If an upgrade changes that, a test fails.
type gate struct {
	redis.UniversalClient
	pending string // the key of what Asynq dequeues from
	open    context.Context
	log     *slog.Logger

	away    bool          // Redis does not answer. Used by Asynq's one dequeuing goroutine only
	nowhere *redis.Client // closed
}

const (
	waitMost  = time.Second            // a stop waits for no longer
	waitGrace = 2 * time.Second        // for the wait's answer, where Redis is silent
	askAgain  = 250 * time.Millisecond // Asynq itself asks a Redis that is away again at once
)

// EvalSha runs Asynq's scripts. It answers the dequeue script when there is a task, or after waitMost.
func (g *gate) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if len(keys) == 0 || keys[0] != g.pending {
		return g.UniversalClient.EvalSha(ctx, sha, keys, args...)
	}
	answer := g.dequeue(ctx, sha, keys, args)
	if errors.Is(answer.Err(), redis.Nil) {
		g.wait()
		answer = g.dequeue(ctx, sha, keys, args)
	}
	return answer
}

// dequeue takes a task, unless the gate is closed. It logs when Redis is gone and when it is back.
func (g *gate) dequeue(ctx context.Context, sha string, keys []string, args []any) *redis.Cmd {
	if g.open.Err() != nil {
		return redis.NewCmdResult(nil, redis.Nil)
	}
	answer := g.UniversalClient.EvalSha(ctx, sha, keys, args...)
	err := answer.Err()
	switch {
	case err == nil || errors.Is(err, redis.Nil):
		if g.away {
			g.log.InfoContext(ctx, "Redis is back")
		}
		g.away = false
	case !redis.HasErrorPrefix(err, "NOSCRIPT"): // of which Asynq sends the script
		if !g.away {
			g.log.WarnContext(ctx, "waiting for Redis", "err", err)
		}
		g.away = true
		pause(g.open, askAgain)
	}
	return answer
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

// pause waits d, or less if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
