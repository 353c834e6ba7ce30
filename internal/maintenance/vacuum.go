package maintenance

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Vacuum runs a plain VACUUM (ANALYZE) of the tables that calls go through. It blocks nothing.
func Vacuum(ctx context.Context, pool *pgxpool.Pool) error {
	tables := busyTables()
	var role string
	var forbidden []string
	if err := pool.QueryRow(ctx, vacuumForbiddenSQL, tables).Scan(&role, &forbidden); err != nil {
		return fmt.Errorf("see what may be vacuumed: %w", err)
	}
	if len(forbidden) > 0 {
		return fmt.Errorf("the role %s may not vacuum %s, which autovacuum tends meanwhile: vacuum as their owner, or, "+
			"from Postgres 17 on, let it grant MAINTAIN (`callq migrate roles`)", role, strings.Join(forbidden, ", "))
	}
	return vacuum(ctx, pool, "VACUUM (ANALYZE)", tables)
}

func busyTables() []string {
	return []string{"call_queue", "call_inbox", "call_flows", "call_segments", "call_open", "call_attempts", "call_usage"}
}

// Postgres passes over a table that a role may not vacuum with no more than a warning.
const vacuumForbiddenSQL = `
SELECT current_user,
    coalesce(array_agg(c.relname ORDER BY c.relname) FILTER (WHERE NOT ` + mayVacuumSQL + `), '{}')::text[]
FROM unnest($1::text[]) AS t (name) JOIN pg_class c ON c.oid = to_regclass(t.name)`

const mayVacuumSQL = `(
    pg_has_role(c.relowner, 'USAGE')
    OR (SELECT pg_has_role(d.datdba, 'USAGE') FROM pg_database d WHERE d.datname = current_database())
    OR CASE WHEN current_setting('server_version_num')::integer >= 170000
       THEN has_table_privilege(c.oid, 'MAINTAIN') ELSE false END)`

func vacuum(ctx context.Context, db interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, statement string, tables []string,
) error {
	for _, table := range tables {
		if _, err := db.Exec(ctx, statement+" "+pgx.Identifier{table}.Sanitize()); err != nil {
			return fmt.Errorf("%s %s: %w", statement, table, err)
		}
	}
	return nil
}

// VacuumFull rewrites tables one after the other, and so returns their unused space to the disk. Postgres locks each
// table against everything meanwhile. VacuumFull waits at most 5 seconds for a lock, because everything behind it waits
// too. It calls done after each table.
func VacuumFull(ctx context.Context, pool *pgxpool.Pool, tables []string, done func(table string)) error {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	conn := pooled.Hijack() // its lock_timeout ends with it
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SET lock_timeout = '5s'"); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	for _, table := range tables {
		if err := vacuum(ctx, conn, "VACUUM (FULL, ANALYZE)", []string{table}); err != nil {
			return err
		}
		done(table)
	}
	return nil
}

// Analyze has Postgres collect new statistics on the tables that calls go through.
func Analyze(ctx context.Context, pool *pgxpool.Pool) error {
	return vacuum(ctx, pool, "ANALYZE", busyTables())
}

// VacuumNeeded vacuums the tables that need it before autovacuum, which looks once a minute:
// call_open and call_usage change entirely within seconds. It skips tables that another session vacuums.
func VacuumNeeded(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, vacuumNeededSQL)
	if err != nil {
		return fmt.Errorf("see what needs a vacuum: %w", err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("see what needs a vacuum: %w", err)
	}
	return vacuum(ctx, pool, "VACUUM (SKIP_LOCKED, ANALYZE)", tables)
}

// A table that was vacuumed within the last minute is left alone: what is dead there, an old
// snapshot may still see. So is one that this role may not vacuum.
const vacuumNeededSQL = `
SELECT c.relname
FROM (VALUES ('call_open', 2000, 1.0), ('call_usage', 2000, 0.5), ('call_queue', 20000, 0.1),
    ('call_inbox', 2000, 0.5), ('call_flows', 2000, 0.5), ('call_segments', 2000, 0.5)) AS t (name, least, share)
JOIN pg_class c ON c.oid = to_regclass(t.name)
JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE s.n_dead_tup > t.least + t.share * s.n_live_tup
  AND coalesce(greatest(s.last_vacuum, s.last_autovacuum), '-infinity') < clock_timestamp() - interval '1 minute'
  AND ` + mayVacuumSQL + `
ORDER BY c.relname`
