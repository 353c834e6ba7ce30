package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
)

func callsWaitCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "wait ID...", Short: "Wait until calls have ended, and show how",
		Long: "Wait until calls have ended, and show how: for as long as they take, or for --timeout where that is given.\n" +
			"Exit code 0 if all are done; 1 if one failed or was cancelled, or has not ended in time; 4 if an ID does\n" +
			"not exist. All are shown first. " + callForms,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := callIDs(args)
			if err != nil {
				return err
			}
			return a.connected(commandSettings(), func(ctx context.Context, db *database, _ []string) error {
				return db.wait(ctx, cmd, ids)
			})(cmd, args)
		},
	}
}

// wait waits until calls have ended, and shows them, or how they stand if they do not. Only a --timeout that is given bounds the wait.
func (db *database) wait(ctx context.Context, cmd *cobra.Command, ids []int64) error {
	bounded := ctx
	if cmd.Flags().Changed("timeout") {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, db.timeout)
		defer cancel()
	}
	calls, err := db.calls.WaitMany(bounded, ids...)
	if err != nil && !errors.Is(err, callqueue.ErrNotFound) {
		return cmp.Or(db.showStanding(ctx, ids), ctx.Err(), timedOut(bounded, db.timeout), err)
	}
	if shown := db.showCalls(len(ids), calls); shown != nil || err != nil {
		return cmp.Or(shown, err)
	}
	undone := slices.DeleteFunc(slices.Clone(calls), func(r *callqueue.Record) bool { return r.Status == callqueue.StatusDone })
	if len(undone) > 0 {
		return fmt.Errorf("%s not done", callsOf(undone, ids, "is", "are"))
	}
	return nil
}

func timedOut(ctx context.Context, after time.Duration) error {
	if ctx.Err() == nil {
		return nil
	}
	return exitf(exitFailed, "not all have ended after %s; `callq calls why ID` says what a call waits for", after)
}

// showStanding shows calls as they stand. An error means that Postgres is away.
func (db *database) showStanding(ctx context.Context, ids []int64) error {
	var calls []*callqueue.Record
	err := db.within(ctx, func(ctx context.Context) error {
		for _, id := range ids {
			call, err := db.calls.Get(ctx, id)
			switch {
			case err == nil:
				calls = append(calls, call)
			case !errors.Is(err, callqueue.ErrNotFound):
				return err
			}
		}
		return nil
	})
	return cmp.Or(err, db.showCalls(len(ids), calls))
}

// waitInserted prints the ids of calls that were just inserted, and waits for them.
func (db *database) waitInserted(ctx context.Context, cmd *cobra.Command, rows []inserted) error {
	ids := make([]int64, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	fmt.Fprintf(db.stderr, "callq: waiting for calls: %d to %d\n", slices.Min(ids), slices.Max(ids))
	return db.wait(ctx, cmd, ids)
}

// mayWait is an error if this role may not read calls: you should know before the call is inserted.
func (db *database) mayWait(ctx context.Context) error {
	return db.within(ctx, func(ctx context.Context) error {
		if _, err := db.calls.Get(ctx, 0); !errors.Is(err, callqueue.ErrNotFound) {
			return err
		}
		return nil
	})
}

// showCalls shows those of the calls asked for that exist.
func (a *app) showCalls(asked int, calls []*callqueue.Record) error {
	return showEach(a, asked, calls, func(w io.Writer) {
		table[*callqueue.Record]{"ID,STATUS,ATTEMPTS,FINISHED AT,ERROR", func(r *callqueue.Record) []any {
			return []any{r.ID, statusText(r.Status, r.Running), r.Attempts, r.FinishedAt, short(admin.Text(r.ErrorMessage))}
		}}.print(w, calls)
	})
}
