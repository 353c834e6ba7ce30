package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/words"
)

func routesCommand(a *app) *cobra.Command {
	return group("routes", "Show and try the rules between an INSERT and the queue", &cobra.Command{
		Use: "list", Short: "List the rules in force, and what each did so far",
		RunE: a.query(func(ctx context.Context, db *database, _ []string) error {
			routes, err := admin.ReadRoutes(ctx, db)
			return routeTable().show(a, routes, err)
		}),
	}, routesTestCommand(a), routesApplyCommand(a))
}

func routeTable() table[admin.Route] {
	return table[admin.Route]{"NO,RULE,CHANGED,DISCARDED,FAILED,LAST,ERROR", func(r admin.Route) []any {
		return []any{r.Number, short(r.Rule), r.Moved, r.Discarded, r.Failed, r.At, r.Error}
	}}
}

func routesTestCommand(a *app) *cobra.Command {
	c, data := admin.Unrouted{Queue: "default", Task: "http", Priority: 5, Cost: 1}, ""
	cmd := &cobra.Command{
		Use: "test [ID]", Short: "Say what would become of a call, rule by rule",
		Long: "Put a call through the rules in force, and print which it matches, and what would become of it: of the call with an\n" +
			"id, or of one that the flags describe. Nothing is written.",
		Args: cobra.MaximumNArgs(1),
	}
	cmd.RunE = a.query(func(ctx context.Context, db *database, args []string) (err error) {
		var routed *admin.Routed
		if len(args) == 0 {
			if c.Data, err = db.data(ctx, data); err != nil {
				return err
			}
			if !json.Valid(c.Data) {
				return usagef("--data is not JSON")
			}
			routed, err = admin.TestRoutes(ctx, db, c)
		} else {
			id, bad := strconv.ParseInt(args[0], 10, 64)
			if bad != nil {
				return usagef("%q is not the id of a call", args[0])
			}
			if routed, err = admin.TestRoutesOf(ctx, db, id); err == nil && routed == nil {
				return fmt.Errorf("call %d: %w", id, callqueue.ErrNotFound)
			}
		}
		if err != nil {
			return err
		}
		return db.show(routed, func(w io.Writer) { printRouted(w, routed) })
	})
	flags := cmd.Flags()
	flags.StringVar(&c.Queue, "queue", c.Queue, "its queue")
	flags.StringVar(&c.Task, "task", c.Task, "its task")
	flags.StringVar(&c.Key, "key", "", "its key")
	flags.Int16Var(&c.Priority, "priority", c.Priority, "its priority")
	flags.Int64Var(&c.Cost, "cost", c.Cost, "its cost")
	flags.StringVar(&data, "data", "{}", "its call_data: JSON, - for standard input, or @file")
	return cmd
}

func printRouted(w io.Writer, r *admin.Routed) {
	for _, rule := range r.Rules {
		fmt.Fprintln(w, "matches  ", rule)
	}
	for _, rule := range r.Failed {
		fmt.Fprintln(w, "fails    ", rule)
	}
	if r.Error != nil {
		fmt.Fprintln(w, "because  ", *r.Error)
	}
	switch {
	case r.Discard != nil:
		fmt.Fprintln(w, "becomes   cancelled:", *r.Discard)
		return
	case len(r.Rules) == 0:
		fmt.Fprintln(w, "becomes   what it is: no rule changes it")
		return
	}
	fmt.Fprintf(w, "becomes   queue %s, task %s, key %q, priority %d, cost %d\n", r.Queue, r.Task, r.Key, r.Priority, r.Cost)
	if r.RunIn != nil {
		fmt.Fprintf(w, "          %s later\n", *r.RunIn)
	}
	if r.ExpiresIn != nil {
		fmt.Fprintf(w, "          expires %s after run_at\n", *r.ExpiresIn)
	}
}

func routesApplyCommand(a *app) *cobra.Command {
	var waiting, dryRun bool
	cmd := &cobra.Command{
		Use: "apply --waiting", Short: "Put the calls that wait through the rules",
		Long: "Put the calls that wait through the rules in force, as if they were inserted now, but for their times. It prints how\n" +
			"many each rule would change and discard, and asks. New rules do not do that by themselves.",
		Args: cobra.NoArgs,
	}
	cmd.RunE = a.query(func(ctx context.Context, db *database, _ []string) error {
		if !waiting {
			return usagef("say --waiting: it is about the calls that wait. Rules come into force by SIGHUP, or callq config apply")
		}
		would, err := policy.RouteWaiting(ctx, db.DB, true)
		if err != nil {
			return err
		}
		show := table[policy.RoutedBy]{"RULE,CHANGED,DISCARDED,FAILED", func(r policy.RoutedBy) []any {
			return []any{short(r.Rule), r.Moved, r.Discarded, r.Failed}
		}}
		if dryRun || len(would) == 0 {
			return show.show(a, would, nil)
		}
		calls := int64(0)
		for _, r := range would {
			calls += r.Moved + r.Discarded
		}
		if err := a.confirm(ctx, fmt.Sprintf("Calls that wait would be changed or discarded %s, by %s;",
			words.Count(calls, "time"), words.Count(int64(len(would)), "rule"))); err != nil {
			return err
		}
		did, err := policy.RouteWaiting(ctx, db.DB, false)
		return show.show(a, did, err)
	})
	cmd.Flags().BoolVar(&waiting, "waiting", false, "the calls that wait")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what it would do")
	return cmd
}
