package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/migrations"
)

const (
	askAgainEvery = 250 * time.Millisecond
	commandConns  = 4
	oldestServer  = 14 // Postgres's major version
)

// withPostgres runs a command on a pool whose Postgres answers and has this program's schema. That
// alone is bounded by --timeout.
func (p *program) withPostgres(ctx context.Context, settings map[string]string,
	use func(context.Context, *config.Config, *pgxpool.Pool) error,
) error {
	cfg, err := p.loadConfig()
	if err != nil {
		return err
	}
	pool, err := openPool(ctx, cfg, settings, commandConns)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := p.await(ctx, "Postgres", cfg.Origin("postgres.url"), func(ctx context.Context) error {
		return checkSchema(ctx, pool)
	}); err != nil {
		return err
	}
	return use(ctx, cfg, pool)
}

// ask is withPostgres for a command that is short: all of it is bounded.
func (p *program) ask(ctx context.Context, use func(context.Context, *config.Config, *pgxpool.Pool) error) error {
	return p.withPostgres(ctx, commandSettings(), func(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
		return p.within(ctx, func(ctx context.Context) error { return use(ctx, cfg, pool) })
	})
}

// within bounds what is asked of Postgres by --timeout.
func (p *program) within(ctx context.Context, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	err := do(bounded)
	if err != nil && ctx.Err() == nil && errors.Is(bounded.Err(), context.DeadlineExceeded) {
		return timedOut("Postgres", p.timeout, err)
	}
	return err
}

// commandSettings leave the plans to Postgres: commands read whole tables. But compiling a plan takes longer
// than it runs. What claims calls or retires them uses ledger.Settings.
func commandSettings() map[string]string {
	settings := pooledSettings()
	settings["jit"] = "off"
	return settings
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
	pc.MaxConns = int32(conns) //nolint:gosec // at most 1000, and those of the parts
	return pc, nil
}

// await asks a server until it answers, for as long as --timeout. A refusal is final.
func (p *program) await(ctx context.Context, what, origin string, ask func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, p.timeout)
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
			return &exitError{exitUnreachable, fmt.Errorf("%s refused the connection: %w; check its URL, user and password (from %s)", what, err, origin)}
		case poolerHint(err) != "":
			return err
		case isTLS(err):
			return &exitError{exitUnreachable, fmt.Errorf("%s is there, and TLS with it fails: %w; check %s (URL from %s)", what, err, tlsSettings(what), origin)}
		case what == "Postgres" && !isUnreachable(err):
			return err
		case first == nil:
			first = err
			if bounded.Err() == nil {
				fmt.Fprintf(p.stderr, "callq: waiting up to %s for %s: %s\n", p.timeout, what, oneLine(err.Error()))
			}
		}
		select {
		case <-time.After(askAgainEvery):
		case <-bounded.Done():
			return &exitError{exitUnreachable, fmt.Errorf(
				"%s cannot be reached, tried for %s: %w; check that it runs and its URL (from %s)", what, p.timeout, first, origin)}
		}
	}
}

// isRefusal says that the server is there and will not have us: wrong user, password or database.
func isRefusal(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(pg.Code, "28") || pg.Code == "3D000"
	}
	return redis.HasErrorPrefix(err, "WRONGPASS") || redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "NOPERM")
}

// schemaError says that Postgres answers and cannot be used as it is.
type schemaError struct{ reason string }

func (e *schemaError) Error() string { return e.reason }

// checkSchema returns nil when Postgres answers, is new enough and has the schema of this program.
// A role that may not see the schema's version passes: it is a producer.
func checkSchema(ctx context.Context, pool *pgxpool.Pool) error {
	var server int
	var exists bool
	if err := pool.QueryRow(ctx, serverSQL).Scan(&server, &exists); err != nil {
		return err
	}
	if server/10000 < oldestServer {
		return &schemaError{fmt.Sprintf("Postgres is version %d, and callq needs %d or newer", server/10000, oldestServer)}
	}
	var version int64
	if exists {
		err := pool.QueryRow(ctx, schemaVersionSQL).Scan(&version)
		if isForbidden(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the schema's version: %w", err)
		}
	}
	switch want := migrations.Version(); {
	case version == 0:
		return &schemaError{"callq's tables are not in this database: run `callq migrate up`"}
	case version < want:
		return &schemaError{fmt.Sprintf("the database has schema version %d, and this callq needs %d: run `callq migrate up`", version, want)}
	case version > want:
		return &schemaError{fmt.Sprintf("the database has schema version %d, and this callq knows %d: use a newer callq, or that one's `callq migrate down`", version, want)}
	}
	return nil
}

const serverSQL = `SELECT current_setting('server_version_num')::integer, to_regclass('callq_migrations') IS NOT NULL`

const schemaVersionSQL = `SELECT coalesce(max(version_id), 0) FROM callq_migrations WHERE is_applied`
