package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
)

func callsCancelCommand(a *app) *cobra.Command {
	unfinished := []callqueue.Status{callqueue.StatusNew, callqueue.StatusError, callqueue.StatusDispatched}
	return changeCommand(a, &change{
		name: "cancel", past: "cancelled",
		long: `Cancel calls that have not ended, and print the status of each. A call that waits, or was handed over and
has not started, is never sent. One that runs may have reached the API: its attempt stays counted, and its
handler is told to stop within about two seconds.

Cancelling a cancelled call again is no failure. A call that is done or failed cannot be cancelled.`,
		allowed: unfinished, usual: unfinished, makes: callqueue.StatusCancelled,
		apply: func(ctx context.Context, client *callqueue.Client, _ bool, ids []int64) ([]callqueue.ChangeResult, error) {
			return client.Cancel(ctx, ids...)
		},
	})
}

func callsRetryCommand(a *app) *cobra.Command {
	c := &change{
		name: "retry", past: "retried",
		long: `Retry calls that failed or were cancelled: they wait again like new calls, with all of max_attempts ahead.
What they sent before stays counted, and what they send now counts too. Calls that are done are made again
only with --done or --status done.

A call cannot be retried while one of its attempts is open, for example after it was cancelled and still runs.`,
		allowed: []callqueue.Status{callqueue.StatusFailed, callqueue.StatusCancelled, callqueue.StatusDone},
		usual:   []callqueue.Status{callqueue.StatusFailed},
		apply: func(ctx context.Context, client *callqueue.Client, done bool, ids []int64) ([]callqueue.ChangeResult, error) {
			if done {
				return client.RetryDone(ctx, ids...)
			}
			return client.Retry(ctx, ids...)
		},
	}
	cmd := changeCommand(a, c)
	cmd.Flags().BoolVar(&c.done, "done", false, "calls that are done too")
	return cmd
}

func callsDeleteCommand(a *app) *cobra.Command {
	ended := []callqueue.Status{callqueue.StatusDone, callqueue.StatusFailed, callqueue.StatusCancelled}
	return changeCommand(a, &change{
		name: "delete", past: "deleted",
		long: `Delete calls that have ended or wait; those that waited are never sent. A call that was handed over or runs
is not deleted: cancel it first. Deleting frees no unit of a limit: the ledger keeps what was sent.`,
		allowed: append(slices.Clone(ended), callqueue.StatusNew, callqueue.StatusError), usual: ended,
		asks: true,
		apply: func(ctx context.Context, client *callqueue.Client, _ bool, ids []int64) ([]callqueue.ChangeResult, error) {
			return client.Delete(ctx, ids...)
		},
	})
}

// change is a verb that changes calls: of the ids given, or all that fit a filter.
type change struct {
	name, past string // "cancel", "cancelled"
	long       string
	allowed    []callqueue.Status // that a filter may name
	usual      []callqueue.Status // of a filter that names none
	done       bool               // calls that are done too
	asks       bool               // also about calls given by id, for it cannot be undone
	makes      callqueue.Status   // a call that has it already is no failure; "": there is none
	apply      func(ctx context.Context, client *callqueue.Client, done bool, ids []int64) ([]callqueue.ChangeResult, error)
}

const changeMost = 500 // calls of a filter that are changed in one transaction

func changeCommand(a *app, c *change) *cobra.Command {
	var f callFilter
	var all bool
	usual := joined(c.usual, ", ")
	cmd := &cobra.Command{
		Use:   c.name + " ID... | --status|--queue|--key|--task ... | --all",
		Short: strings.ToUpper(c.name[:1]) + c.name[1:] + " calls, by id or all that fit a filter",
		Long: c.long + fmt.Sprintf(`

A filter takes calls that are %s (--status may name: %s). callq counts them and
asks first; without a terminal that needs --yes. They are %s in small transactions, newest first. Calls
inserted meanwhile are left alone.

Exit code 4 if an ID does not exist, 1 if a call could not be %s; the other IDs are done first.`,
			usual, joined(c.allowed, ", "), c.past, c.past),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && (all || f.any()):
				return usagef("give ids or a filter, not both")
			case len(args) == 0 && !all && !f.any():
				return usagef("which calls? Give ids, or --status, --queue, --key or --task, or --all for all that are %s", usual)
			case len(args) > 0:
				return changeByID(cmd, a, c, args)
			}
			filter, err := f.read(c.allowed)
			if err != nil {
				return err
			}
			if len(filter.Statuses) == 0 {
				filter.Statuses = slices.Clone(c.usual)
				if c.done {
					filter.Statuses = append(filter.Statuses, callqueue.StatusDone)
				}
			}
			return a.connected(commandSettings(), func(ctx context.Context, db *database, _ []string) error {
				return c.byFilter(ctx, db, filter)
			})(cmd, nil)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "all calls that are "+usual)
	return cmd
}

