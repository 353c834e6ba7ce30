package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
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

// What serve and dispatch say of what they apply.
const (
	applyText = `At its start it applies limits, queues and budgets for every process: what was applied last is in force. It does
not apply a file that was applied before and has since been replaced, so that no restart turns anything back;
--apply does.`
	applyUsage = "apply the configuration even if a newer one has replaced it"
)

func serveCommand(a *app) *cobra.Command {
	does := roles{dispatcher: true, worker: true, mustListen: true}
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !once {
				return a.daemon(cmd.Context(), does)
			}
			if !cmd.Flags().Changed("timeout") {
				a.timeout = time.Minute
			}
			return a.dispatchOnce(cmd.Context(), does)
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
	mustListen         bool // a taken address is an error
	apply              bool // the configuration, even if a newer one has replaced it
}

// dispatchOnce applies the rules and runs one tick, within --timeout. It serves no http.
func (a *app) dispatchOnce(ctx context.Context, does roles) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	s, err := openServers(ctx, cfg, a.logger(cfg), does)
	if err != nil {
		return err
	}
	defer s.close()
	if err := a.awaitPostgres(ctx, cfg, s.pool); err != nil {
		return err
	}
	if err := a.awaitRedis(ctx, cfg, s.redis); err != nil {
		return err
	}
	d, err := dispatcher.New(dispatcherConfig(cfg, s, does.apply))
	if err != nil {
		return err
	}
	return d.Once(ctx)
}

// daemon runs the parts until ctx ends, and then lets them drain. While Postgres, its schema or
// Redis is away it waits, says so once, and answers 503 on /readyz. It never ends for that.
func (a *app) daemon(ctx context.Context, does roles) error {
	cfg, err := a.readConfig()
	if err != nil {
		return err
	}
	log := a.logger(cfg)
	warnOfSlips(ctx, cfg, log)
	s, err := openServers(ctx, cfg, log, does)
	if err != nil {
		return err
	}
	defer s.close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.metrics = registry
	reloads := reloader{read: a.readConfig, log: log, started: cfg, last: cfg}
	parts, err := makeParts(cfg, s, does, &reloads)
	if err != nil {
		return err
	}
	listener, err := listen(ctx, cfg.HTTP.Listen, does.mustListen, log)
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
	if s.await(ctx) {
		err = runParts(ctx, parts)
	}
	stopServing()
	listening.Wait()
	return err
}

func warnOfSlips(ctx context.Context, cfg *config.Config, log *slog.Logger) {
	for _, warning := range cfg.Warnings() {
		log.WarnContext(ctx, "configuration may hold a slip", "warning", warning)
	}
}

// part is one of a daemon's: it runs until its context ends, and says whether it is ready.
type part struct {
	run func(context.Context) error
	web.Check
}

func makeParts(cfg *config.Config, s servers, does roles, reloads *reloader) ([]part, error) {
	var parts []part
	if does.dispatcher {
		d, err := dispatcher.New(dispatcherConfig(cfg, s, does.apply))
		if err != nil {
			return nil, err
		}
		reloads.dispatcher = d.Reload
		parts = append(parts, part{d.Run, web.Check{Name: "dispatcher", Run: func(context.Context) error { return d.Ready() }}})
	}
	if does.worker {
		wc, err := workerConfig(cfg, s)
		if err != nil {
			return nil, err
		}
		w, err := tasks.New(wc)
		if err != nil {
			return nil, usagef("%w", err) // what a file or variable holds is no secret
		}
		reloads.worker = w.Reload
		parts = append(parts, part{w.Run, web.Check{Name: "worker", Run: func(context.Context) error {
			if !w.Ready() {
				return errors.New("does not take attempts")
			}
			return nil
		}}})
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
	redis   redis.UniversalClient
	listen  *pgx.ConnConfig
	log     *slog.Logger
	metrics prometheus.Registerer // nil: none
}

// openServers makes the clients and does not connect.
func openServers(ctx context.Context, cfg *config.Config, log *slog.Logger, does roles) (s servers, err error) {
	s.log = log
	if s.redis, err = openRedis(cfg); err != nil {
		return s, err
	}
	conns := 0 // that the parts need at least
	if does.dispatcher {
		conns += 4
		if s.listen, err = directConn(cfg); err != nil { // a worker does without
			return s, err
		}
	}
	if does.worker {
		conns += 6
	}
	s.pool, err = openPool(ctx, cfg, ledger.Settings(), max(cfg.Postgres.Pool, conns))
	return s, err
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
			s.warn(ctx)
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

// warn tells of a Redis that is too old or may lose messages: calls then wait longer, and none is lost, for Postgres
// is the authority. It also tells what a pooler keeps callq from setting, and how to set it.
func (s servers) warn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*askWithin)
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
	if !isPooled(s.pool.Config().ConnConfig) {
		return
	}
	fixes, err := s.settingFixes(ctx)
	switch {
	case err != nil:
		s.log.WarnContext(ctx, "Postgres does not tell its settings", "err", err)
	case len(fixes) > 0:
		s.log.WarnContext(ctx, "settings of callq's sessions are not in force behind the pooler; plans may be slow",
			"fix", strings.Join(fixes, " "))
	}
}

// settingFixes returns the statements that bring callq's settings into force for its role.
func (s servers) settingFixes(ctx context.Context) (fixes []string, err error) {
	wanted := ledger.Settings()
	delete(wanted, "application_name")
	rows, _ := s.pool.Query(ctx, settingsSQL, slices.Sorted(maps.Keys(wanted))) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[struct{ Role, Name, Value string }])
	for _, f := range found {
		if f.Value != wanted[f.Name] {
			fixes = append(fixes, fmt.Sprintf("ALTER ROLE %s SET %s = '%s';", f.Role, f.Name, wanted[f.Name]))
		}
	}
	return fixes, err
}

const settingsSQL = `
SELECT quote_ident(session_user) AS role, name, coalesce(current_setting(name, true), '') AS value
FROM unnest($1::text[]) AS name
ORDER BY name`
