package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
	"github.com/callq/callq/tasks"
)

// payload is what a call carries, the same for every peer.
type payload struct {
	N      int    `json:"n"`
	Method string `json:"method"`
	URL    string `json:"url"`
}

func newPayload(n int) payload {
	return payload{N: n, Method: "POST", URL: "https://api.example.com/v1/messages"}
}

const callqTask = "noop"

// callq is callq: producers on a pool of their own, and a dispatcher and a worker in one process,
// as `callq serve` runs them.
type callq struct {
	producers, servants *pgxpool.Pool
	redis               *redis.Client
	client              *callqueue.Client
	ended               int // calls that had ended before, by which ids begin
}

func openCallq(ctx context.Context, databaseURL, redisURL string) (system, error) {
	c := &callq{}
	if err := c.open(ctx, databaseURL, redisURL); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *callq) open(ctx context.Context, databaseURL, redisURL string) (err error) {
	if c.producers, err = openPool(ctx, databaseURL, nil); err != nil {
		return err
	}
	if _, err := migrations.Up(ctx, c.producers.Config().ConnConfig, schema.Names{}); err != nil {
		return err
	}
	if c.servants, err = pgxpool.New(ctx, databaseURL); err != nil { // as the README makes it
		return err
	}
	options, err := redis.ParseURL(redisURL)
	if err != nil {
		return fmt.Errorf("read Redis's URL: %w", err)
	}
	c.redis = redis.NewClient(options)
	c.client, err = callqueue.New(c.producers)
	return err
}

func (c *callq) close() {
	for _, pool := range []*pgxpool.Pool{c.producers, c.servants} {
		if pool != nil {
			pool.Close()
		}
	}
	if c.redis != nil {
		_ = c.redis.Close() // its server is emptied and goes
	}
}

func (c *callq) insertSingles(ctx context.Context, n int) error {
	return byProducers(producers, n, func(n int) error {
		_, err := c.client.Insert(ctx, callqueue.Call{Task: callqTask, Data: newPayload(n)})
		return err
	})
}

func (c *callq) insertBulk(ctx context.Context, n int) error {
	return inBatches(n, func(first, count int) error {
		calls := make([]callqueue.Call, count)
		for i := range calls {
			calls[i] = callqueue.Call{Task: callqTask, Data: newPayload(first + i)}
		}
		_, err := c.client.InsertMany(ctx, calls)
		return err
	})
}

func (c *callq) vacuum(ctx context.Context) error {
	_, err := c.producers.Exec(ctx, "VACUUM ANALYZE")
	return err
}

// start runs a dispatcher without limits and a worker.
func (c *callq) start(ctx context.Context, handled func()) (stop func() error, err error) {
	dispatch, err := dispatcher.New(dispatcher.Config{
		Pool: c.servants, Redis: c.redis,
		Policy: policy.Policy{Queues: []policy.Queue{{
			Name: "default", MaxAttempts: 3, BackoffMin: time.Second, BackoffMax: time.Minute,
			Timeout: 30 * time.Second, OnLost: "retry",
		}}},
	})
	if err != nil {
		return nil, err
	}
	worker, err := tasks.New(tasks.Config{
		Pool: c.servants, Redis: c.redis, Concurrency: slots, ShutdownTimeout: 10 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	worker.Handle(callqTask, func(context.Context, *tasks.Call) error {
		handled()
		return nil
	})
	running, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	var dispatchErr, workErr error
	parts.Go(func() { dispatchErr = dispatch.Run(running) })
	parts.Go(func() { workErr = worker.Run(running) })
	return func() error {
		cancel()
		parts.Wait()
		return errors.Join(dispatchErr, workErr)
	}, nil
}

func (c *callq) allDone(ctx context.Context) (done bool, err error) {
	err = c.producers.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM call_queue WHERE status <> 'done' AND id > $1)`, c.ended).Scan(&done)
	return done, err
}

func (c *callq) check(ctx context.Context, inserted, done int) error {
	got := make([]int, 4)
	err := c.producers.QueryRow(ctx, `
SELECT (SELECT count(*) FROM call_queue WHERE id > $1), (SELECT count(*) FROM call_queue WHERE status = 'done' AND id > $1),
    (SELECT count(*) FROM call_attempts WHERE outcome = 'done' AND call_id > $1), (SELECT count(*) FROM callq.call_open)`, c.ended).
		Scan(&got[0], &got[1], &got[2], &got[3])
	if err != nil {
		return err
	}
	if want := []int{inserted, done, done, 0}; !slices.Equal(got, want) {
		return fmt.Errorf("calls, calls done, attempts done, attempts open: %v, want %v", got, want)
	}
	c.ended += inserted
	return nil
}
