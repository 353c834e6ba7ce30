package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/budget"
)

func statusCommand(a *app) *cobra.Command {
	watch := false
	cmd := &cobra.Command{
		Use: "status", Short: "Show queues, limits, budgets, workers and the oldest call on one screen",
		Long: "Show queues, limits, budgets, workers and the oldest call on one screen. --watch repeats it until Ctrl-C; with\n" +
			"-o jsonl each screen is one line. What is free of budgets comes from Redis. Counts of waiting calls leave out\n" +
			"cancelled and deleted calls in the smallest queues and tasks, up to 3,000 calls together; the others count\n" +
			"them until claims have passed them. The oldest call is looked for among the first in line.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !watch {
				return a.query(func(ctx context.Context, db *database, _ []string) error { return showStatus(ctx, db, "") })(cmd, args)
			}
			err := a.connected(commandSettings(), watchStatus)(cmd, args)
			if cmd.Context().Err() != nil { // Ctrl-C is its good end
				return nil
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "show it every second, until Ctrl-C")
	return cmd
}

// watchStatus shows the status every second until ctx ends.
func watchStatus(ctx context.Context, db *database, _ []string) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	before := ""
	if isTerminal(db.stdout) {
		before = "\x1b[H\x1b[J" // go to the top left, and clear what is below
	}
	for {
		err := db.within(ctx, func(ctx context.Context) error { return showStatus(ctx, db, before) })
		if err != nil {
			return err
		}
		before = cmp.Or(before, "\n")
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// showStatus shows a screen. What comes before it is for people too.
func showStatus(ctx context.Context, db *database, before string) error {
	s, err := admin.ReadStatus(ctx, db.Pool)
	if err != nil {
		return err
	}
	readBudgets(ctx, db, s.Budgets)
	return db.show(s, func(w io.Writer) {
		fmt.Fprint(w, before)
		printStatus(w, s)
	})
}

func printStatus(to io.Writer, s *admin.Status) {
	printQueues(to, s.Queues, s.Unnamed)
	table[admin.Limit]{
		"LIMIT,RATE,QUEUES,OCCUPIED,ROOM,STATE", func(l admin.Limit) []any { return limitTable().cells(l)[:6] },
	}.below(to, s.Limits)
	table[admin.Budget]{"BUDGET,RATE,BURST,ON OUTAGE,FREE", func(b admin.Budget) []any {
		return []any{b.Name, b.Rate, b.Burst, b.OnOutage, freeText(b)}
	}}.below(to, s.Budgets)
	if text := s.OthersText(); text != "" {
		fmt.Fprintln(to, "\n"+printable(text))
	}
	for _, key := range slices.Sorted(maps.Keys(s.HTTPTask)) {
		fmt.Fprintf(to, "\nlive processes differ on %s\n", printable("http_task."+key))
		for _, w := range s.HTTPTask[key] {
			fmt.Fprintf(to, "  %s: %s\n", printable(strings.Join(w.By, ", ")), printable(w.Rule))
		}
		fmt.Fprintf(to, "  in force: %s\n", admin.EachOwn)
	}
	workerTable(s.At).below(to, s.Workers)
	if len(s.Workers) == 0 {
		fmt.Fprintln(to, "\nno workers: nothing is sent until one runs (callq serve, callq work)")
	}
	for _, t := range s.Unhandled {
		fmt.Fprintln(to, t)
	}
	switch {
	case s.Oldest != nil:
		queue, ago := printable(short(s.Oldest.Queue)), admin.Ago(s.At, s.Oldest.DueAt)
		fmt.Fprintf(to, "oldest due call: %d in %s, due %s\n", s.Oldest.ID, queue, ago)
	case slices.ContainsFunc(s.Queues, func(q admin.Queue) bool { return q.Due > 0 }):
		fmt.Fprintln(to, "oldest due call: none of those that stand first in line waits any more; "+
			"they are counted until a claim passes them")
	}
}

func workerTable(now time.Time) table[admin.Worker] {
	return table[admin.Worker]{"WORKER,POOL,TASKS,RUNNING,LAST HEARTBEAT", func(w admin.Worker) []any {
		beat := admin.Ago(now, w.BeatAt)
		if state := w.StateText(); state != "" {
			beat += ": " + state
		}
		return []any{w.ID, w.Pool, short(strings.Join(w.Tasks, ",")), fmt.Sprintf("%d of %d", w.Running, w.Slots), beat}
	}}
}

func freeText(b admin.Budget) string {
	switch {
	case b.Free == nil:
		return "unknown: " + short(b.Unknown)
	case b.Waiting > 0:
		return fmt.Sprintf("%d; draws wait for up to %s", *b.Free, b.Waiting.Round(time.Millisecond))
	}
	return fmt.Sprint(*b.Free)
}

// readBudgets asks Redis, which a status without budgets does not need, what is free. Where Redis
// does not answer, each budget says so.
func readBudgets(ctx context.Context, db *database, budgets []admin.Budget) {
	if len(budgets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	client, err := openRedis(db.cfg)
	if err == nil {
		defer client.Close()
	}
	for i := range budgets {
		b := &budgets[i]
		var free int64
		if err == nil {
			free, b.Waiting, err = budget.Look(ctx, client, b.Name, b.Rule())
		}
		if err != nil { // the others need not wait for it too
			b.Unknown = explained(err)
			continue
		}
		b.Free = &free
	}
}
