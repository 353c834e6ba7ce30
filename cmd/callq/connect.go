package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/migrations"
)

const (
	askAgainEvery = 250 * time.Millisecond
	askWithin     = 2 * time.Second
	closeWithin   = 2 * time.Second
	commandConns  = 4
)

// database is what a command works on: a pool whose Postgres answers and has this program's schema.
type database struct {
	*pgxpool.Pool
	cfg   *config.Config
	calls *callqueue.Client
}

// action is what a command does there with its arguments.
type action func(ctx context.Context, db *database, args []string) error

// runE is the form of cobra's RunE.
type runE = func(*cobra.Command, []string) error

// query is the RunE of a short command: --timeout bounds all that it does.
func (a *app) query(do action) runE {
	return a.connected(commandSettings(), func(ctx context.Context, db *database, args []string) error {
		return a.within(ctx, func(ctx context.Context) error { return do(ctx, db, args) })
	})
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
		defer pool.Close()
		if err := a.awaitPostgres(ctx, cfg, pool); err != nil {
			return err
		}
		client, err := callqueue.New(pool, callqueue.MaxData(int(cfg.Calls.MaxData)))
		if err != nil {
			return err
		}
		return do(ctx, &database{pool, cfg, client}, args)
	}
}

// within bounds what is asked of Postgres by --timeout.
func (a *app) within(ctx context.Context, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	err := do(bounded)
	if err != nil && ctx.Err() == nil && errors.Is(bounded.Err(), context.DeadlineExceeded) {
		return exitf(exitUnreachable, "Postgres did not answer within %s: %w", a.timeout, err)
	}
	return err
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
	pc, err := poolConfig(cfg, settings, conns)
	if err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, pc)
}

func poolConfig(cfg *config.Config, settings map[string]string, conns int) (*pgxpool.Config, error) {
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
	return pc, nil
}

// closePool closes connections. It does not wait for a Postgres that has fallen silent.
func closePool(pool *pgxpool.Pool, log *slog.Logger) {
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(closeWithin):
		log.Warn("connections to Postgres not closed: it does not answer")
	}
}

// checkSchema returns nil when Postgres answers and has this program's schema. A producer's role may
// not see the schema's version, and passes.
func checkSchema(ctx context.Context, pool *pgxpool.Pool) error {
	if err := migrations.Check(ctx, pool); !isForbidden(err) {
		return err
	}
	return nil
}

func (a *app) awaitPostgres(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
	return a.await(ctx, "Postgres", cfg.Origin("postgres.url"), func(ctx context.Context) error { return checkSchema(ctx, pool) })
}

func (a *app) awaitRedis(ctx context.Context, cfg *config.Config, client redis.UniversalClient) error {
	return a.await(ctx, "Redis", cfg.Origin("redis.url"), func(ctx context.Context) error { return client.Ping(ctx).Err() })
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
		case isRefusal(err):
			return exitf(exitUnreachable, "%s refused the connection: %w; check its URL, user and password (from %s)", what, err, origin)
		case poolerHint(err) != "":
			return err
		case isTLS(err):
			return exitf(exitUnreachable, "%s is there, and TLS with it fails: %w; check %s (URL from %s)", what, err, tlsSettings(what), origin)
		case what == "Postgres" && !isUnreachable(err):
			return err
		case first == nil:
			first = err
			if bounded.Err() == nil {
				fmt.Fprintf(a.stderr, "callq: waiting up to %s for %s: %s\n", a.timeout, what, oneLine(err.Error()))
			}
		}
		select {
		case <-time.After(askAgainEvery):
		case <-bounded.Done():
			return exitf(exitUnreachable, "%s cannot be reached, tried for %s: %w; check that it runs and its URL (from %s)",
				what, a.timeout, first, origin)
		}
	}
}

// isRefusal reports whether the server is there and will not have us: a wrong user, password or database.
func isRefusal(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(pg.Code, "28") || pg.Code == "3D000"
	}
	return redis.HasErrorPrefix(err, "WRONGPASS") || redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "NOPERM")
}

// pooledSettings are those that a pooler lets through.
func pooledSettings() map[string]string {
	all := ledger.Settings()
	settings := map[string]string{}
	for _, name := range []string{"timezone", "client_encoding", "application_name"} {
		settings[name] = all[name]
	}
	return settings
}
