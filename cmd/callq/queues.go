package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/config"
)

func (p *program) queuesCommand() *cobra.Command {
	return group("queues", "Show and pause queues", &cobra.Command{
		Use: "list", Short: "List the queues that are in force or that calls wait in",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				waiting, err := admin.ReadWaiting(ctx, pool)
				if err != nil {
					return err
				}
				queues, err := admin.ReadQueues(ctx, pool, waiting)
				if err != nil {
					return err
				}
				if err := printRows(p, queues, queueColumns()...); err != nil || p.output != "table" {
					return err
				}
				if unnamed := admin.UnnamedOf(waiting); unnamed != nil {
					fmt.Fprintf(p.stdout, "and %s\n", unnamed)
				}
				return nil
			})
		},
	}, p.pauseCommand("queue"), p.resumeCommand("queue"))
}

func queueColumns() []column[admin.Queue] {
	return []column[admin.Queue]{
		{"QUEUE", func(q admin.Queue) string { return short(q.Name) }},
		{"DUE", func(q admin.Queue) string { return strconv.FormatInt(q.Due, 10) }},
		{"SCHEDULED", func(q admin.Queue) string { return strconv.FormatInt(q.Scheduled, 10) }},
		{"DISPATCHED", func(q admin.Queue) string { return strconv.FormatInt(q.Dispatched, 10) }},
		{"RUNNING", func(q admin.Queue) string { return strconv.FormatInt(q.Running, 10) }},
		{"FAILED 24H", func(q admin.Queue) string { return strconv.FormatInt(q.Failed, 10) }},
		{"LIMITS", func(q admin.Queue) string {
			if !q.Configured {
				return "(not in the configuration: its calls wait)"
			}
			return dash(strings.Join(q.Limits, ","))
		}},
		{"STATE", admin.Queue.StateText},
	}
}
