package dispatcher

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Vacuum runs a plain VACUUM (ANALYZE) of the tables that calls go through. It blocks nothing.
func Vacuum(ctx context.Context, pool *pgxpool.Pool) error {
	return vacuum(ctx, pool, busyTables())
}

func busyTables() []string {
	return []string{"call_queue", "call_news", "call_lines", "call_waiting", "call_open", "call_attempts", "call_usage"}
}

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
	conn, err := d.cfg.Pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	defer conn.Release()
	var mine bool
	if err := conn.QueryRow(ctx, vacuumLockSQL).Scan(&mine); err != nil || !mine {
		return wrapVacuum(err)
	}
	defer conn.Exec(context.WithoutCancel(ctx), vacuumUnlockSQL) //nolint:errcheck // it ends with the connection
	rows, err := conn.Query(ctx, vacuumNeededSQL)
	if err != nil {
		return wrapVacuum(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return wrapVacuum(err)
	}
	return vacuum(ctx, conn, tables)
}

func wrapVacuum(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("see what needs a vacuum: %w", err)
}

const (
	vacuumLockSQL   = `SELECT pg_try_advisory_lock(hashtext('callq vacuum'))`
	vacuumUnlockSQL = `SELECT pg_advisory_unlock(hashtext('callq vacuum'))`
)

// A table that was vacuumed within the last minute is left alone: what is dead there, an old
// snapshot may still see.
const vacuumNeededSQL = `
SELECT c.relname
FROM (VALUES ('call_open', 2000, 1.0), ('call_usage', 2000, 0.5), ('call_queue', 20000, 0.1),
    ('call_news', 2000, 0.5), ('call_lines', 2000, 0.5), ('call_waiting', 2000, 0.5)) AS t (name, least, share)
JOIN pg_class c ON c.oid = to_regclass(t.name)
JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE s.n_dead_tup > t.least + t.share * s.n_live_tup
  AND coalesce(greatest(s.last_vacuum, s.last_autovacuum), '-infinity') < clock_timestamp() - interval '1 minute'
ORDER BY c.relname`
