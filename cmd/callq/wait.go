package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
)

func callsWaitCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "wait ID...", Short: "Wait until calls have ended, and show how",
		Long: "Wait until calls have ended, and show how: for as long as they take, or for --timeout where that is given.\n" +
			"Exit code 0 if all are done; 1 if one failed or was cancelled, or has not ended in time; 4 if an ID does\n" +
			"not exist, once the others have ended and are shown. " + callForms,
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

// wait waits until calls have ended, and shows them. Only a --timeout that is given bounds that.
func (db *database) wait(ctx context.Context, cmd *cobra.Command, ids []int64) error {
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if cmd.Flags().Changed("timeout") {
		bounded, cancel = context.WithTimeout(ctx, db.timeout)
	}
	defer cancel()
	calls, err := db.calls.WaitMany(bounded, ids...)
	_, missing := errors.AsType[*callqueue.NotFoundError](err)
	switch {
	case err != nil && bounded.Err() != nil && ctx.Err() == nil:
		return exitf(exitFailed, "not all have ended after %s; `callq calls why ID` says what a call waits for", db.timeout)
	case err != nil && !missing:
		return err
	}
	if shown := db.showCalls(len(ids), calls); shown != nil || missing {
		return cmp.Or(shown, err)
	}
	undone := slices.DeleteFunc(slices.Clone(calls), func(r *callqueue.Record) bool { return r.Status == callqueue.StatusDone })
	if len(undone) > 0 {
		return fmt.Errorf("%d of %d calls are not done", len(undone), len(ids))
	}
	return nil
}

// showCalls shows those of the calls asked for that exist.
func (a *app) showCalls(asked int, calls []*callqueue.Record) error {
	people := func(w io.Writer) {
		table[*callqueue.Record]{"ID,STATUS,ATTEMPTS,FINISHED AT,ERROR", func(r *callqueue.Record) []any {
			return []any{r.ID, statusText(r.Status, r.Running), r.Attempts, r.FinishedAt, short(admin.Text(r.ErrorMessage))}
		}}.print(w, calls)
	}
	switch {
	case asked > 1:
		return showRows(a, calls, people)
	case len(calls) == 1:
		return a.show(calls[0], people)
	}
	return nil
}
