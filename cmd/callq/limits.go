package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/config"
)

func (p *program) limitsCommand() *cobra.Command {
	return group("limits", "Show, set and pause limits",
		p.limitsListCommand(), p.limitsGetCommand(), p.limitsForecastCommand(), p.limitsSetCommand(), p.limitsResetCommand(),
		p.pauseCommand("limit"), p.resumeCommand("limit"), p.limitsOpenCommand())
}

func (p *program) limitsListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the limits in force, and what is used of them",
		Long: "List the limits in force, and what is used of them; where a limit is per key, of the key that uses\n" +
			"most. Occupied and room are read without the limits' locks: they are approximate, and nothing is\n" +
			"decided by them.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				limits, err := admin.ReadLimits(ctx, pool)
				if err != nil {
					return err
				}
				return printRows(p, limits, limitColumns()...)
			})
		},
	}
}

func (p *program) limitsGetCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get LIMIT", Short: "Show one limit: what is used of it, its pauses, its last changes",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				return p.showLimit(ctx, pool, args[0])
			})
		},
	}
}

func (p *program) showLimit(ctx context.Context, pool *pgxpool.Pool, name string) error {
	d, err := admin.ReadLimit(ctx, pool, name)
	switch {
	case err != nil:
		return err
	case d == nil:
		return unknownRule("limit", name)
	}
	if p.output != "table" {
		return p.printJSON(d)
	}
	if err := printTable(p.stdout, []admin.Limit{d.Limit}, limitColumns()...); err != nil {
		return err
	}
	return p.printPausesAndChanges(d.Pauses, d.Changes)
}

func limitColumns() []column[admin.Limit] {
	return []column[admin.Limit]{
		{"LIMIT", func(l admin.Limit) string { return l.Name }},
		{"RATE", func(l admin.Limit) string {
			if l.Config != nil {
				return l.Rate + " (set; config: " + *l.Config + ")"
			}
			return l.Rate
		}},
		{"QUEUES", func(l admin.Limit) string { return dash(strings.Join(l.Queues, ",")) }},
		{"OCCUPIED", func(l admin.Limit) string { return "~" + strconv.FormatInt(l.Occupied, 10) }},
		{"ROOM", func(l admin.Limit) string { return "~" + strconv.FormatInt(l.Room, 10) }},
		{"STATE", admin.Limit.StateText},
		{"CHANGED AT", func(l admin.Limit) string { return instant(&l.ChangedAt) }},
		{"BY", func(l admin.Limit) string { return l.ChangedBy }},
	}
}
