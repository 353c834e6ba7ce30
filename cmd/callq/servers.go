package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/migrations"
)

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
	if s.redis, err = openRedis(cfg, log); err != nil {
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
	if s.pool, err = openPool(ctx, cfg, ledger.Settings(), max(cfg.Postgres.Pool, conns)); err == nil {
		standardTo(log)
	}
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
