package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/cmd/callq/config"
)

func (p *program) queuesCommand() *cobra.Command {
	return group("queues", "Show and pause queues", &cobra.Command{
		Use: "list", Short: "List the queues that are in force or that calls wait in",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				waiting, err := readWaiting(ctx, pool)
				if err != nil {
					return err
				}
				queues, err := readQueues(ctx, pool, waiting)
				if err != nil {
					return err
				}
				if err := printRows(p, queues, queueColumns()...); err != nil || p.output != "table" {
					return err
				}
				p.printDifferences(nil, queues)
				return nil
			})
		},
	}, p.pauseCommand("queue"), p.resumeCommand("queue"))
}

func queueColumns() []column[queueRow] {
	return []column[queueRow]{
		{"QUEUE", func(q queueRow) string { return short(q.Name) }},
		{"DUE", func(q queueRow) string { return strconv.FormatInt(q.Due, 10) }},
		{"SCHEDULED", func(q queueRow) string { return strconv.FormatInt(q.Scheduled, 10) }},
		{"DISPATCHED", func(q queueRow) string { return strconv.FormatInt(q.Dispatched, 10) }},
		{"RUNNING", func(q queueRow) string { return strconv.FormatInt(q.Running, 10) }},
		{"FAILED 24H", func(q queueRow) string { return strconv.FormatInt(q.Failed, 10) }},
		{"LIMITS", func(q queueRow) string {
			if !q.Configured {
				return "(not in the configuration: its calls wait)"
			}
			return dash(strings.Join(q.Limits, ","))
		}},
		{"STATE", func(q queueRow) string {
			state := q.opening.String()
			switch {
			case q.PausedUntil != nil:
				state = "paused until " + instant(q.PausedUntil) + ": " + short(*q.Paused)
			case q.Paused != nil:
				state = "paused: " + short(*q.Paused)
			}
			if q.Paused != nil && q.opening.holdsUp() {
				state += ", " + q.opening.String()
			}
			return state + keysPaused(q.PausedKeys)
		}},
	}
}
