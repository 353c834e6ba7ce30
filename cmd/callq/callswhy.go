package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/config"
)

func (p *program) callsWhyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "why ID...", Short: "Say what calls wait for, or what became of them",
		Long: `Say what calls wait for, all of it at once, or what became of them. Limits are read without their locks:
nothing is decided by it. -o json is an object for one ID and an array for several; -o jsonl an object per
line. An ID that there is not is exit code 4, after the others.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := callIDs(args)
			if err != nil {
				return err
			}
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				return p.explainCalls(ctx, pool, ids)
			})
		},
	}
}

func (p *program) explainCalls(ctx context.Context, pool *pgxpool.Pool, ids []int64) error {
	client, err := callqueue.New(pool)
	if err != nil {
		return err
	}
	calls, missing, err := eachCall(ids, func(id int64) (admin.Why, error) {
		call, err := client.Get(ctx, id)
		if err != nil {
			return admin.Why{}, err
		}
		return admin.Explain(ctx, pool, call)
	})
	if err != nil {
		return err
	}
	if err := printCalls(p, calls, len(ids) == 1, func(e admin.Why) error {
		text := fmt.Sprintf("call %d, %s: queue %s, task %s, key %s",
			e.ID, statusText(e.Status, e.Running), short(e.Queue), short(e.Task), short(dash(e.Key)))
		fmt.Fprintln(p.stdout, printable(text))
		for _, r := range e.Reasons {
			fmt.Fprintln(p.stdout, "  "+printable(r.Text))
		}
		return nil
	}); err != nil {
		return err
	}
	return missing
}
