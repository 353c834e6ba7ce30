package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
)

const (
	askAgainEvery = 250 * time.Millisecond
	askWithin     = 2 * time.Second
	closeWithin   = 2 * time.Second
	commandConns  = 4
)

// database is what a command works on: a run of the program whose Postgres answers and has its schema.
type database struct {
	*app
	schema.DB
	pool  *pgxpool.Pool
	cfg   *config.Config
	calls *callqueue.Client
}

// action is what a command does there with its arguments.
type action func(ctx context.Context, db *database, args []string) error

// runE is the form of cobra's RunE.
type runE = func(*cobra.Command, []string) error

// query is the RunE of a short command: --timeout bounds all that it does.
func (a *app) query(do action) runE { return a.bounded(a.connected(commandSettings(), do)) }

// bounded bounds a whole command by --timeout.
func (a *app) bounded(run runE) runE {
	return func(cmd *cobra.Command, args []string) error {
		return a.within(cmd.Context(), func(ctx context.Context) error {
			cmd.SetContext(ctx)
			return run(cmd, args)
		})
	}
}

// connected is the RunE of a command that takes what it takes: --timeout bounds the wait for Postgres.
func (a *app) connected(settings map[string]string, do action) runE {
	return func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		pool, err := openPool(ctx, cfg, settings, commandConns)
		if err != nil {
			return err
		}
		defer closeSoon(pool)
		inSchemas := schemas(cfg).In(pool)
		if err := a.awaitPostgres(ctx, cfg, inSchemas); err != nil {
			return err
		}
		client, err := newClient(cfg, pool)
		if err != nil {
			return err
		}
		return do(ctx, &database{a, inSchemas, pool, cfg, client}, args)
	}
}

// schemas are where callq stands in the database.
func schemas(cfg *config.Config) schema.Names {
	return schema.Names{Own: cfg.Postgres.Schema, Tables: cfg.Postgres.TableSchema}
}

func newClient(cfg *config.Config, pool *pgxpool.Pool) (*callqueue.Client, error) {
	return callqueue.New(pool, callqueue.MaxData(int(cfg.Calls.MaxData)), callqueue.Schemas(cfg.Postgres.Schema, cfg.Postgres.TableSchema))
}

// within bounds what is asked of Postgres by --timeout.
func (a *app) within(ctx context.Context, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	err := do(bounded)
	if err != nil && errors.Is(bounded.Err(), context.DeadlineExceeded) && !errors.As(err, new(*exitError)) {
		return exitf(exitUnreachable, "Postgres did not answer within %s: %w", a.timeout, err)
	}
	return err
}

// A pooler in transaction mode, such as pgbouncer, gives each transaction another session. What belongs
// to a session is lost there: prepared statements, settings, LISTEN, session locks.

// pooledSettings are those that a pooler lets through. docs/operating.md shows how the role brings the rest.
func pooledSettings() map[string]string {
	all := ledger.Settings()
	return map[string]string{
		"timezone": all["timezone"], "client_encoding": all["client_encoding"], "application_name": all["application_name"],
	}
}

// commandSettings leave the plans to Postgres, for commands read whole tables, but turn off JIT:
// compiling takes longer than it saves. What claims or removes calls uses ledger.Settings.
func commandSettings() map[string]string {
	settings := pooledSettings()
	settings["jit"] = "off"
	return settings
}

// openPool makes a pool and does not connect.
func openPool(ctx context.Context, cfg *config.Config, settings map[string]string, conns int) (*pgxpool.Pool, error) {
	url, err := cfg.PostgresURL()
	if err != nil {
		return nil, err
	}
	pc, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, usagef("read postgres.url: %w", err)
	}
	setMode(cfg, pc.ConnConfig, settings)
	pc.MaxConns = int32(max(1, min(conns, 10_000)))
	return pgxpool.NewWithConfig(ctx, pc)
}

