package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
)

func callsCommand(a *app) *cobra.Command {
	return group("calls", "List calls, say why they wait, retry, cancel and delete them",
		callsListCommand(a), callsGetCommand(a), callsWhyCommand(a),
		callsRetryCommand(a), callsCancelCommand(a), callsDeleteCommand(a))
}

// callFilter is the flags that say which calls.
type callFilter struct {
	status           []string
	queue, key, task string
	given            func(flag string) bool
}

func (f *callFilter) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.status, "status", nil, "only these: "+joined(callqueue.Statuses(), ","))
	flags.StringVar(&f.queue, "queue", "", "only of this queue")
	flags.StringVar(&f.key, "key", "", "only with this key; empty: only calls without a key")
	flags.StringVar(&f.task, "task", "", "only of this task")
	f.given = flags.Changed
}

// any reports whether any of the flags is given.
func (f *callFilter) any() bool {
	return slices.ContainsFunc([]string{"status", "queue", "key", "task"}, f.given)
}

// read returns the filter, with statuses among those allowed.
func (f *callFilter) read(allowed []callqueue.Status) (admin.Filter, error) {
	filter := admin.Filter{Queue: f.queue, Task: f.task}
	switch {
	case f.given("queue") && f.queue == "":
		return filter, usagef("--queue is empty; leave it out for any queue")
	case f.given("task") && f.task == "":
		return filter, usagef("--task is empty; leave it out for any task")
	case f.given("status") && len(f.status) == 0:
		return filter, usagef("--status is empty; leave it out, or name some of %s", joined(allowed, ", "))
	case f.given("key"):
		filter.Key = &f.key
	}
	for _, name := range f.status {
		status := callqueue.Status(strings.TrimSpace(name))
		switch {
		case !slices.Contains(callqueue.Statuses(), status):
			return filter, usagef("--status %q is not a status: %s", name, joined(callqueue.Statuses(), ", "))
		case !slices.Contains(allowed, status):
			return filter, usagef("--status %s: this is for calls that are %s", status, joined(allowed, ", "))
		}
		filter.Statuses = append(filter.Statuses, status)
	}
	return filter, nil
}

// joined writes a list with a separator.
func joined[T any](list []T, separator string) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = fmt.Sprint(v)
	}
	return strings.Join(texts, separator)
}

func callsListCommand(a *app) *cobra.Command {
	var f callFilter
	var filter admin.Filter
	var limit int
	var before int64
	cmd := &cobra.Command{
		Use: "list", Short: "List calls, newest first",
		Long: "List calls, newest first. stderr says how to get the next page.",
		Args: cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			filter, err = f.read(callqueue.Statuses())
			switch {
			case err != nil:
				return err
			case limit < 1 || limit > 10_000:
				return usagef("--limit is %d, outside 1 to 10000", limit)
			case cmd.Flags().Changed("before") && before < 1:
				return usagef("--before is %d, and ids begin with 1", before)
			}
			filter.Before = before
			return nil
		},
		RunE: a.query(func(ctx context.Context, db *database, _ []string) error {
			return listCalls(ctx, a, db, filter, limit)
		}),
	}
	f.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", 50, "how many at most")
	cmd.Flags().Int64Var(&before, "before", 0, "only ids below this one: the next page")
	return cmd
}

func listCalls(ctx context.Context, a *app, db *database, f admin.Filter, limit int) error {
	calls, err := admin.ListCalls(ctx, db.Pool, f, limit)
	if err != nil {
		return err
	}
	if len(calls) == limit {
		fmt.Fprintf(a.stderr, "the next page: --before %d\n", calls[len(calls)-1].ID)
	}
	return printRows(a, calls, table[admin.Call]{
		"ID,QUEUE,TASK,KEY,STATUS,ATTEMPTS,RUN AT,FINISHED AT,ERROR", func(c admin.Call) []any {
			return []any{
				c.ID, short(c.Queue), short(c.Task), short(dash(c.Key)), statusText(c.Status, c.Running),
				c.Attempts, c.RunAt, c.FinishedAt, short(admin.Text(c.ErrorMessage)),
			}
		},
	})
}

func statusText(s callqueue.Status, running bool) string {
	if running {
		return string(s) + ", running"
	}
	return string(s)
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

// notFound is the error for ids without a call.
func notFound(ids []int64) error {
	return exitf(exitNotFound, "no such call: %s; it was never inserted here, or has been removed", joined(ids, ", "))
}

// eachCall reads and prints calls by their ids, and fails afterwards for those that do not exist.
func eachCall[T any](ctx context.Context, a *app, db *database, args []string,
	read func(call *callqueue.Record) (T, error), print func(T) error,
) error {
	ids, err := callIDs(args)
	if err != nil {
		return err
	}
	var calls []T
	var missing []int64
	for _, id := range ids {
		record, err := db.calls.Get(ctx, id)
		if errors.Is(err, callqueue.ErrNotFound) {
			missing = append(missing, id)
			continue
		}
		if err != nil {
			return err
		}
		call, err := read(record)
		if err != nil {
			return err
		}
		calls = append(calls, call)
	}
	if err := printCalls(a, calls, len(ids) == 1, print); err != nil {
		return err
	}
	if len(missing) > 0 {
		return notFound(missing)
	}
	return nil
}

// printCalls writes calls: as JSON an object where one was asked for, for people each with an empty
// line between.
func printCalls[T any](a *app, calls []T, one bool, print func(T) error) error {
	switch {
	case a.output == "json" && one && len(calls) == 1:
		return a.printJSON(calls[0])
	case a.output == "json" && one:
		return nil
	case a.output != "table":
		return printRows(a, calls, table[T]{})
	}
	for i, c := range calls {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		if err := print(c); err != nil {
			return err
		}
	}
	return nil
}
