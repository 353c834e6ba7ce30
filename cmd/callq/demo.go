package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/migrations"
	"github.com/callq/callq/tasks"
)

// demoAnswer is how long the demo's API takes to answer.
const demoAnswer = 15 * time.Millisecond

// demoVerdict is what the demo's API saw.
type demoVerdict struct {
	Done     int     `json:"done"`     // calls that are done
	Requests int     `json:"requests"` // that reached the API
	Max      int     `json:"max"`      // the most in any window
	R429     int     `json:"r429"`     // answers 429 Too Many Requests
	Used     float64 `json:"used"`     // share of what the limit allows, 0 to 1
}

// demo is one run of callq demo.
type demo struct {
	calls  int
	rate   limit.Rate
	keep   bool
	format string
	out    io.Writer // the verdict
	say    io.Writer // progress
}

func demoCommand(a *app) *cobra.Command {
	d := demo{}
	rate := "100/10s"
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run 500 calls against a local API that allows 100 per 10 s",
		Long: "Start a Postgres, a Redis and an API of its own, queue calls, and show what the API saw. You need not\n" +
			"configure anything, and nothing is left behind unless you give --keep.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if d.rate, err = limit.ParseRate(rate); err != nil {
				return usagef("--rate: %w", err)
			}
			if d.calls < 1 || d.calls > 1_000_000 {
				return usagef("--calls is %d; it may be 1 to 1000000", d.calls)
			}
			d.format, d.out, d.say = a.output, a.stdout, a.stderr
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().IntVar(&d.calls, "calls", 500, "how many calls to queue")
	cmd.Flags().StringVar(&rate, "rate", rate, "what the API allows")
	cmd.Flags().BoolVar(&d.keep, "keep", false, "leave the servers up until Ctrl-C, and say how to reach them")
	return cmd
}

func (d demo) run(ctx context.Context) (err error) {
	log := slog.New(slog.NewTextHandler(d.say, &slog.HandlerOptions{Level: slog.LevelWarn}))
	fmt.Fprintln(d.say, "starting Postgres, Redis and an API that allows", strings.TrimSuffix(d.rate.String(), ", sliding window"))
	postgres, err := local.StartPostgres(ctx, local.Postgres{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	redisURL, stopRedis, err := local.StartAnyRedis(ctx, local.Redis{}, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopRedis()) }()
	api, err := startDemoAPI(ctx, d.rate, demoAnswer)
	if err != nil {
		return err
	}
	defer api.close()

	url := postgres.URL("postgres")
	conn, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("read Postgres's URL: %w", err)
	}
	if _, err := migrations.Up(ctx, conn); err != nil {
		return err
	}
	cfg := config.Default()
	cfg.Postgres.URL, cfg.Redis.URL = url, redisURL
	pool, err := openPool(ctx, cfg, ledger.Settings(), 20)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := openRedis(cfg, log)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := d.callAll(ctx, pool, client, api, log); err != nil {
		return err
	}
	if d.keep {
		fmt.Fprintf(d.say, "\nPostgres  %s\nRedis     %s\nAPI       %s\nCtrl-C ends them.\n", url, redisURL, api.url)
		<-ctx.Done()
	}
	return nil
}

// callAll is the main job: queue the calls, run a dispatcher and a worker until all have ended,
// then ask the API, and verify, what really happened.
func (d demo) callAll(ctx context.Context, pool *pgxpool.Pool, redis redis.UniversalClient, api *demoAPI, log *slog.Logger) error {
	parts, err := d.parts(pool, redis, log)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var ended sync.WaitGroup
	for _, part := range parts {
		ended.Go(func() {
			if err := part(running); err != nil {
				log.ErrorContext(ctx, "part ended", "err", err)
				stop()
			}
		})
	}
	defer ended.Wait()
	defer stop()

	producer, err := callqueue.New(pool)
	if err != nil {
		return err
	}
	calls := make([]callqueue.Call, d.calls)
	for i := range calls {
		calls[i] = callqueue.Call{Data: map[string]any{"method": "POST", "url": api.url, "json": map[string]int{"n": i}}}
	}
	if _, err := producer.InsertMany(running, calls); err != nil {
		return fmt.Errorf("queue the calls: %w", err)
	}
	if err := d.watch(running, pool, api); err != nil {
		return err
	}
	return d.verdict(running, pool, api)
}

