package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/dispatcher"
)

const defaultOnceTimeout = time.Minute

func (p *program) dispatchCommand() *cobra.Command {
	once := false
	cmd := &cobra.Command{
		Use: "dispatch", Short: "Run the dispatcher alone, as many as you like",
		Long: "Run the dispatcher alone, until SIGTERM; or with --once a single whole tick, safe from\n" +
			"system cron at any rate, beside any number of others. SIGHUP reloads limits, queues,\n" +
			"budgets, schedule and retention; a bad file changes nothing.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !once {
				return p.daemon(cmd.Context(), roles{dispatcher: true})
			}
			if !cmd.Flags().Changed("timeout") {
				p.timeout = defaultOnceTimeout
			}
			return p.dispatchOnce(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "one tick, then exit")
	return cmd
}

// dispatchOnce publishes the rules and runs one tick, within --timeout. No http is served.
func (p *program) dispatchOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	cfg, err := p.loadConfig()
	if err != nil {
		return err
	}
	s, err := openServers(ctx, cfg, p.logger(cfg), roles{dispatcher: true})
	if err != nil {
		return err
	}
	defer s.close()
	if err := p.await(ctx, "Postgres", cfg.Origin("postgres.url"), s.askPostgres); err != nil {
		return err
	}
	if err := p.await(ctx, "Redis", cfg.Origin("redis.url"), s.askRedis); err != nil {
		return err
	}
	d, err := dispatcher.New(dispatcherConfig(cfg, s))
	if err != nil {
		return err
	}
	return d.Once(ctx)
}
