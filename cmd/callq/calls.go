package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/config"
)

func (p *program) callsCommand() *cobra.Command {
	return group("calls", "List calls, say why they wait, retry, cancel and delete them",
		p.callsListCommand(), p.callsGetCommand(), p.callsWhyCommand(),
		p.callsRetryCommand(), p.callsCancelCommand(), p.callsDeleteCommand())
}

// callFilter is the flags that say which calls.
type callFilter struct {
	status           []string
	queue, key, task string
}

func (f *callFilter) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.status, "status", nil, "only these: "+strings.Join(statusNames(allStatuses()), ","))
	flags.StringVar(&f.queue, "queue", "", "only of this queue")
	flags.StringVar(&f.key, "key", "", "only with this key; an empty one: only without")
	flags.StringVar(&f.task, "task", "", "only of this task")
}

// given says whether any of the flags is.
func (f *callFilter) given(cmd *cobra.Command) bool {
	return slices.ContainsFunc([]string{"status", "queue", "key", "task"}, cmd.Flags().Changed)
}

// read returns the filter, with statuses among those allowed.
func (f *callFilter) read(cmd *cobra.Command, allowed []callqueue.Status) (callqueue.Filter, error) {
	flags := cmd.Flags()
	filter := callqueue.Filter{Queue: f.queue, Task: f.task}
	for name, value := range map[string]string{"queue": f.queue, "task": f.task} {
		if flags.Changed(name) && value == "" {
			return filter, usagef("--%s is empty; leave it out for any %s", name, name)
		}
	}
	if flags.Changed("status") && len(f.status) == 0 {
		return filter, usagef("--status is empty; leave it out, or name some of %s", strings.Join(statusNames(allowed), ", "))
	}
	if flags.Changed("key") {
		filter.Key = &f.key
	}
	for _, name := range f.status {
		status := callqueue.Status(strings.TrimSpace(name))
		switch {
		case !slices.Contains(allStatuses(), status):
			return filter, usagef("--status %q is not a status: %s", name, strings.Join(statusNames(allStatuses()), ", "))
		case !slices.Contains(allowed, status):
			return filter, usagef("--status %s: this is for calls that are %s", status, strings.Join(statusNames(allowed), ", "))
		}
		filter.Statuses = append(filter.Statuses, status)
	}
	return filter, nil
}

func allStatuses() []callqueue.Status {
	return []callqueue.Status{
		callqueue.StatusNew, callqueue.StatusDispatched, callqueue.StatusDone,
		callqueue.StatusError, callqueue.StatusFailed, callqueue.StatusCancelled,
	}
}

func statusNames(list []callqueue.Status) []string {
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = string(s)
	}
	return names
}

func (p *program) callsListCommand() *cobra.Command {
	var f callFilter
	var limit int
	var before int64
	cmd := &cobra.Command{
		Use: "list", Short: "List calls, newest first",
		Long: "List calls, newest first. What the next page begins with is said on stderr.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := f.read(cmd, allStatuses())
			switch {
			case err != nil:
				return err
			case limit < 1 || limit > 10_000:
				return usagef("--limit is %d, outside 1 to 10000", limit)
			case cmd.Flags().Changed("before") && before < 1:
				return usagef("--before is %d, and ids begin with 1", before)
			}
			filter.Before = before
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				return p.listCalls(ctx, pool, filter, limit)
			})
		},
	}
	flags := cmd.Flags()
	f.add(cmd)
	flags.IntVar(&limit, "limit", 50, "how many at most")
	flags.Int64Var(&before, "before", 0, "only ids below this one: the next page")
	return cmd
}

func (p *program) listCalls(ctx context.Context, pool *pgxpool.Pool, f callqueue.Filter, limit int) error {
	client, err := callqueue.New(pool)
	if err != nil {
		return err
	}
	calls, err := client.List(ctx, f, limit)
	if err != nil {
		return err
	}
	if len(calls) == limit {
		fmt.Fprintf(p.stderr, "the next page: --before %d\n", calls[len(calls)-1].ID)
	}
	type call = callqueue.Summary
	return printRows(p, calls,
		column[call]{"ID", func(c call) string { return strconv.FormatInt(c.ID, 10) }},
		column[call]{"QUEUE", func(c call) string { return short(c.Queue) }},
		column[call]{"TASK", func(c call) string { return short(c.Task) }},
		column[call]{"KEY", func(c call) string { return short(dash(c.Key)) }},
		column[call]{"STATUS", func(c call) string { return statusText(c.Status, c.Running) }},
		column[call]{"ATTEMPTS", func(c call) string { return strconv.Itoa(c.Attempts) }},
		column[call]{"RUN AT", func(c call) string { return instant(&c.RunAt) }},
		column[call]{"FINISHED AT", func(c call) string { return instant(c.FinishedAt) }},
		column[call]{"ERROR", func(c call) string { return short(text(c.ErrorMessage)) }},
	)
}

func statusText(s callqueue.Status, running bool) string {
	if running {
		return string(s) + ", running"
	}
	return string(s)
}

func inUTC(times ...*time.Time) {
	for _, at := range times {
		if at != nil {
			*at = at.UTC()
		}
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

// notFound is the error for calls that there are not.
func notFound(ids []int64) error {
	err := fmt.Errorf("no such call: %s; it was never inserted here, or has been removed", joinIDs(ids))
	return &exitError{exitNotFound, err}
}

// asNotFound gives the error for calls that there are not its exit code.
func asNotFound(err error) error {
	if missing, ok := errors.AsType[*callqueue.NotFoundError](err); ok {
		return notFound(missing.IDs)
	}
	return err
}

func joinIDs(ids []int64) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = strconv.FormatInt(id, 10)
	}
	return strings.Join(texts, ", ")
}
