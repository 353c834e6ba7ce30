package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/ledger"
)

// pauseCommand pauses limits or queues: what is "limit" or "queue".
func (p *program) pauseCommand(what string) *cobra.Command {
	var key, until, reason string
	var length durationFlag
	cmd := &cobra.Command{
		Use: "pause NAME", Short: "Let nothing more through until it is resumed",
		Long: "Let nothing more through, for a while or until it is resumed; with --key, no call of that key. When\n" +
			"it returns, nothing starts: what was claimed and has not started was recalled. What runs goes on.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pause := ledger.Paused{What: what, Name: args[0], Key: key, Reason: reason, By: p.user()}
			if err := checkKey(cmd); err != nil {
				return err
			}
			ends := cmd.Flags().Changed("until")
			switch {
			case length > 0 && ends:
				return usagef("--for and --until both say when it ends: give one of them")
			case cmd.Flags().Changed("for") && length <= 0:
				return usagef("--for must be above 0")
			case length > 0:
				pause.For = (*time.Duration)(&length)
			case ends:
				at, err := time.Parse(time.RFC3339, until)
				if err != nil {
					return usagef("--until %q is not a time: write it as 2026-11-21T09:00:00Z or 2026-11-21T10:00:00+01:00", until)
				}
				if !at.After(time.Now()) {
					return usagef("--until %s has passed", until)
				}
				pause.Until = &at
			}
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				recalled, err := ledger.Pause(ctx, pool, pause)
				change := fmt.Sprintf("%s: paused, %d unstarted attempts recalled", pausable(what, args[0], key), recalled)
				return p.sayChanges(what, args[0], []string{change}, err)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&key, "key", "", "only the calls of this key")
	flags.Var(&length, "for", "how long: 10m, 1h30m, 2d")
	flags.StringVar(&until, "until", "", "until when: 2026-11-21T09:00:00Z")
	flags.StringVar(&reason, "reason", "by an operator", "why, for status and the audit")
	return cmd
}

func (p *program) resumeCommand(what string) *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "End a pause",
		Long: "End a pause. That of one key (--key) and that of all are apart.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkKey(cmd); err != nil {
				return err
			}
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				was, err := ledger.Resume(ctx, pool, what, args[0], key, p.user())
				var changes []string
				if was {
					changes = []string{pausable(what, args[0], key) + ": resumed"}
				}
				return p.sayChanges(what, args[0], changes, err)
			})
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "the pause of this key's calls")
	return cmd
}

// checkKey refuses a key that is empty, as of a script's unset variable: without a key all calls are meant.
func checkKey(cmd *cobra.Command) error {
	if key := cmd.Flags().Lookup("key"); key.Changed && key.Value.String() == "" {
		return usagef("--key is empty; leave it out for the calls of all keys")
	}
	return nil
}

// pausable names a limit or queue, or one key of it.
func pausable(what, name, key string) string {
	if key != "" {
		return fmt.Sprintf("%s %s, key %s", what, name, key)
	}
	return what + " " + name
}

func (p *program) printPausesAndChanges(pauses []admin.Pause, changes []admin.Change) error {
	if len(pauses) > 0 {
		fmt.Fprintln(p.stdout)
		err := printTable(p.stdout, pauses,
			column[admin.Pause]{"PAUSED KEY", func(r admin.Pause) string { return dash(r.Key) }},
			column[admin.Pause]{"UNTIL", func(r admin.Pause) string {
				if r.Until == nil {
					return "resumed"
				}
				return instant(r.Until)
			}},
			column[admin.Pause]{"REASON", func(r admin.Pause) string { return r.Reason }},
			column[admin.Pause]{"SINCE", func(r admin.Pause) string { return instant(&r.At) }},
			column[admin.Pause]{"BY", func(r admin.Pause) string { return r.By }},
		)
		if err != nil {
			return err
		}
	}
	if len(changes) == 0 {
		return nil
	}
	fmt.Fprintln(p.stdout)
	return printTable(p.stdout, changes,
		column[admin.Change]{"CHANGED AT", func(r admin.Change) string { return instant(&r.At) }},
		column[admin.Change]{"BY", func(r admin.Change) string { return r.By }},
		column[admin.Change]{"CHANGE", func(r admin.Change) string { return r.Change }},
	)
}
