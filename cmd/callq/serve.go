package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/web"
	"github.com/callq/callq/tasks"
)

func (p *program) serveCommand() *cobra.Command {
	apply := false
	cmd := &cobra.Command{
		Use: "serve", Short: "Run a dispatcher, a worker and the http listener in one process",
		Long: "Run a dispatcher, a worker and the http listener in one process, until SIGTERM, which drains.\n" +
			"SIGHUP reloads limits, queues, budgets, schedule, retention and http_task; a bad file changes nothing.\n" +
			"It never migrates: run `callq migrate up` first. " + applyText,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.daemon(cmd.Context(), roles{dispatcher: true, worker: true, mustListen: true, apply: apply})
		},
	}
	cmd.Flags().BoolVar(&apply, "apply", false, applyUsage)
	return cmd
}

func (p *program) workCommand() *cobra.Command {
	return &cobra.Command{
		Use: "work", Short: "Run a worker alone, as many as you like",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.daemon(cmd.Context(), roles{worker: true})
		},
	}
}

// roles are what a daemon does.
type roles struct {
	dispatcher, worker bool
	mustListen         bool // a taken address is an error
	apply              bool // the configuration, even if a newer one has replaced it
}

// conns is how many connections the parts need at least.
func (r roles) conns() int {
	n := 0
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

const (
	awaitEvery    = 500 * time.Millisecond
	askWithin     = 2 * time.Second
	closeWithin   = 2 * time.Second
	headersWithin = 5 * time.Second
)

// daemon runs the parts until ctx ends, and then lets them drain. While Postgres, its schema or
// Redis is away it waits, says so once, and answers 503 on /readyz; it never ends for that.
func (p *program) daemon(ctx context.Context, roles roles) error {
	cfg, err := p.readConfig()
	if err != nil {
		return err
	}
	log := p.logger(cfg)
	for _, warning := range cfg.Warnings() {
		log.WarnContext(ctx, "configuration may hold a slip", "warning", warning)
	}
	s, err := openServers(ctx, cfg, log, roles)
	if err != nil {
		return err
	}
	defer s.close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.metrics = registry
	reloads := reloader{read: p.readConfig, log: log, started: cfg, last: cfg}
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
		shown, closePages, err := openPages(ctx, cfg, listener.Addr(), log)
		if err != nil {
			return err
		}
		defer closePages()
		handler := web.New(web.Config{
			Checks: checks(ctx, s, parts), Metrics: registry, Pages: shown, Known: web.KnownHosts(listener.Addr(), cfg.HTTP.Listen),
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

// closePool closes connections. A Postgres that has fallen silent is not waited for.
func closePool(pool *pgxpool.Pool, log *slog.Logger) {
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(closeWithin):
		log.Warn("connections to Postgres not closed: it does not answer")
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

func (s servers) askPostgres(ctx context.Context) error { return checkSchema(ctx, s.pool) }
func (s servers) askRedis(ctx context.Context) error    { return s.redis.Ping(ctx).Err() }

// await returns when Postgres, its schema and Redis are there; false: ctx ended first.
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
			s.log.WarnContext(ctx, "waiting", "for", what, "err", oneLine(explained(err).Error()))
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(awaitEvery):
		}
	}
}

func (s servers) missing(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if err := s.askPostgres(ctx); err != nil {
		if _, ok := errors.AsType[*schemaError](err); ok {
			return "the schema", err
		}
		return "Postgres", err
	}
	if err := s.askRedis(ctx); err != nil {
		return "Redis", err
	}
	return "", nil
}

// listen opens the http listener; nil: none.
func listen(ctx context.Context, addr string, must bool, log *slog.Logger) (net.Listener, error) {
	if addr == "off" {
		return nil, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	switch {
	case err != nil && must:
		return nil, &exitError{exitFailed, fmt.Errorf("serve http: %w; set http.listen (CALLQ_HTTP_LISTEN) to an address that is free, or off", err)}
	case err != nil:
		log.WarnContext(ctx, "http not served", "listen", addr, "err", err)
		return nil, nil
	}
	log.InfoContext(ctx, "http served", "address", listener.Addr().String())
	return listener, nil
}

// serveHTTP serves until ctx ends.
func serveHTTP(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headersWithin,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	var served error
	ended := make(chan struct{})
	go func() { served = server.Serve(listener); close(ended) }()
	select {
	case <-ended:
		log.ErrorContext(ctx, "http no longer served", "err", served)
		return
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	if server.Shutdown(bounded) != nil {
		_ = server.Close() // a client that does not end does not keep us
	}
	<-ended
}
