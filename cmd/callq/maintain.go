package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/maintenance"
)

func (p *program) maintainCommand() *cobra.Command {
	return group("maintain", "Look after callq's tables: what the schedule does, now",
		p.maintainStatusCommand(), p.retentionCommand(), p.vacuumCommand(), p.sweepCommand())
}

func (p *program) retentionCommand() *cobra.Command {
	var done, failed, cancelled durationFlag
	dryRun := false
	cmd := &cobra.Command{
		Use: "retention", Short: "Remove calls that ended longer ago than they are kept",
		Long: "Remove calls that ended longer ago than they are kept, and what the ledger no longer needs of them.\n" +
			"No unit of a limit comes free by it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := map[string]durationFlag{}
			for name, value := range map[string]durationFlag{"done": done, "failed": failed, "cancelled": cancelled} {
				if cmd.Flags().Changed(name) {
					if time.Duration(value) < time.Second {
						return usagef("--%s is %s, less than 1s", name, time.Duration(value))
					}
					given[name] = value
				}
			}
			return p.withPostgres(cmd.Context(), ledger.Settings(), func(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
				return p.retain(ctx, cfg, pool, given, dryRun)
			})
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count what would be removed")
	cmd.Flags().Var(&done, "done", "keep calls that are done this long (default: retention.done)")
	cmd.Flags().Var(&failed, "failed", "keep failed calls this long (default: retention.failed)")
	cmd.Flags().Var(&cancelled, "cancelled", "keep cancelled calls this long (default: retention.cancelled)")
	return cmd
}

func (p *program) retain(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool, given map[string]durationFlag, dryRun bool) error {
	keep := maintenance.Retention(cfg.Retention)
	for name, value := range given {
		switch name {
		case "done":
			keep.Done = time.Duration(value)
		case "failed":
			keep.Failed = time.Duration(value)
		case "cancelled":
			keep.Cancelled = time.Duration(value)
		}
	}
	if dryRun {
		found, err := maintenance.DryRun(ctx, pool, keep, p.retiring("found"))
		if err != nil {
			return err
		}
		return p.printRetired("would remove", found)
	}
	retired, err := maintenance.Purge(ctx, pool, keep, p.retiring("removed"))
	if err != nil {
		return fmt.Errorf("%w; %d calls and %d attempts were removed before", err, retired.Calls, retired.Attempts)
	}
	return p.printRetired("removed", retired)
}

func (p *program) printRetired(verb string, r maintenance.Purged) error {
	if p.output != "table" {
		return p.printJSON(r)
	}
	fmt.Fprintf(p.stdout, "%s %d calls and %d attempts of the ledger\n", verb, r.Calls, r.Attempts)
	if r.Kept > 0 {
		fmt.Fprintf(p.stdout, "kept %d rows that cannot be removed, the last for: %s\n", r.Kept, r.KeptFor)
	}
	return nil
}

// retiring says on stderr how far retention is, where it takes long.
func (p *program) retiring(verb string) func(maintenance.Purged) {
	next := time.Now().Add(progressEvery)
	return func(r maintenance.Purged) {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressEvery)
			fmt.Fprintf(p.stderr, "%s %d calls and %d attempts so far\n", verb, r.Calls, r.Attempts)
		}
	}
}

const progressEvery = 2 * time.Second
