package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/dispatcher"
)

const defaultOnceTimeout = time.Minute

func (p *program) dispatchCommand() *cobra.Command {
	once, apply := false, false
	cmd := &cobra.Command{
		Use: "dispatch", Short: "Run the dispatcher alone, as many as you like",
		Long: "Run the dispatcher alone, until SIGTERM; or with --once a single whole tick, safe from\n" +
			"system cron at any rate, beside any number of others. SIGHUP reloads limits, queues,\n" +
			"budgets, schedule and retention; a bad file changes nothing. " + applyText,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !once {
				return p.daemon(cmd.Context(), roles{dispatcher: true, apply: apply})
			}
			if !cmd.Flags().Changed("timeout") {
				p.timeout = defaultOnceTimeout
			}
			return p.dispatchOnce(cmd.Context(), apply)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "one tick, then exit")
	cmd.Flags().BoolVar(&apply, "apply", false, applyUsage)
	return cmd
}

// What serve and dispatch say of what they apply.
const (
	applyText = "Limits, queues\n" +
		"and budgets are applied at the start, for every process: what was applied last is in force. A file that was\n" +
		"applied before and has been replaced since is not, so that no restart turns anything back; --apply does."
	applyUsage = "apply the configuration even if a newer one has replaced it"
)

// dispatchOnce applies the rules and runs one tick, within --timeout. No http is served.
func (p *program) dispatchOnce(ctx context.Context, apply bool) error {
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
	dc := dispatcherConfig(cfg, s)
	dc.Apply = apply
	d, err := dispatcher.New(dc)
	if err != nil {
		return err
	}
	return d.Once(ctx)
}
