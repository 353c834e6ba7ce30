package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
)

func callsCommand(a *app) *cobra.Command {
	const forms = "-o json prints an object for one ID and an array for several; -o jsonl\n" +
		"prints an object per line. Exit code 4 if an ID does not exist; the others are shown first."
	return group("calls", "List calls, say why they wait, retry, cancel and delete them",
		callsListCommand(a),
		&cobra.Command{
			Use: "get ID...", Short: "Show calls with every attempt",
			Long: "Show calls with every attempt. " + forms,
			Args: cobra.MinimumNArgs(1), PreRunE: checkIDs,
			RunE: a.query(eachCall(readShown, shown.print)),
		},
		&cobra.Command{
			Use: "why ID...", Short: "Say what calls wait for, or what became of them",
			Long: "Say everything that calls wait for, or what became of them. Limits are read without their locks, so the\n" +
				"answer may be slightly out of date. " + forms,
			Args: cobra.MinimumNArgs(1), PreRunE: checkIDs,
			RunE: a.query(eachCall(func(ctx context.Context, db *database, call *callqueue.Record) (admin.Why, error) {
				return admin.Explain(ctx, db.Pool, call)
			}, printWhy)),
		},
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
	for flag, empty := range map[string]bool{"queue": f.queue == "", "task": f.task == "", "status": len(f.status) == 0} {
		if f.given(flag) && empty {
			return filter, usagef("--%s is empty; leave it out for any %s", flag, flag)
		}
	}
	if f.given("key") {
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
	var flags callFilter
	var filter admin.Filter
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List calls, newest first",
		Long: "List calls, newest first. stderr says how to get the next page.",
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			before := filter.Before
			filter, err = flags.read(callqueue.Statuses())
			filter.Before = before
			switch {
			case err != nil:
				return err
			case limit < 1 || limit > 10_000:
				return usagef("--limit is %d, outside 1 to 10000", limit)
			case flags.given("before") && before < 1:
				return usagef("--before is %d, and ids begin with 1", before)
			}
			return nil
		},
		RunE: a.query(func(ctx context.Context, db *database, _ []string) error {
			calls, err := admin.ListCalls(ctx, db.Pool, filter, limit)
			if err != nil {
				return err
			}
			if len(calls) == limit {
				fmt.Fprintf(a.stderr, "the next page: --before %d\n", calls[len(calls)-1].ID)
			}
			return table[admin.Call]{"ID,QUEUE,TASK,KEY,STATUS,ATTEMPTS,RUN AT,FINISHED AT,ERROR", func(c admin.Call) []any {
				return []any{
					c.ID, short(c.Queue), short(c.Task), short(c.Key), statusText(c.Status, c.Running),
					c.Attempts, c.RunAt, c.FinishedAt, short(admin.Text(c.ErrorMessage)),
				}
			}}.show(a, calls, nil)
		}),
	}
	flags.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", 50, "how many at most")
	cmd.Flags().Int64Var(&filter.Before, "before", 0, "only ids below this one: the next page")
	return cmd
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

func checkIDs(_ *cobra.Command, args []string) error {
	_, err := callIDs(args)
	return err
}

// notFound is the error for ids without a call.
func notFound(ids []int64) error {
	return exitf(exitNotFound, "no such call: %s; it was never inserted here, or has been removed", joined(ids, ", "))
}

// eachCall reads and prints calls by their ids, and fails afterwards for those that do not exist.
func eachCall[T any](read func(context.Context, *database, *callqueue.Record) (T, error), print func(T, io.Writer)) action {
	return func(ctx context.Context, db *database, args []string) error {
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
			call, err := read(ctx, db, record)
			if err != nil {
				return err
			}
			calls = append(calls, call)
		}
		people := func(w io.Writer) {
			for i, c := range calls {
				if i > 0 {
					fmt.Fprintln(w)
				}
				print(c, w)
			}
		}
		switch {
		case len(ids) > 1:
			err = showRows(db.app, calls, people)
		case len(calls) == 1:
			err = db.show(calls[0], people)
		}
		if err == nil && len(missing) > 0 {
			err = notFound(missing)
		}
		return err
	}
}

func printWhy(e admin.Why, to io.Writer) {
	fmt.Fprintln(to, printable(fmt.Sprintf("call %d, %s: queue %s, task %s, key %s",
		e.ID, statusText(e.Status, e.Running), short(e.Queue), short(e.Task), short(dash(e.Key)))))
	for _, r := range e.Reasons {
		fmt.Fprintln(to, "  "+printable(r.Text))
	}
}

// shown is a call with its attempts.
type shown struct {
	*callqueue.Record
	Ledger []admin.Attempt `json:"ledger"`
}

func readShown(ctx context.Context, db *database, call *callqueue.Record) (shown, error) {
	ledger, err := admin.ReadAttempts(ctx, db, call.ID)
	return shown{call, ledger}, err
}

func (c shown) print(to io.Writer) {
	for field, value := range reflect.ValueOf(*c.Record).Fields() {
		fmt.Fprintf(to, "%-14s %s\n", field.Tag.Get("json"), cell(value.Interface()))
	}
	table[admin.Attempt]{"ATTEMPT,OUTCOME,CLAIMED AT,STARTED AT,FINISHED AT,WORKER,ERROR", func(t admin.Attempt) []any {
		return []any{t.Attempt, t.State(), t.ClaimedAt, t.StartedAt, t.FinishedAt, t.Worker, short(admin.Text(t.Error))}
	}}.below(to, c.Ledger)
}
