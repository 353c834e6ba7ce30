package handoff

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// Server takes the messages of a pool and delivers them. Make it with NewServer, then call Run once.
type Server struct {
	cfg  ServerConfig
	gate *gate
	asyn *asynq.Server

	mu     sync.Mutex
	shut   bool // what Asynq still delivers is dropped: recovery sends it again
	inHand sync.WaitGroup
	stop   context.CancelFunc
}

// ServerConfig says what a Server needs. All fields are required.
type ServerConfig struct {
	Pool        string
	Concurrency int           // messages at once
	Deliver     func(Message) // returns when the message is of no more use
	Logger      *slog.Logger
}

const (
	checkEvery  = 10 * time.Millisecond // the gate waits in between
	shutDownFor = 2 * time.Second       // a Redis that is silent holds Asynq's shutdown up
)

// NewServer starts nothing.
func (b *Broker) NewServer(cfg ServerConfig) *Server {
	queue := b.Queue(cfg.Pool)
	open, stop := context.WithCancel(context.Background())
	nowhere := redis.NewClient(&redis.Options{})
	_ = nowhere.Close() // it has not connected
	s := &Server{cfg: cfg, stop: stop, gate: &gate{
		UniversalClient: b.client, open: open, log: cfg.Logger, nowhere: nowhere,
		pending: keyOf(queue, "pending"), paused: keyOf(queue, "paused"),
	}}
	s.asyn = asynq.NewServerFromRedisClient(s.gate, asynq.Config{
		Concurrency:       cfg.Concurrency,
		Queues:            map[string]int{queue: 1},
		TaskCheckInterval: checkEvery,
		// callq neither schedules nor keeps Asynq tasks.
		DelayedTaskCheckInterval: time.Minute,
		JanitorInterval:          time.Hour,
		ShutdownTimeout:          time.Hour,        // after it Asynq would send back what is still being delivered
		LogLevel:                 asynq.FatalLevel, // the gate logs what matters
	})
	return s
}

// Paused reports whether the pool's Asynq queue is paused, so that it takes nothing of what waits there.
func (s *Server) Paused() bool { return s.gate.isPaused.Load() }

// Run takes messages and delivers them until ctx ends. It returns once those that it has taken are delivered. While Redis is
// away, it waits.
func (s *Server) Run(ctx context.Context) error {
	mux := asynq.NewServeMux()
	mux.HandleFunc(prefix, s.deliver)
	if err := s.asyn.Start(mux); err != nil {
		return fmt.Errorf("start Asynq's server: %w", err)
	}
	<-ctx.Done()
	s.stop()
	stopped, done := context.WithCancel(context.WithoutCancel(ctx))
	go func() { s.asyn.Shutdown(); done() }()
	pause(stopped, shutDownFor)
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
	s.inHand.Wait()             // Asynq may have given up what is still being delivered
	pause(stopped, shutDownFor) // which ends its shutdown
	return nil
}

// deliver is Asynq's handler. It does not pass Asynq's context on: trouble with Redis must not abort calls. It does not fail:
// Asynq can do nothing for a message.
func (s *Server) deliver(ctx context.Context, t *asynq.Task) error {
	s.mu.Lock()
	if s.shut {
		s.mu.Unlock()
		return nil
	}
	s.inHand.Add(1)
	s.mu.Unlock()
	defer s.inHand.Done()
	defer func() { // Asynq would only archive the task
		if p := recover(); p != nil {
			s.cfg.Logger.ErrorContext(ctx, "delivery panicked", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	message, err := Read(s.cfg.Pool, t)
	if err != nil {
		s.cfg.Logger.ErrorContext(ctx, "Asynq task dropped", "err", err)
		return nil
	}
	s.cfg.Deliver(message)
	return nil
}
