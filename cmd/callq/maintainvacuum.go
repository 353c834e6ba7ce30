package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/maintenance"
)

// vacuuming is how a vacuum is asked for.
type vacuuming struct {
	full, force, dryRun bool
}

func (p *program) vacuumCommand() *cobra.Command {
	var v vacuuming
	cmd := &cobra.Command{
		Use: "vacuum", Short: "VACUUM (ANALYZE) callq's tables, without blocking anything",
		Long: `VACUUM (ANALYZE) callq's tables, which blocks nothing and makes what is dead in them be used again. With --full
those of them that are mostly unused are written anew, one after the other, which gives the rest back to the
disk. Each is locked meanwhile: nothing is inserted, claimed or recorded. So it asks first, says how long that
may take, and refuses while calls are due or run.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if v.force && !v.full {
				return usagef("--force is for --full: a plain vacuum blocks nothing")
			}
			return p.withPostgres(cmd.Context(), commandSettings(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				if v.full {
					return p.vacuumFull(ctx, pool, v)
				}
				return p.vacuum(ctx, pool, v)
			})
		},
	}
	cmd.Flags().BoolVar(&v.full, "full", false, "VACUUM FULL those that are mostly unused: it locks them")
	cmd.Flags().BoolVar(&v.force, "force", false, "with --full: also while calls are due or run")
	cmd.Flags().BoolVar(&v.dryRun, "dry-run", false, "only say what it would do")
	return cmd
}

func (p *program) vacuum(ctx context.Context, pool *pgxpool.Pool, v vacuuming) error {
	if v.dryRun {
		tables, err := doctor.Tables(ctx, pool)
		if err != nil {
			return fmt.Errorf("read tables: %w", err)
		}
		return p.printVacuumed("would vacuum", tables, 0)
	}
	begun := time.Now()
	if err := maintenance.Vacuum(ctx, pool); err != nil {
		return err
	}
	took := time.Since(begun).Round(time.Millisecond)
	if p.output != "table" {
		return p.printJSON(map[string]any{"vacuumed": true, "took_ms": took.Milliseconds()})
	}
	fmt.Fprintf(p.stdout, "vacuumed callq's tables in %s\n", took)
	return nil
}

func (p *program) vacuumFull(ctx context.Context, pool *pgxpool.Pool, v vacuuming) error {
	if err := maintenance.Analyze(ctx, pool); err != nil {
		return err
	}
	bloated, err := bloatedTables(ctx, pool)
	if err != nil {
		return err
	}
	var names []string
	var used, free int64
	for _, t := range bloated {
		names, used, free = append(names, t.Name), used+t.All()-t.FreeBytes, free+t.FreeBytes
	}
	if v.dryRun || len(bloated) == 0 {
		return p.printVacuumed("would write anew", bloated, free)
	}
	if err := p.mayLock(ctx, pool, v); err != nil {
		return err
	}
	question := fmt.Sprintf("Write %d tables anew, locked for about %s in all (an estimate), to free about %s?",
		len(bloated), rewriteTime(used), doctor.Size(free))
	if !p.yes && !isTerminal(p.stdin) {
		return usagef("%s There is nobody to ask: give --yes to do it", question)
	}
	if err := p.confirm(question); err != nil {
		return err
	}
	err = maintenance.VacuumFull(ctx, pool, names, func(table string) {
		fmt.Fprintf(p.stderr, "%s is written anew\n", table)
	})
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "55P03" {
		return fmt.Errorf("%w; somebody uses the table: try again, or see `callq maintain status` for who holds it", err)
	}
	if err != nil {
		return err
	}
	after, err := doctor.Tables(ctx, pool)
	if err != nil {
		return fmt.Errorf("read tables: %w", err)
	}
	freed := int64(0)
	for _, b := range bloated {
		for _, a := range after {
			if a.Name == b.Name {
				freed += b.All() - a.All()
			}
		}
	}
	return p.printVacuumed("wrote anew", bloated, freed)
}

func bloatedTables(ctx context.Context, pool *pgxpool.Pool) (bloated []doctor.Table, err error) {
	tables, err := doctor.Tables(ctx, pool)
	if err != nil {
		return nil, fmt.Errorf("read tables: %w", err)
	}
	for _, t := range tables {
		if t.Bloated() {
			bloated = append(bloated, t)
		}
	}
	return bloated, nil
}

// mayLock refuses while calls are due: they would wait, and what runs could not be recorded.
func (p *program) mayLock(ctx context.Context, pool *pgxpool.Pool, v vacuuming) error {
	if v.force {
		return nil
	}
	var due, open int64
	if err := pool.QueryRow(ctx, inTheWaySQL).Scan(&due, &open); err != nil {
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

func (p *program) printVacuumed(verb string, tables []doctor.Table, freed int64) error {
	names := []string{}
	for _, t := range tables {
		names = append(names, t.Name)
	}
	if p.output != "table" {
		return p.printJSON(map[string]any{"tables": names, "freed_bytes": freed})
	}
	if len(names) == 0 {
		fmt.Fprintln(p.stdout, "no table is mostly unused: nothing to do")
	}
	for _, t := range tables {
		fmt.Fprintf(p.stdout, "%s %s: %s, about %s unused\n", verb, t.Name, doctor.Size(t.All()), doctor.Size(t.FreeBytes))
	}
	if freed > 0 {
		fmt.Fprintf(p.stdout, "on the disk: %s\n", doctor.Size(freed))
	}
	return nil
}
