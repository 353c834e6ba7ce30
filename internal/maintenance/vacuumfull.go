package maintenance

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

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
		if _, err := conn.Exec(ctx, "VACUUM (FULL, ANALYZE) "+pgx.Identifier{table}.Sanitize()); err != nil {
			return fmt.Errorf("vacuum %s in full: %w", table, err)
		}
		done(table)
	}
	return nil
}

// Analyze has Postgres collect new statistics on the tables that calls go through.
func Analyze(ctx context.Context, pool *pgxpool.Pool) error {
	for _, table := range busyTables() {
		if _, err := pool.Exec(ctx, "ANALYZE "+pgx.Identifier{table}.Sanitize()); err != nil {
			return fmt.Errorf("analyze %s: %w", table, err)
		}
	}
	return nil
}