func changeByID(cmd *cobra.Command, a *app, c *change, args []string) error {
	ids, err := callIDs(args)
	if err != nil {
		return err
	}
	if c.asks {
		if err := c.confirm(cmd.Context(), a, int64(len(ids))); err != nil {
			return err
		}
	}
	return a.query(func(ctx context.Context, db *database, _ []string) error {
		calls, failure := c.apply(ctx, db.calls, c.done, ids)
		var not []string
		err := table[callqueue.ChangeResult]{"ID," + strings.ToUpper(c.past) + ",STATUS", func(r callqueue.ChangeResult) []any {
			did := "no"
			switch {
			case r.Changed:
				did = "yes"
			case r.Status == c.makes:
				did = "was already"
			}
			return []any{r.ID, did, statusText(r.Status, r.Open)}
		}}.show(a, calls, nil)
		for _, r := range calls {
			if !r.Changed && r.Status != c.makes {
				not = append(not, fmt.Sprintf("%d (%s)", r.ID, statusText(r.Status, r.Open)))
			}
		}
		missing, isMissing := errors.AsType[*callqueue.NotFoundError](failure)
		switch {
		case err != nil:
			return err
		case isMissing:
			return notFound(missing.IDs)
		case failure == nil && len(not) > 0:
			return fmt.Errorf("not %s: %s", c.past, strings.Join(not, ", "))
		}
		return failure
	})(cmd, args)
}

// byFilter asks about as many calls as there are, and goes through them from the newest on.
func (c *change) byFilter(ctx context.Context, db *database, f admin.Filter) error {
	var matched int64
	err := db.within(ctx, func(ctx context.Context) error {
		newest, err := admin.ListCalls(ctx, db.Pool, f, 1)
		if err != nil || len(newest) == 0 {
			return err
		}
		f.Before = newest[0].ID + 1
		matched, err = admin.CountCalls(ctx, db.Pool, f)
		return err
	})
	if err == nil && matched > 0 {
		err = c.confirm(ctx, db.app, matched)
	}
	if err != nil {
		return err
	}
	done, err := c.all(ctx, db, f, matched)
	if err != nil {
		fmt.Fprintf(db.stderr, "callq: %d of %d calls were %s before\n", done, matched, c.past)
		return err
	}
	if left := matched - done; left > 0 && db.output == "table" {
		fmt.Fprintf(db.stderr, "%d calls were not %s: they had changed meanwhile, or still run\n", left, c.past)
	}
	return db.show(map[string]int64{"matched": matched, c.past: done}, func(w io.Writer) {
		fmt.Fprintf(w, "%s %d calls\n", c.past, done)
	})
}

// all changes the calls of a filter, and returns how many it changed.
func (c *change) all(ctx context.Context, db *database, f admin.Filter, matched int64) (done int64, err error) {
	said := time.Now()
	for more := matched > 0; more; {
		var ids []int64
		var list []callqueue.ChangeResult
		err := db.within(ctx, func(ctx context.Context) error {
			page, err := admin.ListCalls(ctx, db.Pool, f, changeMost)
			for _, call := range page {
				ids, f.Before = append(ids, call.ID), call.ID
			}
			if err == nil && len(ids) > 0 {
				list, err = c.apply(ctx, db.calls, slices.Contains(f.Statuses, callqueue.StatusDone), ids)
			}
			return err
		})
		for _, r := range list {
			if r.Changed {
				done++
			}
		}
		if err != nil && !errors.Is(err, callqueue.ErrNotFound) { // those that are gone by now do not count
			return done, err
		}
		if time.Since(said) > time.Second {
			fmt.Fprintf(db.stderr, "%s %d of %d calls\n", c.past, done, matched)
			said = time.Now()
		}
		more = len(ids) == changeMost
	}
	return done, nil
}

func (c *change) confirm(ctx context.Context, a *app, calls int64) error {
	return a.confirm(ctx, fmt.Sprintf("%s %d calls?", c.name, calls))
}
