package main

import (
	"context"
	"errors"
	"log/slog"
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
	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/web"
	"github.com/callq/callq/migrations"
	"github.com/callq/callq/tasks"
)

func serveCommand(a *app) *cobra.Command {
	apply := false
	cmd := &cobra.Command{
		Use: "serve", Short: "Run a dispatcher, a worker and the http listener in one process",
		Long: "Run a dispatcher, a worker and the http listener in one process. SIGTERM drains it.\n" +
			"SIGHUP reloads limits, queues, budgets, schedule, retention and http_task; a bad file changes nothing.\n" +
			"It never migrates: run `callq migrate up` first.\n\n" + applyText,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.daemon(cmd.Context(), roles{dispatcher: true, worker: true, mustListen: true, apply: apply})
		},
	}
	cmd.Flags().BoolVar(&apply, "apply", false, applyUsage)
	return cmd
}

func workCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "work", Short: "Run a worker alone, as many as you like",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.daemon(cmd.Context(), roles{worker: true}) },
	}
}

// roles are what a daemon does.
type roles struct {
	dispatcher, worker bool
	mustListen         bool // a taken address is an error
	apply              bool // the configuration, even if a newer one has replaced it
}

// conns is how many connections the parts need at least.
func (r roles) conns() (n int) {
	if r.dispatcher {
		n += 4
	}
	if r.worker {
		n += 6
	}
	return n
}

// part is one of a daemon's: it runs until its context ends.
type part struct {
	name  string
	run   func(context.Context) error
	ready func() error
}

// daemon runs the parts until ctx ends, and then lets them drain. While Postgres, its schema or
// Redis is away it waits, says so once, and answers 503 on /readyz. It never ends for that.
func (a *app) daemon(ctx context.Context, roles roles) error {
	cfg, err := a.readConfig()
	if err != nil {
		return err
	}
	log := a.logger(cfg)
	warnOfSlips(ctx, cfg, log)
	s, err := openServers(ctx, cfg, log, roles)
	if err != nil {
		return err
	}
	defer s.close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.metrics = registry
	reloads := reloader{read: a.readConfig, log: log, started: cfg, last: cfg}
	parts, err := makeParts(cfg, s, roles, &reloads)
	if err != nil {
		return err
	}
	listener, err := listen(ctx, cfg.HTTP.Listen, roles.mustListen, log)
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
			Checks: checks(ctx, s, parts), Metrics: registry, Pages: pages, Known: web.KnownHosts(listener.Addr(), cfg.HTTP.Listen),
		})
		listening.Go(func() { serveHTTP(serving, listener, handler, log) })
	}
	// A part that fails takes the others with it.
	running, partsCtx := errgroup.WithContext(ctx)
	if s.await(ctx) {
		for _, part := range parts {
			running.Go(func() error { return part.run(partsCtx) })
		}
	}
	err = running.Wait()
	stopServing()
	listening.Wait()
	return err
}

func warnOfSlips(ctx context.Context, cfg *config.Config, log *slog.Logger) {
	for _, warning := range cfg.Warnings() {
		log.WarnContext(ctx, "configuration may hold a slip", "warning", warning)
	}
}

func makeParts(cfg *config.Config, s servers, roles roles, reloads *reloader) ([]part, error) {
	var parts []part
	if roles.dispatcher {
		dc := dispatcherConfig(cfg, s)
		dc.Apply = roles.apply
		d, err := dispatcher.New(dc)
		if err != nil {
			return nil, err
		}
		reloads.dispatcher = d.Reload
		parts = append(parts, part{"dispatcher", d.Run, d.Ready})
	}
	if roles.worker {
		wc, err := workerConfig(cfg, s)
		if err != nil {
			return nil, err
		}
		w, err := tasks.New(wc)
		if err != nil {
			return nil, usagef("%w", err) // what a file or variable holds is no secret
		}
		reloads.worker = w.Reload
		parts = append(parts, part{"worker", w.Run, func() error {
			if !w.Ready() {
				return errors.New("does not take attempts")
			}
			return nil
		}})
	}
	return parts, nil
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
		list = append(list, web.Check{Name: part.name, Run: func(context.Context) error { return part.ready() }})
	}
	return list
}

// servers are what every part uses.
type servers struct {
	pool    *pgxpool.Pool
	redis   redis.UniversalClient
	listen  *pgx.ConnConfig
	log     *slog.Logger
	metrics prometheus.Registerer // nil: none
}

// openServers makes the clients and does not connect.
func openServers(ctx context.Context, cfg *config.Config, log *slog.Logger, roles roles) (servers, error) {
	client, err := openRedis(cfg, log)
	if err != nil {
		return servers{}, err
	}
	var listen *pgx.ConnConfig
	if roles.dispatcher { // a worker does without
		if listen, err = directConn(cfg); err != nil {
			return servers{}, err
		}
	}
	pool, err := openPool(ctx, cfg, ledger.Settings(), max(cfg.Postgres.Pool, roles.conns()))
	if err != nil {
		return servers{}, err
	}
	standardTo(log)
	return servers{pool: pool, redis: client, listen: listen, log: log}, nil
}

func (s servers) close() {
	closePool(s.pool, s.log)
	if err := s.redis.Close(); err != nil {
		s.log.Warn("Redis client not closed", "err", err)
	}
}

func (s servers) askPostgres(ctx context.Context) error { return checkSchema(ctx, s.pool) }
func (s servers) askRedis(ctx context.Context) error    { return s.redis.Ping(ctx).Err() }

// await returns true when Postgres, its schema and Redis are there, false when ctx ended first.
func (s servers) await(ctx context.Context) bool {
	waiting := ""
	for {
		what, err := s.missing(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			if waiting != "" {
				s.log.InfoContext(ctx, "servers are back")
			}
			s.checkRedis(ctx)
			s.checkSettings(ctx)
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
	if err := s.askPostgres(ctx); err != nil {
		if _, ok := errors.AsType[*migrations.SchemaError](err); ok {
			return "the schema", err
		}
		return "Postgres", err
	}
	return "Redis", s.askRedis(ctx)
}

// checkRedis warns of a Redis that is too old or may lose messages. Nothing is lost for good by
// that, for Postgres is the authority: calls only wait longer.
func (s servers) checkRedis(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	findings, err := doctor.Redis(ctx, s.redis)
	if err != nil {
		s.log.WarnContext(ctx, "Redis not examined", "err", err)
	}
	for _, f := range findings {
		if f.Level != doctor.OK {
			s.log.WarnContext(ctx, "Redis is not as callq needs it", "check", f.Check, "what", f.What, "fix", f.Fix)
		}
	}
}
