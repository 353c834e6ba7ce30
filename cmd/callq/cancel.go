package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/cmd/callq/config"
)

func (p *program) callsCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID...", Short: "Cancel calls that have not ended",
		Long: `Cancel calls, and print what each is now. One that waits, or was handed over and has not started, is
not made. One that runs may have reached the API: its attempt stays counted, and its handler is told
to stop within about two seconds.

A call that was cancelled before stays so, and the exit code is 0. One that had ended otherwise, done
or failed, cannot be cancelled: exit code 1. An ID that there is not is exit code 4. Either way the
others are cancelled.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := callIDs(args)
			if err != nil {
				return err
			}
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				return p.cancelCalls(ctx, pool, ids)
			})
		},
	}
}

func callIDs(args []string) ([]int64, error) {
	ids := make([]int64, len(args))
	for i, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return nil, usagef("%q is not the id of a call: a whole number from 1 on", arg)
		}
		ids[i] = id
	}
	return ids, nil
}

func (p *program) cancelCalls(ctx context.Context, pool *pgxpool.Pool, ids []int64) error {
	client, err := callqueue.New(pool)
	if err != nil {
		return err
	}
	calls, failure := client.Cancel(ctx, ids...)
	err = printRows(p, calls,
		column[callqueue.Cancellation]{"ID", func(c callqueue.Cancellation) string { return strconv.FormatInt(c.ID, 10) }},
		column[callqueue.Cancellation]{"CANCELLED", func(c callqueue.Cancellation) string { return cancelText(c) }},
		column[callqueue.Cancellation]{"STATUS", func(c callqueue.Cancellation) string { return statusText(c.Status, c.Running) }},
	)
	if err != nil {
		return err
	}
	if missing, ok := errors.AsType[*callqueue.NotFoundError](failure); ok {
		return notFound(missing.IDs)
	}
	if failure != nil {
		return failure
	}
	var ended []int64
	for _, c := range calls {
		if !c.Cancelled && c.Status != callqueue.StatusCancelled {
			ended = append(ended, c.ID)
		}
	}
	if len(ended) > 0 {
		return fmt.Errorf("not cancelled, for they had ended: %s", joinIDs(ended))
	}
	return nil
}

func cancelText(c callqueue.Cancellation) string {
	switch {
	case c.Cancelled:
		return "yes"
	case c.Status == callqueue.StatusCancelled:
		return "was already"
	}
	return "no"
}

// notFound is the error for calls that there are not.
func notFound(ids []int64) error {
	return &exitError{exitNotFound, fmt.Errorf("no such call: %s; it was never inserted here, or retention removed it", joinIDs(ids))}
}

func joinIDs(ids []int64) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = strconv.FormatInt(id, 10)
	}
	return strings.Join(texts, ", ")
}
