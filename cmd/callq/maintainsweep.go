package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/recovery"
)

func (p *program) sweepCommand() *cobra.Command {
	dryRun := false
	cmd := &cobra.Command{
		Use: "sweep", Short: "Mend what a crash left behind, all of it, now",
		Long: `Run the dispatchers' sweepers now, until they find nothing more: attempts whose workers were lost, that nobody
started or that Redis lost, expired calls, limits to open, lines of which most calls have ended. And mend lines:
calls that wait and that no claim would find are put where one does. For that all calls are looked through. Nothing
is claimed or published.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.withPostgres(cmd.Context(), ledger.Settings(), func(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
				return p.sweep(ctx, cfg, pool, dryRun)
			})
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what it would mend")
	return cmd
}

func (p *program) sweep(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool, dryRun bool) error {
	log := p.logger(cfg)
	client, err := openRedis(cfg, log)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := p.await(ctx, "Redis", cfg.Origin("redis.url"), func(ctx context.Context) error {
		return client.Ping(ctx).Err()
	}); err != nil {
		return err
	}
	d, err := dispatcher.New(dispatcher.Config{Pool: pool, Redis: client, Logger: log})
	if err != nil {
		return err
	}
	verb, run := "MENDED", d.RecoverAll
	if dryRun {
		verb, run = "TO MEND", d.RecoverDryRun
	}
	swept, err := run(ctx)
	if err != nil {
		return err
	}
	return printRows(p, swept,
		column[recovery.Recovered]{verb, func(s recovery.Recovered) string { return s.Kind }},
		column[recovery.Recovered]{"COUNT", func(s recovery.Recovered) string { return fmt.Sprint(s.Count) }},
	)
}
