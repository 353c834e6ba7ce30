package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/config"
)

func (p *program) callsGetCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get ID...", Short: "Show calls with every attempt",
		Long: "Show calls with every attempt. -o json is an object for one ID and an array for several; -o jsonl\n" +
			"an object per line. An ID that there is not is exit code 4, after the others.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := callIDs(args)
			if err != nil {
				return err
			}
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				return p.getCalls(ctx, pool, ids)
			})
		},
	}
}

// shown is a call with its attempts.
type shown struct {
	*callqueue.Record
	Ledger []admin.Attempt `json:"ledger"`
}

func (p *program) getCalls(ctx context.Context, pool *pgxpool.Pool, ids []int64) error {
	client, err := callqueue.New(pool)
	if err != nil {
		return err
	}
	calls, missing, err := eachCall(ids, func(id int64) (shown, error) {
		record, err := client.Get(ctx, id)
		if err != nil {
			return shown{}, err
		}
		ledger, err := admin.ReadAttempts(ctx, pool, id)
		return shown{record, ledger}, err
	})
	if err != nil {
		return err
	}
	if err := printCalls(p, calls, len(ids) == 1, p.printCall); err != nil {
		return err
	}
	return missing
}

// eachCall reads calls by their ids. missing is the error for those that there are not, if any.
func eachCall[T any](ids []int64, read func(int64) (T, error)) (calls []T, missing, err error) {
	var gone []int64
	for _, id := range ids {
		call, err := read(id)
		switch {
		case errors.Is(err, callqueue.ErrNotFound):
			gone = append(gone, id)
		case err != nil:
			return nil, nil, err
		default:
			calls = append(calls, call)
		}
	}
	if len(gone) > 0 {
		missing = notFound(gone)
	}
	return calls, missing, nil
}

// printCalls writes calls: as JSON an object where one was asked for, for people each with an empty line
// between.
func printCalls[T any](p *program, calls []T, one bool, print func(T) error) error {
	switch {
	case p.output == "json" && one && len(calls) == 1:
		return p.printJSON(calls[0])
	case p.output == "json" && one:
		return nil
	case p.output != "table":
		return printRows(p, calls)
	}
	for i, c := range calls {
		if i > 0 {
			fmt.Fprintln(p.stdout)
		}
		if err := print(c); err != nil {
			return err
		}
	}
	return nil
}

func (p *program) printCall(c shown) error {
	for _, field := range [][2]string{
		{"id", strconv.FormatInt(c.ID, 10)},
		{"queue", c.Queue},
		{"task", c.Task},
		{"key", dash(c.Key)},
		{"status", statusText(c.Status, c.Running)},
		{"attempts", strconv.Itoa(c.Attempts)},
		{"failed_count", strconv.Itoa(c.FailedCount)},
		{"max_attempts", text(c.MaxAttempts)},
		{"error_message", text(c.ErrorMessage)},
		{"priority", strconv.Itoa(c.Priority)},
		{"cost", strconv.FormatInt(c.Cost, 10)},
		{"unique_key", text(c.UniqueKey)},
		{"created_at", instant(&c.CreatedAt)},
		{"run_at", instant(&c.RunAt)},
		{"expires_at", instant(c.ExpiresAt)},
		{"dispatched_at", instant(c.DispatchedAt)},
		{"finished_at", instant(c.FinishedAt)},
		{"call_data", string(c.Data)},
		{"result", dash(string(c.Result))},
	} {
		fmt.Fprintf(p.stdout, "%-14s %s\n", field[0], printable(field[1]))
	}
	if len(c.Ledger) == 0 {
		return nil
	}
	fmt.Fprintln(p.stdout)
	return printTable(p.stdout, c.Ledger,
		column[admin.Attempt]{"ATTEMPT", func(a admin.Attempt) string { return strconv.Itoa(a.Attempt) }},
		column[admin.Attempt]{"OUTCOME", func(a admin.Attempt) string { return a.State() }},
		column[admin.Attempt]{"CLAIMED AT", func(a admin.Attempt) string { return instant(&a.ClaimedAt) }},
		column[admin.Attempt]{"STARTED AT", func(a admin.Attempt) string { return instant(a.StartedAt) }},
		column[admin.Attempt]{"FINISHED AT", func(a admin.Attempt) string { return instant(a.FinishedAt) }},
		column[admin.Attempt]{"WORKER", func(a admin.Attempt) string { return text(a.Worker) }},
		column[admin.Attempt]{"ERROR", func(a admin.Attempt) string { return short(text(a.Error)) }},
	)
}
