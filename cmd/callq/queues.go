package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/words"
)

func queuesCommand(a *app) *cobra.Command {
	return group("queues", "Show and pause queues", &cobra.Command{
		Use: "list", Short: "List the queues that are in force or that calls wait in",
		RunE: a.query(func(ctx context.Context, db *database, _ []string) error {
			queues, err := admin.ReadQueues(ctx, db)
			return queueTable().show(a, queues, err)
		}),
	}, queuesForecastCommand(a), pauseCommand(a, "queue"), resumeCommand(a, "queue"))
}

func queuesForecastCommand(a *app) *cobra.Command {
	var key *string
	cmd := &cobra.Command{
		Use: "forecast [QUEUE]", Short: "Say when the last of the calls that wait now in each queue starts",
		Long: "Print when the last of the calls that wait now in each queue starts, as `limits forecast` does for limits. With\n" +
			"--key, when a call of that key would start that is inserted into the queue now.",
		Args: cobra.MaximumNArgs(1),
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			var queue *string
			if len(args) > 0 {
				queue = &args[0]
			} else if key != nil {
				return usagef("--key needs a queue: callq queues forecast QUEUE --key KEY")
			}
			rows, err := admin.ReadQueueForecasts(ctx, db, queue, key)
			if err == nil && queue != nil && len(rows) == 0 {
				err = unknownRule("queue", *queue)
			}
			return table[admin.QueueForecast]{"QUEUE,WAITING,AT,FORECAST", func(f admin.QueueForecast) []any {
				return []any{short(f.Queue), f.Waiting, f.StartsAt, f.Because}
			}}.show(a, rows, err)
		}),
	}
	cmd.Flags().Var(&textFlag{kind: "string", set: func(text string) error { key = &text; return nil }}, "key", "for a call of this key")
	return cmd
}

func queueTable() table[admin.Queue] {
	return table[admin.Queue]{"QUEUE,DUE,SCHEDULED,DISPATCHED,RUNNING,FAILED 24H,LIMITS,STATE", func(q admin.Queue) []any {
		var limits any = q.Limits
		if !q.Configured {
			limits = "(not in the configuration: its calls wait)"
		}
		return []any{short(q.Name), q.Due, q.Scheduled, q.Dispatched, q.Running, q.Failed, limits, q.StateText()}
	}}
}

// pauseCommand pauses limits or queues: what is "limit" or "queue".
func pauseCommand(a *app, what string) *cobra.Command {
	pause := ledger.Paused{What: what, Author: ledger.Author{By: operator(), Reason: "by an operator"}}
	var until time.Time
	var length time.Duration
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use: "pause NAME", Short: "Let nothing more through until it is resumed",
		Long: "Let nothing more through, for a while or until it is resumed; with --key, no call of that key. When it\n" +
			"returns, nothing starts: calls that were claimed and had not started have been recalled. What runs goes on.",
		Args: cobra.ExactArgs(1),
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			pause.Name = args[0]
			if length > 0 {
				pause.For = &length
			}
			if cmd.Flags().Changed("until") { // year 1 has passed too
				pause.Until = &until
				if until.Before(time.Now()) {
					return usagef("--until %s has passed", until.Format(time.RFC3339))
				}
			}
			recalled, err := ledger.Pause(ctx, db.DB, pause)
			change := fmt.Sprintf("%s: paused, %s recalled", pausable(what, pause.Name, pause.Key), words.Count(int64(recalled), "unstarted attempt"))
			return a.showChanges(what, pause.Name, []string{change}, err)
		}),
	}
	flags := cmd.Flags()
	textVar(flags, &pause.Key, "key", "only the calls of this key")
	durationVar(flags, &length, time.Millisecond, "for", "how long: 10m, 1h30m, 2d")
	flags.TimeVar(&until, "until", until, []string{time.RFC3339}, "until when: 2026-11-21T09:00:00Z")
	flags.StringVar(&pause.Reason, "reason", pause.Reason, "why, for status and the audit")
	cmd.MarkFlagsMutuallyExclusive("for", "until")
	return cmd
}

func resumeCommand(a *app, what string) *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "End a pause",
		Long: "End a pause. A pause of one key (--key) and a pause of all calls are separate.",
		Args: cobra.ExactArgs(1),
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			was, err := ledger.Resume(ctx, db.DB, what, args[0], key, ledger.By(operator()))
			var changes []string
			if was {
				changes = []string{pausable(what, args[0], key) + ": resumed"}
			}
			return a.showChanges(what, args[0], changes, err)
		}),
	}
	textVar(cmd.Flags(), &key, "key", "the pause of this key's calls")
	return cmd
}

// pausable names a limit or queue, or one key of it.
func pausable(what, name, key string) string {
	if key != "" {
		return fmt.Sprintf("%s %s, key %s", what, name, key)
	}
	return what + " " + name
}
