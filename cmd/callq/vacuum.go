package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/maintenance"
)

func vacuumCommand(a *app) *cobra.Command {
	full, force, dryRun := false, false, false
	cmd := &cobra.Command{
		Use: "vacuum", Short: "VACUUM (ANALYZE) callq's tables, without blocking anything",
		Long: `VACUUM (ANALYZE) callq's tables: this blocks nothing, and lets their dead space be used again. --full rewrites the
tables that are mostly unused, one after the other, and returns the space to the disk. Each table is locked
meanwhile: nothing is inserted, claimed or recorded. So callq asks first, says how long that may take, and
refuses while calls are due or run.`,
		PreRunE: func(*cobra.Command, []string) error {
			if force && !full {
				return usagef("--force is for --full: a plain vacuum blocks nothing")
			}
			return nil
		},
		RunE: a.connected(commandSettings(), func(ctx context.Context, db *database, _ []string) error {
			if full {
				return vacuumFull(ctx, db, force, dryRun)
			}
			return vacuum(ctx, db, dryRun)
		}),
	}
	cmd.Flags().BoolVar(&full, "full", false, "VACUUM FULL those that are mostly unused: it locks them")
	cmd.Flags().BoolVar(&force, "force", false, "with --full: also while calls are due or run")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what it would do")
	return cmd
}

func vacuum(ctx context.Context, db *database, dryRun bool) error {
	if dryRun {
		tables, err := readTables(ctx, db)
		if err != nil {
			return err
		}
		return showVacuumed(db.app, "would vacuum", tables, 0)
	}
	begun := time.Now()
	if err := maintenance.Vacuum(ctx, db.Pool); err != nil {
		return err
	}
	took := time.Since(begun).Round(time.Millisecond)
	return db.show(map[string]any{"vacuumed": true, "took_ms": took.Milliseconds()}, func(w io.Writer) {
		fmt.Fprintf(w, "vacuumed callq's tables in %s\n", took)
	})
}

func vacuumFull(ctx context.Context, db *database, force, dryRun bool) error {
	if err := maintenance.Analyze(ctx, db.Pool); err != nil {
		return err
	}
	tables, err := readTables(ctx, db)
	if err != nil {
		return err
	}
	var bloated []doctor.Table
	var names []string
	var used, free int64
	for _, t := range tables {
		if t.Bloated() {
			bloated, names, used, free = append(bloated, t), append(names, t.Name), used+t.All()-t.FreeBytes, free+t.FreeBytes
		}
	}
	if dryRun || len(bloated) == 0 {
		return showVacuumed(db.app, "would write anew", bloated, free)
	}
	if !force {
		if err := mayLock(ctx, db); err != nil {
			return err
		}
	}
	question := fmt.Sprintf("Write %d tables anew, locked for about %s in all (an estimate), to free about %s?",
		len(bloated), rewriteTime(used), doctor.Size(free))
	if err := db.confirm(ctx, question); err != nil {
		return err
	}
	err = maintenance.VacuumFull(ctx, db.Pool, names, func(table string) { fmt.Fprintf(db.stderr, "%s is written anew\n", table) })
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "55P03" {
		return fmt.Errorf("%w; somebody uses the table: try again, or see `callq maintain status` for who holds it", err)
	}
	if err != nil {
		return err
	}
	after, err := readTables(ctx, db)
	if err != nil {
		return err
	}
	return showVacuumed(db.app, "wrote anew", bloated, diskUse(tables, names)-diskUse(after, names))
}

func readTables(ctx context.Context, db *database) ([]doctor.Table, error) {
	tables, err := doctor.Tables(ctx, db.Pool)
	if err != nil {
		return nil, fmt.Errorf("read tables: %w", err)
	}
	return tables, nil
}

func diskUse(tables []doctor.Table, of []string) (bytes int64) {
	for _, t := range tables {
		if slices.Contains(of, t.Name) {
			bytes += t.All()
		}
	}
	return bytes
}

// rewriteTime is about how long writing so many bytes anew takes, with their indexes, on a slow disk.
func rewriteTime(bytes int64) time.Duration {
	const bytesPerSecond = 50_000_000
	return max(time.Second, time.Duration(float64(bytes)/bytesPerSecond*float64(time.Second)).Round(time.Second))
}

// mayLock refuses while calls are due, which would wait, or run, which could not be recorded.
func mayLock(ctx context.Context, db *database) error {
	var due, open int64
	if err := db.QueryRow(ctx, inTheWaySQL).Scan(&due, &open); err != nil {
		return fmt.Errorf("see what is due or runs: %w", err)
	}
	if due > 0 {
		return fmt.Errorf("calls are due (%d), and would wait while tables are locked: try again when none are, or give --force", due)
	}
	if open > 0 {
		return fmt.Errorf("calls are handed over or run (%d), and would wait to start or to be recorded while tables are locked: "+
			"try again when they have ended, or give --force", open)
	}
	return nil
}

const inTheWaySQL = `
SELECT (SELECT count(*) FROM call_queue WHERE status IN ('new', 'error') AND coalesce(run_at, created_at) <= clock_timestamp()),
    (SELECT count(*) FROM call_open)`

func showVacuumed(a *app, verb string, tables []doctor.Table, freed int64) error {
	names := []string{}
	for _, t := range tables {
		names = append(names, t.Name)
	}
	return a.show(map[string]any{"tables": names, "freed_bytes": freed}, func(w io.Writer) {
		if len(names) == 0 {
			fmt.Fprintln(w, "no table is mostly unused: nothing to do")
		}
		for _, t := range tables {
			fmt.Fprintf(w, "%s %s: %s, about %s unused\n", verb, t.Name, doctor.Size(t.All()), doctor.Size(t.FreeBytes))
		}
		if freed > 0 {
			fmt.Fprintf(w, "on the disk: %s\n", doctor.Size(freed))
		}
	})
}