func (d demo) parts(pool *pgxpool.Pool, redis redis.UniversalClient, log *slog.Logger) ([]func(context.Context) error, error) {
	dispatch, err := dispatcher.New(dispatcher.Config{
		Pool: pool, Redis: redis, Logger: log,
		Policy: policy.Policy{
			Limits: []policy.Limit{{Name: "api", Rate: d.rate}},
			Queues: []policy.Queue{{
				Name: "default", Limits: []string{"api"}, MaxAttempts: 3, BackoffMin: time.Second,
				BackoffMax: 10 * time.Second, Timeout: 10 * time.Second, OnLost: "retry",
			}},
		},
	})
	if err != nil {
		return nil, err
	}
	worker, err := tasks.New(tasks.Config{
		Pool: pool, Redis: redis, Concurrency: 50, Logger: log, ShutdownTimeout: 5 * time.Second,
		HTTP: &tasks.HTTPConfig{AllowPrivate: true},
	})
	if err != nil {
		return nil, err
	}
	return []func(context.Context) error{dispatch.Run, worker.Run}, nil
}

// watch shows progress until every call has ended: a live line on a terminal, now and then a new
// one elsewhere.
func (d demo) watch(ctx context.Context, pool *pgxpool.Pool, api *demoAPI) error {
	begun := time.Now()
	every, before, after := 250*time.Millisecond, "\r", " "
	if !isTerminal(d.say) {
		every, before, after = 2*time.Second, "", "\n"
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var done, ended int
		if err := pool.QueryRow(ctx, demoCountSQL).Scan(&done, &ended); err != nil {
			return fmt.Errorf("count the calls: %w", err)
		}
		inWindow, r429 := api.seen()
		fmt.Fprintf(d.say, "%s%3.0fs  %d of %d done  requests in the last %s: %3d of %d  429s: %d%s",
			before, time.Since(begun).Seconds(), done, d.calls, d.rate.Window, inWindow, d.rate.Units, r429, after)
		if ended == d.calls {
			fmt.Fprintln(d.say)
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			fmt.Fprintln(d.say)
			return fmt.Errorf("the demo was stopped: %w", context.Cause(ctx))
		}
	}
}

const demoCountSQL = `
SELECT count(*) FILTER (WHERE status = 'done'), count(*) FILTER (WHERE status IN ('done', 'failed', 'cancelled'))
FROM call_queue`

func (d demo) verdict(ctx context.Context, pool *pgxpool.Pool, api *demoAPI) error {
	v := api.verdict()
	if err := pool.QueryRow(ctx, demoCountSQL).Scan(&v.Done, new(int)); err != nil {
		return fmt.Errorf("count the calls: %w", err)
	}
	if d.format == "table" {
		fmt.Fprintf(d.out, "calls done         %d of %d\nrequests sent      %d\nmost in any %-6s %d of %d\nanswers 429        %d\nlimit used         %.1f %%\n",
			v.Done, d.calls, v.Requests, d.rate.Window, v.Max, d.rate.Units, v.R429, 100*v.Used)
	} else if err := json.NewEncoder(d.out).Encode(v); err != nil {
		return err
	}
	report, err := verify.Run(ctx, pool, verify.Options{})
	switch {
	case err != nil:
		return err
	case len(report.Findings) > 0:
		return fmt.Errorf("verify found %d violations; the first: %+v", len(report.Findings), report.Findings[0])
	case v.Done < d.calls || int64(v.Max) > d.rate.Units || v.R429 > 0:
		return errors.New("the demo did not do what it shows: see the figures above")
	}
	return nil
}
