package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/web"
	"github.com/callq/callq/migrations"
	"github.com/callq/callq/tasks"
)

// What serve and dispatch say of what they apply.
const (
	applyText = `At its start it applies limits, queues and budgets for every process: what was applied last is in force. It does
not apply a file that was applied before and has since been replaced, so that no restart turns anything back;
--apply does.`
	applyUsage = "apply the configuration even if a newer one has replaced it"
)

func serveCommand(a *app) *cobra.Command {
	does := roles{dispatcher: true, worker: true}
	cmd := &cobra.Command{
		Use: "serve", Short: "Run a dispatcher, a worker and the http listener in one process",
		Long: "Run a dispatcher, a worker and the http listener in one process. SIGTERM drains it.\n" +
			"SIGHUP reloads limits, queues, budgets, schedule, retention and http_task; a bad file changes nothing.\n" +
			"It never migrates: run `callq migrate up` first.\n\n" + applyText,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.daemon(cmd.Context(), does) },
	}
	cmd.Flags().BoolVar(&does.apply, "apply", false, applyUsage)
	return cmd
}

func dispatchCommand(a *app) *cobra.Command {
	once, does := false, roles{dispatcher: true}
	cmd := &cobra.Command{
		Use: "dispatch", Short: "Run the dispatcher alone, as many as you like",
		Long: "Run the dispatcher alone, until SIGTERM. With --once run a single whole tick, which is safe from\n" +
			"system cron at any rate and beside any number of other dispatchers. SIGHUP reloads limits, queues,\n" +
			"budgets, schedule and retention; a bad file changes nothing.\n\n" + applyText,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !once {
				return a.daemon(cmd.Context(), does)
			}
			if !cmd.Flags().Changed("timeout") {
				a.timeout = time.Minute
			}
			return a.dispatchOnce(does.apply)(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "one tick, then exit")
	cmd.Flags().BoolVar(&does.apply, "apply", false, applyUsage)
	return cmd
}

func workCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "work", Short: "Run a worker alone, as many as you like",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.daemon(cmd.Context(), roles{worker: true}) },
	}
}

// roles are what a daemon does.
type roles struct {
	dispatcher, worker bool
	apply              bool // the configuration, even if a newer one has replaced it
}

// dispatchOnce applies the rules and runs one tick, within --timeout. It serves no http.
func (a *app) dispatchOnce(apply bool) runE {
	return a.bounded(a.connected(ledger.Settings(), func(ctx context.Context, db *database, _ []string) error {
		return a.withRedis(ctx, db.cfg, func(client redis.UniversalClient) error {
			budgets, err := openBudgets(db.cfg)
			if err != nil {
				return err
			}
			if budgets != nil {
				defer budgets.Close()
			}
			d, err := dispatcher.New(dispatcherConfig(db.cfg, servers{pool: db.pool, redis: client, budgets: budgets, log: a.logger(db.cfg)}, apply))
			if err != nil {
				return err
			}
			return d.Once(ctx)
		})
	}))
}

// daemon runs the parts until ctx ends, and then lets them drain. While Postgres, its schema or
// Redis is away it waits, logs that once, and answers 503 on /readyz. It never ends for that.
func (a *app) daemon(ctx context.Context, does roles) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if a.env["GOGC"] == "" { // what lives is little: rarer collections save a tenth of the CPU
		debug.SetGCPercent(400)
	}
	log := a.logger(cfg)
	for _, warning := range cfg.Unread() {
		log.WarnContext(ctx, "variable ignored", "why", warning)
	}
	s, err := openServers(ctx, cfg, log, does)
	if err != nil {
		return err
	}
	defer s.close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.metrics = registry
	reloads := reloader{read: a.loadConfig, log: log, started: cfg, metrics: newDaemonMetrics(registry)}
	if does.dispatcher {
		registry.MustRegister(&gauges{db: schemas(cfg).In(s.pool), log: log})
	}
	parts, err := makeParts(cfg, s, does, &reloads)
	if err != nil {
		return err
	}
	listener, err := listen(ctx, cfg.HTTP.Listen, does.dispatcher && does.worker, log)
	if err != nil {
		return err
	}
	defer reloads.onHangUp(ctx)()

	// Readiness and metrics are answered until the last part has drained.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	var listening sync.WaitGroup
	if listener != nil {
		pages, closePages, err := openPages(ctx, cfg, listener.Addr(), log)
		if err != nil {
			return err
		}
		defer closePages()
		handler := web.New(web.Config{
			Checks: checks(ctx, s, parts), Metrics: registry, Pages: pages, Known: web.KnownHosts(listener.Addr(), append([]string{cfg.HTTP.Listen}, cfg.HTTP.Hosts...)),
		})
		listening.Go(func() { serveHTTP(serving, listener, handler, log) })
	}
	if s.await(ctx) {
		err = runParts(ctx, parts)
	}
	stopServing()
	listening.Wait()
	return err
}

