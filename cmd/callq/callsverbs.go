package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
)

// each turns the client's results into ours.
func each[T any](results []T, err error, of func(T) changed) ([]changed, error) {
	list := make([]changed, len(results))
	for i, r := range results {
		list[i] = of(r)
		list[i].result = r
	}
	return list, err
}

func callsCancelCommand(a *app) *cobra.Command {
	unfinished := []callqueue.Status{callqueue.StatusNew, callqueue.StatusError, callqueue.StatusDispatched}
	return changeCommand(a, &change{
		name: "cancel", past: "cancelled",
		long: `Cancel calls that have not ended, and print the status of each. A call that waits, or was handed over and
has not started, is never sent. One that runs may have reached the API: its attempt stays counted, and its
handler is told to stop within about two seconds.

Cancelling a cancelled call again is no failure. A call that is done or failed cannot be cancelled.`,
		of:    unfinished,
		usual: func() []callqueue.Status { return unfinished },
		apply: func(ctx context.Context, client *callqueue.Client, _ []callqueue.Status, ids []int64) ([]changed, error) {
			results, err := client.Cancel(ctx, ids...)
			return each(results, err, func(r callqueue.Cancellation) changed {
				c := changed{id: r.ID, done: r.Cancelled, status: r.Status, open: r.Running}
				if !r.Cancelled && r.Status == callqueue.StatusCancelled {
					c.word = "was already" // which is no failure
				}
				return c
			})
		},
	})
}

func callsRetryCommand(a *app) *cobra.Command {
	var done bool
	cmd := changeCommand(a, &change{
		name: "retry", past: "retried",
		long: `Retry calls that failed or were cancelled: they wait again like new calls, with all of max_attempts ahead.
What they sent before stays counted, and what they send now counts too. Calls that are done are made again
only with --done or --status done.

A call cannot be retried while one of its attempts is open, for example after it was cancelled and still runs.`,
		of: []callqueue.Status{callqueue.StatusFailed, callqueue.StatusCancelled, callqueue.StatusDone},
		usual: func() []callqueue.Status {
			if done {
				return []callqueue.Status{callqueue.StatusFailed, callqueue.StatusDone}
			}
			return []callqueue.Status{callqueue.StatusFailed}
		},
		apply: func(ctx context.Context, client *callqueue.Client, of []callqueue.Status, ids []int64) ([]changed, error) {
			retry := client.Retry
			if done || slices.Contains(of, callqueue.StatusDone) {
				retry = client.RetryDone
			}
			results, err := retry(ctx, ids...)
			return each(results, err, func(r callqueue.Retrial) changed {
				return changed{id: r.ID, done: r.Retried, status: r.Status, open: r.Open}
			})
		},
	})
	cmd.Flags().BoolVar(&done, "done", false, "calls that are done too")
	return cmd
}

func callsDeleteCommand(a *app) *cobra.Command {
	ended := []callqueue.Status{callqueue.StatusDone, callqueue.StatusFailed, callqueue.StatusCancelled}
	return changeCommand(a, &change{
		name: "delete", past: "deleted",
		long: `Delete calls that have ended or wait; those that waited are never sent. A call that was handed over or runs
is not deleted: cancel it first. Deleting frees no unit of a limit: the ledger keeps what was sent.`,
		of:    append(slices.Clone(ended), callqueue.StatusNew, callqueue.StatusError),
		usual: func() []callqueue.Status { return ended },
		asks:  true,
		apply: func(ctx context.Context, client *callqueue.Client, _ []callqueue.Status, ids []int64) ([]changed, error) {
			results, err := client.Delete(ctx, ids...)
			return each(results, err, func(r callqueue.Deletion) changed {
				return changed{id: r.ID, done: r.Deleted, status: r.Status, open: r.Open}
			})
		},
	})
}
