package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// River's documentation says that its throughput is bounded by FetchCooldown (by default 100 ms).
const (
	riverFetchCooldown = 2 * time.Millisecond
	riverFetchPoll     = 20 * time.Millisecond
)

// riverSystem is River: a client that only inserts, and one that works.
type riverSystem struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

// Kind is the job's name in River.
func (payload) Kind() string { return "noop" }

type riverWorker struct {
	river.WorkerDefaults[payload]
	handled func()
}

func (w *riverWorker) Work(context.Context, *river.Job[payload]) error {
	w.handled()
	return nil
}

func openRiver(ctx context.Context, databaseURL, _ string) (system, error) {
	pool, err := openPool(ctx, databaseURL, nil)
	if err != nil {
		return nil, err
	}
	r := &riverSystem{pool: pool}
	if err := r.open(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return r, nil
}

func (r *riverSystem) open(ctx context.Context) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(r.pool), &rivermigrate.Config{Logger: noLog()})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	r.client, err = river.NewClient(riverpgxv5.New(r.pool), &river.Config{Logger: noLog()})
	return err
}

func noLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (r *riverSystem) close() { r.pool.Close() }

func (r *riverSystem) insertSingles(ctx context.Context, n int) error {
	return byProducers(producers, n, func(n int) error {
		_, err := r.client.Insert(ctx, newPayload(n), nil)
		return err
	})
}

func (r *riverSystem) insertBulk(ctx context.Context, n int) error {
	return inBatches(n, func(first, count int) error {
		jobs := make([]river.InsertManyParams, count)
		for i := range jobs {
			jobs[i].Args = newPayload(first + i)
		}
		_, err := r.client.InsertManyFast(ctx, jobs)
		return err
	})
}

func (r *riverSystem) vacuum(ctx context.Context) error {
	_, err := r.pool.Exec(ctx, "VACUUM ANALYZE")
	return err
}

func (r *riverSystem) start(ctx context.Context, handled func()) (stop func() error, err error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{handled: handled})
	client, err := river.NewClient(riverpgxv5.New(r.pool), &river.Config{
		Logger: noLog(), Workers: workers,
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: slots}},
		FetchCooldown: riverFetchCooldown, FetchPollInterval: riverFetchPoll,
	})
	if err != nil {
		return nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	return func() error { return client.Stop(ctx) }, nil
}

func (r *riverSystem) allDone(ctx context.Context) (done bool, err error) {
	err = r.pool.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM river_job WHERE state <> 'completed')`).Scan(&done)
	return done, err
}

func (r *riverSystem) check(ctx context.Context, inserted, done int) error {
	got := make([]int, 2)
	err := r.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE state = 'completed') FROM river_job`).Scan(&got[0], &got[1])
	if err != nil {
		return err
	}
	if want := []int{inserted, done}; !slices.Equal(got, want) {
		return fmt.Errorf("jobs, jobs completed: %v, want %v", got, want)
	}
	return nil
}