// part is one of a daemon's: it runs until its context ends, and reports whether it is ready.
type part struct {
	run func(context.Context) error
	web.Check
}

// makeParts makes the worker first: it can refuse what reloads gives it, for a secret may be missing.
func makeParts(cfg *config.Config, s servers, does roles, reloads *reloader) ([]part, error) {
	var parts []part
	if does.worker {
		wc, err := workerConfig(cfg, s)
		if err != nil {
			return nil, err
		}
		w, err := tasks.New(wc)
		if err != nil {
			return nil, usagef("%w", err) // what a file or variable holds is no secret
		}
		reloads.give = append(reloads.give, func(next *config.Config) error {
			wc, err := workerConfig(next, s)
			if err != nil {
				return err
			}
			return w.Reload(*wc.HTTP)
		})
		parts = append(parts, part{w.Run, web.Check{Name: "worker", Run: func(context.Context) error {
			if !w.Ready() {
				return errors.New("does not take attempts")
			}
			return nil
		}}})
	}
	if does.dispatcher {
		d, err := dispatcher.New(dispatcherConfig(cfg, s, does.apply))
		if err != nil {
			return nil, err
		}
		reloads.give = append(reloads.give, func(next *config.Config) error { return d.Reload(settings(next)) })
		parts = append(parts, part{d.Run, web.Check{Name: "dispatcher", Run: func(context.Context) error { return d.Ready() }}})
	}
	return parts, nil
}

// runParts runs parts until ctx ends and all have drained. A part that fails takes the others with it.
func runParts(ctx context.Context, parts []part) error {
	running, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		running.Go(func() error { return part.run(ctx) })
	}
	return running.Wait()
}

// checks are what /readyz asks.
func checks(ctx context.Context, s servers, parts []part) []web.Check {
	list := []web.Check{
		{Name: "postgres", Run: s.askPostgres},
		{Name: "redis", Run: s.askRedis},
		{Name: "shutdown", Run: func(context.Context) error {
			if ctx.Err() != nil {
				return errors.New("shutting down")
			}
			return nil
		}},
	}
	for _, part := range parts {
		list = append(list, part.Check)
	}
	return list
}

// servers are what every part of a daemon uses.
type servers struct {
	pool    *pgxpool.Pool
	schemas schema.Names
	cfg     *config.Config
	redis   redis.UniversalClient
	sender  *handoff.Broker       // of redis
	budgets redis.UniversalClient // their own; nil: the same
	listen  *pgx.ConnConfig
	log     *slog.Logger
	metrics prometheus.Registerer // nil: none
}

// openServers makes the clients and does not connect.
func openServers(ctx context.Context, cfg *config.Config, log *slog.Logger, does roles) (s servers, err error) {
	s.log, s.cfg, s.schemas = log, cfg, schemas(cfg)
	if s.redis, err = openRedis(cfg); err != nil {
		return s, err
	}
	if s.budgets, err = openBudgets(cfg); err != nil {
		return s, err
	}
	if does.dispatcher { // a worker does without
		if s.listen, err = directConn(cfg); err != nil {
			return s, err
		}
	}
	s.pool, err = openPool(ctx, cfg, ledger.Settings(), max(cfg.Postgres.Pool, 8)) // with fewer, a worker makes its own
	if err == nil {
		s.sender = handoff.New(s.redis, s.schemas.In(s.pool), log)
	}
	return s, err
}

func (s servers) close() {
	closePool(s.pool, s.log)
	_ = s.redis.Close() // nothing is on its way any more
	if s.budgets != nil {
		_ = s.budgets.Close()
	}
}

func (s servers) askPostgres(ctx context.Context) error {
	return checkSchema(ctx, s.schemas.In(s.pool))
}

// askRedis asks for what a hand-over needs. Without Postgres it is not known where hand-overs go.
func (s servers) askRedis(ctx context.Context) error {
	if err := pingRedis(ctx, s.cfg, s.redis); err != nil || s.sender.Open(ctx) != nil {
		return err
	}
	if err := s.sender.Probe(ctx); err != nil {
		return fmt.Errorf("it answers, and takes no hand-over: %w", err)
	}
	return nil
}

// await returns true when Postgres, its schema and Redis are there, false when ctx ended first.
func (s servers) await(ctx context.Context) bool {
	for waiting := ""; ; {
		what, err := s.missing(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			return true
		case what != waiting:
			waiting = what
			s.log.WarnContext(ctx, "waiting", "for", what, "err", explained(err))
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(2 * askAgainEvery):
		}
	}
}

func (s servers) missing(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	err := s.askPostgres(ctx)
	if _, ok := errors.AsType[*migrations.SchemaError](err); ok {
		return "the schema", err
	}
	if err != nil {
		return "Postgres", err
	}
	return "Redis", s.askRedis(ctx)
}
