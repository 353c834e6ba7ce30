package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
)

// changedTo is what became of a call that was changed, or could not be.
func changedTo(id int64, done bool, status callqueue.Status, open bool) changed {
	c := changed{id: id, done: done, status: status, open: open, word: "yes", wrong: !done}
	if !done {
		c.word = "no"
	}
	return c
}

func callsCancelCommand(a *app) *cobra.Command {
	unfinished := []callqueue.Status{callqueue.StatusNew, callqueue.StatusError, callqueue.StatusDispatched}
	return changeCommand(a, &change[callqueue.Cancellation]{
		name: "cancel", past: "cancelled",
		long: `Cancel calls that have not ended, and print what each is now. One that waits, or was handed over and has
not started, is not made. One that runs may have reached the API: its attempt stays counted, and its
handler is told to stop within about two seconds.

One that was cancelled before stays so, which is no failure; one that is done or failed cannot be cancelled.`,
		of:    unfinished,
		usual: func() []callqueue.Status { return unfinished },
		apply: func(ctx context.Context, client *callqueue.Client, _ []callqueue.Status, ids []int64) ([]callqueue.Cancellation, error) {
			return client.Cancel(ctx, ids...)
		},
		read: func(c callqueue.Cancellation) changed {
			r := changedTo(c.ID, c.Cancelled, c.Status, c.Running)
			if !c.Cancelled && c.Status == callqueue.StatusCancelled {
				r.word, r.wrong = "was already", false
			}
			return r
		},
	})
}

func callsRetryCommand(a *app) *cobra.Command {
	var done bool
	cmd := changeCommand(a, &change[callqueue.Retrial]{
		name: "retry", past: "retried",
		long: `Retry calls that failed or were cancelled: they wait again as if they were new, from now on, with all of
max_attempts before them. What they sent before stays counted, and what they will send counts again.
Calls that are done are made once more only if asked for: --done, or --status done.

A call is not retried while an attempt of it is open, as when it was cancelled and still runs.`,
		of: []callqueue.Status{callqueue.StatusFailed, callqueue.StatusCancelled, callqueue.StatusDone},
		usual: func() []callqueue.Status {
			if done {
				return []callqueue.Status{callqueue.StatusFailed, callqueue.StatusDone}
			}
			return []callqueue.Status{callqueue.StatusFailed}
		},
		apply: func(ctx context.Context, client *callqueue.Client, of []callqueue.Status, ids []int64) ([]callqueue.Retrial, error) {
			if done || slices.Contains(of, callqueue.StatusDone) {
				return client.RetryDone(ctx, ids...)
			}
			return client.Retry(ctx, ids...)
		},
		read: func(r callqueue.Retrial) changed { return changedTo(r.ID, r.Retried, r.Status, r.Open) },
	})
	cmd.Flags().BoolVar(&done, "done", false, "calls that are done too")
	return cmd
}

func callsDeleteCommand(a *app) *cobra.Command {
	ended := []callqueue.Status{callqueue.StatusDone, callqueue.StatusFailed, callqueue.StatusCancelled}
	return changeCommand(a, &change[callqueue.Deletion]{
		name: "delete", past: "deleted",
		long: `Delete calls that have ended or wait; what waited is not made. One that was handed over or runs is not
deleted: cancel it first. No unit of a limit comes free by it: the ledger keeps what they sent.`,
		of:    append(slices.Clone(ended), callqueue.StatusNew, callqueue.StatusError),
		usual: func() []callqueue.Status { return ended },
		asks:  true,
		apply: func(ctx context.Context, client *callqueue.Client, _ []callqueue.Status, ids []int64) ([]callqueue.Deletion, error) {
			return client.Delete(ctx, ids...)
		},
		read: func(d callqueue.Deletion) changed { return changedTo(d.ID, d.Deleted, d.Status, d.Open) },
	})
}
