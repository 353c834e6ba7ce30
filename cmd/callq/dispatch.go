package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/dispatcher"
)

func dispatchCommand(a *app) *cobra.Command {
	once, apply := false, false
	cmd := &cobra.Command{
		Use: "dispatch", Short: "Run the dispatcher alone, as many as you like",
		Long: "Run the dispatcher alone, until SIGTERM. With --once run a single whole tick, which is safe from\n" +
			"system cron at any rate and beside any number of other dispatchers. SIGHUP reloads limits, queues,\n" +
			"budgets, schedule and retention; a bad file changes nothing.\n\n" + applyText,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !once {
				return a.daemon(cmd.Context(), roles{dispatcher: true, apply: apply})
			}
			if !cmd.Flags().Changed("timeout") {
				a.timeout = time.Minute
			}
			return dispatchOnce(cmd.Context(), a, apply)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "one tick, then exit")
	cmd.Flags().BoolVar(&apply, "apply", false, applyUsage)
	return cmd
}

// What serve and dispatch say of what they apply.
const (
	applyText = "At its start it applies limits, queues and budgets for every process: what was applied last is in force. It does\n" +
		"not apply a file that was applied before and has since been replaced, so that no restart turns anything back;\n" +
		"--apply does."
	applyUsage = "apply the configuration even if a newer one has replaced it"
)

// dispatchOnce applies the rules and runs one tick, within --timeout. It serves no http.
func dispatchOnce(ctx context.Context, a *app, apply bool) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	s, err := openServers(ctx, cfg, a.logger(cfg), roles{dispatcher: true})
	if err != nil {
		return err
	}
	defer s.close()
	if err := a.awaitPostgres(ctx, cfg, s.pool); err != nil {
		return err
	}
	if err := a.awaitRedis(ctx, cfg, s.redis); err != nil {
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
