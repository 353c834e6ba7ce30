package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// Asynq enqueues no batches, so a bulk insert is many producers. A server dequeues one task after the
// other, so there are several.
const (
	asynqTask        = "noop"
	asynqQueue       = "default"
	asynqProducers   = 16
	asynqServers     = 4
	asynqConcurrency = 100 // of all servers
	asynqConns       = 32
)

// asynqSystem is Asynq alone: its tasks are in Redis, which keeps nothing over a restart.
type asynqSystem struct {
	redis  asynq.RedisClientOpt
	client *asynq.Client
	lists  *asynq.Inspector
}

func openAsynq(_ context.Context, _, redisURL string) (system, error) {
	options, err := redis.ParseURL(redisURL)
	if err != nil {
		return nil, fmt.Errorf("read Redis's URL: %w", err)
	}
	at := asynq.RedisClientOpt{Network: options.Network, Addr: options.Addr, PoolSize: asynqConns}
	return &asynqSystem{redis: at, client: asynq.NewClient(at), lists: asynq.NewInspector(at)}, nil
}

func (a *asynqSystem) close() { _ = errors.Join(a.client.Close(), a.lists.Close()) } // their server is emptied and goes

func (a *asynqSystem) insertSingles(ctx context.Context, n int) error {
	return byProducers(producers, n, func(n int) error { return a.insert(ctx, n) })
}

func (a *asynqSystem) insertBulk(ctx context.Context, n int) error {
	return byProducers(asynqProducers, n, func(n int) error { return a.insert(ctx, n) })
}

func (a *asynqSystem) insert(ctx context.Context, n int) error {
	data, err := json.Marshal(newPayload(n))
	if err != nil {
		return err
	}
	_, err = a.client.EnqueueContext(ctx, asynq.NewTask(asynqTask, data), asynq.MaxRetry(0))
	return err
}

func (a *asynqSystem) vacuum(context.Context) error { return nil } // Redis needs none

func (a *asynqSystem) start(_ context.Context, handled func()) (stop func() error, err error) {
	var running []*asynq.Server
	stop = func() error {
		var wg sync.WaitGroup
		for _, server := range running {
			wg.Go(server.Shutdown)
		}
		wg.Wait()
		return nil
	}
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		handled()
		return nil
	})
	for range asynqServers {
		server := asynq.NewServer(a.redis, asynq.Config{
			Concurrency: asynqConcurrency / asynqServers, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second,
		})
		if err := server.Start(handler); err != nil {
			return nil, errors.Join(err, stop())
		}
		running = append(running, server)
	}
	return stop, nil
}

func (a *asynqSystem) allDone(context.Context) (bool, error) {
	queue, err := a.lists.GetQueueInfo(asynqQueue)
	if err != nil {
		return false, err
	}
	return queue.Size == 0, nil
}

// check: Asynq deletes a task that is done, and counts it.
func (a *asynqSystem) check(_ context.Context, inserted, done int) error {
	queue, err := a.lists.GetQueueInfo(asynqQueue)
	if err != nil {
		return err
	}
	got := []int{queue.Size, queue.Processed, queue.Failed}
	if want := []int{inserted - done, done, 0}; !slices.Equal(got, want) {
		return fmt.Errorf("tasks, tasks processed, tasks failed: %v, want %v", got, want)
	}
	return nil
}
