package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// namesWithin is how long a shell waits for names, with what closing the connection takes.
const namesWithin = 750 * time.Millisecond

// The names of what is in force. Those of tasks are of workers, and of calls that wait.
const (
	limitNamesSQL = `SELECT name FROM callq.call_limits ORDER BY name`
	queueNamesSQL = `SELECT name FROM callq.call_queues ORDER BY name`
	taskNamesSQL  = `
SELECT unnest(tasks) AS name FROM callq.call_workers
UNION SELECT task FROM (SELECT task FROM callq.call_flows LIMIT 10000) f
UNION SELECT 'http'
ORDER BY name`
)

// completeNames has shells complete names: a command's first argument by how its use calls it, and flags by theirs. What names a
// file stays so.
func completeNames(a *app, cmd *cobra.Command) {
	for _, verb := range cmd.Commands() {
		completeNames(a, verb)
	}
	_, argument, _ := strings.Cut(cmd.Use, " ")
	argument, _, _ = strings.Cut(strings.Trim(argument, "[]"), " ")
	if argument == "NAME" { // of what the noun has
		argument = strings.ToUpper(strings.TrimSuffix(cmd.Parent().Name(), "s"))
	}
	if sql := map[string]string{"LIMIT": limitNamesSQL, "QUEUE": queueNamesSQL, "TASK": taskNamesSQL}[argument]; sql != "" {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.names(cmd.Context(), sql, begun), cobra.ShellCompDirectiveNoFileComp
		}
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if text, ok := f.Value.(*textFlag); ok && len(text.choices) > 0 {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, chooseSome(text.choices)) // there is such a flag, and no other function
		} else if sql := map[string]string{"queue": queueNamesSQL, "task": taskNamesSQL}[f.Name]; sql != "" {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
				return a.names(cmd.Context(), sql, begun), cobra.ShellCompDirectiveNoFileComp
			})
		}
	})
}

// chooseSome completes a list with commas by what it does not have yet.
func chooseSome(choices []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		before := begun[:strings.LastIndexByte(begun, ',')+1]
		var names []string
		for _, choice := range choices {
			if name := before + choice; strings.HasPrefix(name, begun) && !slices.Contains(strings.Split(before, ","), choice) {
				names = append(names, name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// names are those that a statement finds and that begin so. There are none if Postgres does not answer soon: a shell has no place for errors.
func (a *app) names(ctx context.Context, sql, begun string) []string {
	cfg, err := a.loadConfig()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, namesWithin)
	defer cancel()
	pool, err := openPool(ctx, cfg, commandSettings(), 1)
	if err != nil {
		return nil
	}
	defer closeSoon(pool)
	rows, _ := schemas(cfg).In(pool).Query(ctx, sql)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, begun) || printable(name) != name // what stands behind a tab is not the name's
	})
}
