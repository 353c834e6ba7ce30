package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/callq/callq/internal/ledger"
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
	return vacuum(ctx, pool, tables)
}

func busyTables() []string {
	return []string{"call_queue", "call_news", "call_lines", "call_line_totals", "call_waiting", "call_open", "call_attempts", "call_usage"}
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
}, tables []string,
) error {
	for _, table := range tables {
		if _, err := db.Exec(ctx, "VACUUM (ANALYZE) "+pgx.Identifier{table}.Sanitize()); err != nil {
			return fmt.Errorf("vacuum %s: %w", table, err)
		}
	}
	return nil
}

// vacuumNeeded vacuums those of the tables that need it before autovacuum comes round, which looks
// once a minute: call_open and call_usage change entirely within seconds. One dispatcher does it.
func (d *Dispatcher) vacuumNeeded(ctx context.Context) error {
	if tables, err := needVacuum(ctx, d.cfg.Pool); err != nil || len(tables) == 0 {
		return err
	}
	var until time.Time
	if err := d.cfg.Pool.QueryRow(ctx, leaseVacuumSQL, vacuumLease).Scan(&until); err != nil {
		if errors.Is(err, pgx.ErrNoRows) { // another's
			return nil
		}
		return wrapVacuum(err)
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickTimeout)
		defer cancel()
		_, _ = d.cfg.Pool.Exec(ending, endVacuumSQL, until) // else it ends by itself
	}()
	tables, err := needVacuum(ctx, d.cfg.Pool) // another may have done it meanwhile
	if err != nil {
		return err
	}
	return vacuum(ctx, d.cfg.Pool, tables)
}

func needVacuum(ctx context.Context, db ledger.DB) ([]string, error) {
	rows, err := db.Query(ctx, vacuumNeededSQL)
	if err != nil {
		return nil, wrapVacuum(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return tables, wrapVacuum(err)
}

func wrapVacuum(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("see what needs a vacuum: %w", err)
}

// vacuumLease is how long a dispatcher that died keeps the others from it; autovacuum comes round meanwhile. Two at once,
// where a vacuum takes longer or one is of the release before, do no harm: Postgres has one wait for the other.
const vacuumLease = 10 * time.Minute

// A VACUUM cannot run in a transaction, which a row's lock would last for. An end that lies further ahead is older than
// the clock's last step back.
const leaseVacuumSQL = `
UPDATE call_locks SET until = clock_timestamp() + $1::interval
WHERE name = 'vacuum' AND (until < clock_timestamp() OR until > clock_timestamp() + $1::interval)
RETURNING until`

const endVacuumSQL = `UPDATE call_locks SET until = '-infinity' WHERE name = 'vacuum' AND until = $1`

// A table that was vacuumed within the last minute is left alone: what is dead there, an old
// snapshot may still see. So is one that this role may not vacuum.
const vacuumNeededSQL = `
SELECT c.relname
FROM (VALUES ('call_open', 2000, 1.0), ('call_usage', 2000, 0.5), ('call_queue', 20000, 0.1),
    ('call_news', 2000, 0.5), ('call_lines', 2000, 0.5), ('call_line_totals', 2000, 0.5), ('call_waiting', 2000, 0.5)) AS t (name, least, share)
JOIN pg_class c ON c.oid = to_regclass(t.name)
JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE s.n_dead_tup > t.least + t.share * s.n_live_tup
  AND coalesce(greatest(s.last_vacuum, s.last_autovacuum), '-infinity') < clock_timestamp() - interval '1 minute'
  AND ` + mayVacuumSQL + `
ORDER BY c.relname`
