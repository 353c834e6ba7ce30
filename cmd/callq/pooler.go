package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/ledger"
)

// A pooler in transaction mode, such as pgbouncer, gives each transaction another session. What
// belongs to a session is lost there: prepared statements, settings, LISTEN, session locks.

// setMode says how a connection sends statements, and what it sets for its session. Behind a pooler
// that is only what a pooler keeps apart: the role has to bring the rest, see checkSettings.
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

// poolerHint is what to do about an error that only a pooler causes, "" for others.
func poolerHint(err error) string {
	const use = "set postgres.query_mode: cache_describe (CALLQ_POSTGRES_QUERY_MODE), " +
		"and postgres.direct_url to the way past it"
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return ""
	case pg.Code == "08P01" && strings.HasPrefix(pg.Message, "unsupported startup parameter"):
		return "a pgbouncer stands before Postgres: " + use
	case pg.Code == "26000" || pg.Code == "42P05": // a prepared statement that is not there, or is another's
		return "a pooler may stand before Postgres: if so " + use
	}
	return ""
}

// explained is an error in one line, with what to do about a pooler.
func explained(err error) string {
	if hint := poolerHint(err); hint != "" {
		return oneLine(err.Error()) + "; " + hint
	}
	return oneLine(err.Error())
}

// checkSettings warns of what a pooler keeps callq from setting, and says how to set it.
func (s servers) checkSettings(ctx context.Context) {
	if !isPooled(s.pool.Config().ConnConfig) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	wanted := ledger.Settings()
	delete(wanted, "application_name")
	type setting struct{ Role, Name, Value string }
	var found []setting
	rows, err := s.pool.Query(ctx, settingsSQL, slices.Sorted(maps.Keys(wanted)))
	if err == nil {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByName[setting])
	}
	if err != nil {
		s.log.WarnContext(ctx, "Postgres does not tell its settings", "err", err)
		return
	}
	var fix []string
	for _, f := range found {
		if f.Value != wanted[f.Name] {
			fix = append(fix, fmt.Sprintf("ALTER ROLE %s SET %s = '%s';", f.Role, f.Name, wanted[f.Name]))
		}
	}
	if len(fix) > 0 {
		s.log.WarnContext(ctx, "settings of callq's sessions are not in force behind the pooler; plans may be slow",
			"fix", strings.Join(fix, " "))
	}
}

const settingsSQL = `
SELECT quote_ident(session_user) AS role, name, coalesce(current_setting(name, true), '') AS value
FROM unnest($1::text[]) AS name
ORDER BY name`
