package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/cmd/callq/config"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
)

func (p *program) maintainCommand() *cobra.Command {
	return group("maintain", "Do now what the schedule does", p.retentionCommand(), p.vacuumCommand())
}

func (p *program) retentionCommand() *cobra.Command {
	var done, failed, cancelled durationFlag
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
				return p.retain(ctx, cfg, pool, given)
			})
		},
	}
	cmd.Flags().Var(&done, "done", "keep calls that are done this long (default: retention.done)")
	cmd.Flags().Var(&failed, "failed", "keep failed calls this long (default: retention.failed)")
	cmd.Flags().Var(&cancelled, "cancelled", "keep cancelled calls this long (default: retention.cancelled)")
	return cmd
}

func (p *program) retain(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool, given map[string]durationFlag) error {
	keep := dispatcher.Retention(cfg.Retention)
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
	retired, err := dispatcher.Retain(ctx, pool, keep, nil)
	if err != nil {
		return fmt.Errorf("%w; %d calls and %d attempts were removed before", err, retired.Calls, retired.Attempts)
	}
	if p.output != "table" {
		return p.printJSON(retired)
	}
	fmt.Fprintf(p.stdout, "removed %d calls and %d attempts of the ledger\n", retired.Calls, retired.Attempts)
	return nil
}

func (p *program) vacuumCommand() *cobra.Command {
	return &cobra.Command{
		Use: "vacuum", Short: "VACUUM (ANALYZE) callq's tables, without blocking anything",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.withPostgres(cmd.Context(), commandSettings(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				begun := time.Now()
				if err := dispatcher.Vacuum(ctx, pool); err != nil {
					return err
				}
				took := time.Since(begun).Round(time.Millisecond)
				if p.output != "table" {
					return p.printJSON(map[string]any{"vacuumed": true, "took_ms": took.Milliseconds()})
				}
				fmt.Fprintf(p.stdout, "vacuumed callq's tables in %s\n", took)
				return nil
			})
		},
	}
}
