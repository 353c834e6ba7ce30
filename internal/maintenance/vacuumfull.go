package maintenance

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// VacuumFull writes tables anew, one after the other, which gives what they do not use back to the disk. Each
// is locked meanwhile against everything; the lock is waited for no longer than a few seconds, for whatever
// comes behind waits too. done hears of each.
func VacuumFull(ctx context.Context, pool *pgxpool.Pool, tables []string, done func(table string)) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SET lock_timeout = '5s'"); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	defer conn.Exec(context.WithoutCancel(ctx), "RESET lock_timeout") //nolint:errcheck // it ends with the connection
	for _, table := range tables {
		if _, err := conn.Exec(ctx, "VACUUM (FULL, ANALYZE) "+pgx.Identifier{table}.Sanitize()); err != nil {
			return fmt.Errorf("vacuum %s in full: %w", table, err)
		}
		done(table)
	}
	return nil
}

// Analyze has Postgres look at the tables that calls go through, so that its estimates are of now.
func Analyze(ctx context.Context, pool *pgxpool.Pool) error {
	for _, table := range busyTables() {
		if _, err := pool.Exec(ctx, "ANALYZE "+pgx.Identifier{table}.Sanitize()); err != nil {
			return fmt.Errorf("analyze %s: %w", table, err)
		}
	}
	return nil
}
