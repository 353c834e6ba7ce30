package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
)

func (p *program) callsCancelCommand() *cobra.Command {
	unfinished := []callqueue.Status{callqueue.StatusNew, callqueue.StatusError, callqueue.StatusDispatched}
	return changeCommand(p, &change[callqueue.Cancellation]{
		name: "cancel", past: "cancelled",
		long: `Cancel calls that have not ended, and print what each is now. One that waits, or was handed over and has
not started, is not made. One that runs may have reached the API: its attempt stays counted, and its
handler is told to stop within about two seconds.

One that was cancelled before stays so, which is no failure; one that is done or failed cannot be cancelled.`,
		of:    unfinished,
		usual: func() []callqueue.Status { return unfinished },
		apply: func(ctx context.Context, client *callqueue.Client, _ []callqueue.Status, ids []int64,
		) ([]callqueue.Cancellation, error) {
			return client.Cancel(ctx, ids...)
		},
		read: func(c callqueue.Cancellation) changed {
			r := changed{id: c.ID, done: c.Cancelled, status: c.Status, open: c.Running, word: "no"}
			if r.wrong = !c.Cancelled && c.Status != callqueue.StatusCancelled; !r.wrong {
				r.word = "was already"
			}
			return r
		},
	})
}

func (p *program) callsRetryCommand() *cobra.Command {
	var done bool
	cmd := changeCommand(p, &change[callqueue.Retrial]{
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
		apply: func(ctx context.Context, client *callqueue.Client, of []callqueue.Status, ids []int64,
		) ([]callqueue.Retrial, error) {
			if done || slices.Contains(of, callqueue.StatusDone) {
				return client.RetryDone(ctx, ids...)
			}
			return client.Retry(ctx, ids...)
		},
		read: func(r callqueue.Retrial) changed {
			return changed{id: r.ID, done: r.Retried, status: r.Status, open: r.Open, word: "no", wrong: !r.Retried}
		},
	})
	cmd.Flags().BoolVar(&done, "done", false, "calls that are done too")
	return cmd
}

func (p *program) callsDeleteCommand() *cobra.Command {
	ended := []callqueue.Status{callqueue.StatusDone, callqueue.StatusFailed, callqueue.StatusCancelled}
	return changeCommand(p, &change[callqueue.Deletion]{
		name: "delete", past: "deleted",
		long: `Delete calls that have ended or wait; what waited is not made. One that was handed over or runs is not
deleted: cancel it first. No unit of a limit comes free by it: the ledger keeps what they sent.`,
		of:    append(slices.Clone(ended), callqueue.StatusNew, callqueue.StatusError),
		usual: func() []callqueue.Status { return ended },
		asks:  true,
		apply: func(ctx context.Context, client *callqueue.Client, _ []callqueue.Status, ids []int64,
		) ([]callqueue.Deletion, error) {
			return client.Delete(ctx, ids...)
		},
		read: func(d callqueue.Deletion) changed {
			return changed{id: d.ID, done: d.Deleted, status: d.Status, open: d.Open, word: "no", wrong: !d.Deleted}
		},
	})
}
