package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/config"
)

func (p *program) statusCommand() *cobra.Command {
	watch, every := false, durationFlag(time.Second)
	cmd := &cobra.Command{
		Use: "status", Short: "Show queues, limits, budgets, workers and the oldest call on one screen",
		Long: "Show queues, limits, budgets, workers and the oldest call on one screen; with --watch again and again, until\n" +
			"Ctrl-C. What is free of budgets it asks Redis. With -o jsonl each is one line. Of the calls that wait\n" +
			"those that were cancelled or deleted are not counted in the queues and for the tasks that have fewest, as far\n" +
			"as these have 3,000 calls together; in the others they are, until claims have passed them. The oldest call is\n" +
			"looked for among those that stand first.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case watch && every < durationFlag(100*time.Millisecond):
				return usagef("--every is %s, less than 100ms", time.Duration(every))
			case !watch && cmd.Flags().Changed("every"):
				return usagef("--every is for --watch")
			case watch:
				return p.watchStatus(cmd.Context(), time.Duration(every))
			}
			return p.ask(cmd.Context(), func(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
				return p.showStatus(ctx, cfg, pool)
			})
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again and again, until Ctrl-C")
	cmd.Flags().Var(&every, "every", "how often, with --watch")
	return cmd
}

func (p *program) showStatus(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
	s, err := admin.ReadStatus(ctx, pool)
	if err != nil {
		return err
	}
	lookAtBudgets(ctx, cfg, s.Budgets)
	if p.output != "table" {
		return p.printJSON(s)
	}
	return p.printStatus(s)
}

func (p *program) printStatus(s *admin.Status) error {
	if err := printTable(p.stdout, s.Queues, queueColumns()...); err != nil {
		return err
	}
	if s.Unnamed != nil {
		fmt.Fprintf(p.stdout, "and %s\n", s.Unnamed)
	}
	if len(s.Limits) > 0 {
		fmt.Fprintln(p.stdout)
		if err := printTable(p.stdout, s.Limits, limitColumns()[:6]...); err != nil {
			return err
		}
	}
	if len(s.Budgets) > 0 {
		fmt.Fprintln(p.stdout)
		if err := printTable(p.stdout, s.Budgets, budgetColumns()...); err != nil {
			return err
		}
	}
	if text := s.OthersText(); text != "" {
		fmt.Fprintln(p.stdout, "\n"+printable(text))
	}
	for _, key := range slices.Sorted(maps.Keys(s.HTTPTask)) {
		p.printDifference("http_task."+key, s.HTTPTask[key], admin.EachOwn)
	}
	fmt.Fprintln(p.stdout)
	if len(s.Workers) == 0 {
		fmt.Fprintln(p.stdout, "no workers: nothing is sent until one runs (callq serve, callq work)")
	} else if err := printTable(p.stdout, s.Workers,
		column[admin.Worker]{"WORKER", func(w admin.Worker) string { return w.ID }},
		column[admin.Worker]{"POOL", func(w admin.Worker) string { return w.Pool }},
		column[admin.Worker]{"TASKS", func(w admin.Worker) string { return short(strings.Join(w.Tasks, ",")) }},
		column[admin.Worker]{"RUNNING", func(w admin.Worker) string { return fmt.Sprintf("%d of %d", w.Running, w.Slots) }},
		column[admin.Worker]{"LAST BEAT", func(w admin.Worker) string {
			if state := w.StateText(); state != "" {
				return admin.Ago(s.At, w.BeatAt) + ": " + state
			}
			return admin.Ago(s.At, w.BeatAt)
		}},
	); err != nil {
		return err
	}
	for _, t := range s.Unhandled {
		fmt.Fprintln(p.stdout, t)
	}
	counted := func(q admin.Queue) bool { return q.Due > 0 }
	switch {
	case s.Oldest != nil:
		fmt.Fprintf(p.stdout, "oldest due call: %d in %s, due %s\n", s.Oldest.ID, printable(short(s.Oldest.Queue)), admin.Ago(s.At, s.Oldest.DueAt))
	case slices.ContainsFunc(s.Queues, counted):
		fmt.Fprintln(p.stdout, "oldest due call: none of those that stand first in line waits any more; they are counted until a claim passes them")
	}
	return nil
}