// setMode returns how a connection sends statements, and what it sets for its session.
func setMode(cfg *config.Config, cc *pgx.ConnConfig, settings map[string]string) {
	switch cfg.Postgres.QueryMode {
	case "cache_statement":
		cc.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	case "cache_describe":
		cc.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	if isPooled(cc) {
		settings = pooledSettings()
	}
	maps.Copy(cc.RuntimeParams, settings)
}

// isPooled reports whether connections are made for a pooler.
func isPooled(cc *pgx.ConnConfig) bool {
	return cc.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement
}

// directConn is how to reach Postgres past a pooler, where one stands between.
func directConn(cfg *config.Config) (*pgx.ConnConfig, error) {
	url := cfg.Postgres.DirectURL
	if url == "" {
		var err error
		if url, err = cfg.PostgresURL(); err != nil {
			return nil, err
		}
	}
	cc, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, usagef("read postgres.direct_url: %w", err)
	}
	if cfg.Postgres.DirectURL == "" {
		if setMode(cfg, cc, nil); isPooled(cc) {
			return nil, usagef("postgres.query_mode (from %s) is for a pooler, and LISTEN and migrations need the way past it: "+
				"set postgres.direct_url or CALLQ_POSTGRES_DIRECT_URL", cfg.Origin("postgres.query_mode"))
		}
	}
	maps.Copy(cc.RuntimeParams, commandSettings())
	return cc, nil
}

// closePool closes connections. It does not wait for a Postgres, or a pooler, that has fallen silent: pgx would for 15 s.
func closePool(pool *pgxpool.Pool, log *slog.Logger) {
	if !closes(pool, closeWithin) {
		log.Warn("connections to Postgres not closed: it does not answer")
	}
}

// closeSoon is for commands, which end within their --timeout: it lasts for Postgres to hear that a statement is cancelled.
func closeSoon(pool *pgxpool.Pool) { closes(pool, 250*time.Millisecond) }

func closes(pool *pgxpool.Pool, within time.Duration) bool {
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
		return true
	case <-time.After(within):
		return false
	}
}

// checkSchema returns nil when Postgres answers and has this program's schema. A producer's role may
// not see the schema's version, and passes.
func checkSchema(ctx context.Context, pool schema.DB) error {
	if err := migrations.Check(ctx, pool); !isForbidden(err) {
		return err
	}
	return nil
}

func (a *app) awaitPostgres(ctx context.Context, cfg *config.Config, pool schema.DB) error {
	return a.await(ctx, "Postgres", cfg.Origin("postgres.url"), func(ctx context.Context) error { return checkSchema(ctx, pool) })
}

// await asks a server until it answers, for as long as --timeout. A refusal is final.
func (a *app) await(ctx context.Context, what, origin string, ask func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var first error
	for {
		err := ask(bounded)
		switch {
		case err == nil:
			return nil
		case errors.Is(ctx.Err(), context.Canceled):
			return ctx.Err()
		case errors.As(err, new(*exitError)):
			return err
		case isRefusal(err):
			return exitf(exitUnreachable, "%s refused the connection: %w; check its URL, user and password (from %s)", what, err, origin)
		case poolerHint(err) != "":
			return err
		case what == "Postgres" && !isUnreachable(err):
			return err
		case first == nil:
			first = err
			if bounded.Err() == nil {
				fmt.Fprintf(a.stderr, "callq: waiting up to %s for %s: %s\n", a.timeout, what, explained(err))
			}
		}
		select {
		case <-time.After(askAgainEvery):
		case <-bounded.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return exitf(exitUnreachable, "%s cannot be reached, tried for %s: %w; check that it runs and its URL (from %s)",
				what, a.timeout, first, origin)
		}
	}
}

// isRefusal reports whether the server is there and will not have us: a wrong user, password or database.
func isRefusal(err error) bool {
	return hasCode(err, "28", "3D000") || slices.ContainsFunc([]string{"WRONGPASS", "NOAUTH", "NOPERM"}, func(code string) bool {
		return redis.HasErrorPrefix(err, code)
	})
}
