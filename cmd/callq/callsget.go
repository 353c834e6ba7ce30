package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
)

// shown is a call with its attempts.
type shown struct {
	*callqueue.Record
	Ledger []admin.Attempt `json:"ledger"`
}

func callsGetCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "get ID...", Short: "Show calls with every attempt",
		Long: "Show calls with every attempt. -o json prints an object for one ID and an array for several; -o jsonl\n" +
			"prints an object per line. Exit code 4 if an ID does not exist; the others are shown first.",
		Args: cobra.MinimumNArgs(1), PreRunE: checkIDs,
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			return eachCall(ctx, a, db, args, func(call *callqueue.Record) (shown, error) {
				ledger, err := admin.ReadAttempts(ctx, db, call.ID)
				return shown{call, ledger}, err
			}, func(c shown) error { return printCall(a, c) })
		}),
	}
}

func callsWhyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "why ID...", Short: "Say what calls wait for, or what became of them",
		Long: `Say everything that calls wait for, or what became of them. Limits are read without their locks, so the
answer may be slightly out of date. -o json prints an object for one ID and an array for several; -o jsonl
prints an object per line. Exit code 4 if an ID does not exist; the others are shown first.`,
		Args: cobra.MinimumNArgs(1), PreRunE: checkIDs,
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			return eachCall(ctx, a, db, args, func(call *callqueue.Record) (admin.Why, error) {
				return admin.Explain(ctx, db.Pool, call)
			}, func(e admin.Why) error {
				fmt.Fprintln(a.stdout, printable(fmt.Sprintf("call %d, %s: queue %s, task %s, key %s",
					e.ID, statusText(e.Status, e.Running), short(e.Queue), short(e.Task), short(dash(e.Key)))))
				for _, r := range e.Reasons {
					fmt.Fprintln(a.stdout, "  "+printable(r.Text))
				}
				return nil
			})
		}),
	}
}

func checkIDs(_ *cobra.Command, args []string) error {
	_, err := callIDs(args)
	return err
}

func printCall(a *app, c shown) error {
	for _, field := range []struct {
		name  string
		value any
	}{
		{"id", c.ID},
		{"queue", c.Queue},
		{"task", c.Task},
		{"key", dash(c.Key)},
		{"status", statusText(c.Status, c.Running)},
		{"attempts", c.Attempts},
		{"failed_count", c.FailedCount},
		{"max_attempts", c.MaxAttempts},
		{"error_message", c.ErrorMessage},
		{"priority", c.Priority},
		{"cost", c.Cost},
		{"unique_key", c.UniqueKey},
		{"created_at", c.CreatedAt},
		{"run_at", c.RunAt},
		{"expires_at", c.ExpiresAt},
		{"dispatched_at", c.DispatchedAt},
		{"finished_at", c.FinishedAt},
		{"call_data", string(c.Data)},
		{"result", dash(string(c.Result))},
	} {
		fmt.Fprintf(a.stdout, "%-14s %s\n", field.name, cell(field.value))
	}
	if len(c.Ledger) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	return table[admin.Attempt]{
		"ATTEMPT,OUTCOME,CLAIMED AT,STARTED AT,FINISHED AT,WORKER,ERROR", func(t admin.Attempt) []any {
			return []any{t.Attempt, t.State(), t.ClaimedAt, t.StartedAt, t.FinishedAt, t.Worker, short(admin.Text(t.Error))}
		},
	}.print(a.stdout, c.Ledger)
}
