package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

func (p *program) limitsSetCommand() *cobra.Command {
	return &cobra.Command{
		Use: "set LIMIT RATE", Short: "Put another rate in force until it is reset",
		Long: "Put another rate in force, over the configuration's, until `limits reset`: 20/s for a rate, 20 for a\n" +
			"concurrency. Its algorithm, burst, time zone and overrides stay. When it returns, nothing starts beyond the\n" +
			"new rate: what was claimed and has not started was recalled.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			rate, err := parseSetting(args[1])
			if err != nil {
				return usagef("%w", err)
			}
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				changes, err := policy.Override(ctx, pool, args[0], rate, p.user())
				return p.sayChanges("limit", args[0], changes, err)
			})
		},
	}
}

func (p *program) limitsResetCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reset LIMIT", Short: "Put the configuration's rate in force again",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				changes, err := policy.Reset(ctx, pool, args[0], p.user())
				return p.sayChanges("limit", args[0], changes, err)
			})
		},
	}
}

func (p *program) limitsOpenCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "open LIMIT --reason TEXT", Short: "Say that nothing is missing of what a limit has used",
		Long: "Open a limit before its time, where you know that nothing was sent which callq does not know of. After a\n" +
			"failover or a restore, what was left of a limit counts as used, for it may have been given out. Where retention\n" +
			"removed what was sent before a limit was added, it is shut. Both end by themselves: `limits list` says when.\n" +
			"The reason goes into the audit, and `verify` says that its proof rests on it. A pause stays: `limits resume`.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usagef("--reason is missing: say why you know that nothing was sent which callq does not know of")
			}
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				changes, err := policy.Open(ctx, pool, args[0], reason, p.user())
				return p.sayChanges("limit", args[0], changes, err)
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why nothing is missing, for the audit and verify")
	return cmd
}

// parseSetting reads a rate, or a whole number for a concurrency. What a window of months is of, the limit says.
func parseSetting(text string) (limit.Rate, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		if n < 1 || n > 1_000_000 {
			return limit.Rate{}, fmt.Errorf("%d at once is outside 1 to 1000000; to let nothing through, pause the limit", n)
		}
		return limit.Rate{Units: n}, nil
	}
	rate, err := limit.ParseRate(text)
	if err == nil {
		return rate, nil
	}
	if months, not := limit.Parse(text, limit.FixedWindow, 0, ""); not == nil {
		return limit.Rate{Units: months.Units, Shape: limit.Shape{Algorithm: limit.FixedWindow, Period: months.Period}}, nil
	}
	return rate, err
}

// sayChanges prints what changed, a line each; as JSON a list.
func (p *program) sayChanges(what, name string, changes []string, err error) error {
	if errors.Is(err, ledger.ErrUnknown) {
		return unknownRule(what, name)
	}
	if err != nil {
		return err
	}
	if p.output != "table" {
		return p.printJSON(map[string]any{"changes": append([]string{}, changes...)})
	}
	if len(changes) == 0 {
		fmt.Fprintln(p.stdout, what, name+": as it was")
	}
	for _, change := range changes {
		fmt.Fprintln(p.stdout, printable(change))
	}
	return nil
}

func unknownRule(what, name string) error {
	return &exitError{exitNotFound, fmt.Errorf("no such %s: %s; `callq %ss list` shows those in force", what, cmp.Or(printable(short(name)), `""`), what)}
}

// user is who runs the command, for the audit.
func (p *program) user() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return name + "@" + host
}
