package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/config"
)

func statusCommand(a *app) *cobra.Command {
	watch := false
	cmd := &cobra.Command{
		Use: "status", Short: "Show queues, limits, budgets, workers and the oldest call on one screen",
		Long: "Show queues, limits, budgets, workers and the oldest call on one screen. --watch repeats it until Ctrl-C; on a\n" +
			"terminal it fills the screen, with what is in trouble first, until q; with -o jsonl each screen is one line. What is\n" +
			"free of budgets comes from Redis. A call that was cancelled or deleted counts as waiting until a claim has passed it.\n" +
			"The oldest call is looked for among the first in line.",
		RunE: a.connected(commandSettings(), func(ctx context.Context, db *database, _ []string) error {
			if watch {
				return watchStatus(ctx, db)
			}
			return showStatus(ctx, db, "")
		}),
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "show it every second, until Ctrl-C, or q on a terminal")
	return cmd
}

// watchStatus shows the status every second until ctx ends, which is its good end.
func watchStatus(ctx context.Context, db *database) error {
	if db.output == "table" && isTerminal(db.stdout) {
		return watchOnTerminal(ctx, db)
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if err := showStatus(ctx, db, "\n"); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// showStatus shows a screen. What comes before it is for people too.
func showStatus(ctx context.Context, db *database, before string) error {
	s, err := readStatus(ctx, db)
	if err != nil {
		return err
	}
	return db.show(s, func(w io.Writer) {
		fmt.Fprint(w, before)
		printStatus(w, s)
	})
}

// readStatus reads what a screen shows, within --timeout.
func readStatus(ctx context.Context, db *database) (s *admin.Status, err error) {
	err = db.within(ctx, func(ctx context.Context) error {
		if s, err = admin.ReadStatus(ctx, db.DB); err == nil {
			readBudgets(ctx, db.cfg, s.Budgets)
		}
		return err
	})
	return s, err
}

func printStatus(to io.Writer, s *admin.Status) {
	if text := s.StandbyText(); text != "" {
		fmt.Fprintf(to, "%s\n\n", text)
	}
	fmt.Fprintln(to, printable(s.Verdict.Headline)+".")
	for _, p := range s.Verdict.Points {
		fmt.Fprintf(to, "%-8s %s\n", p.Level, printable(p.What))
		if p.Fix != "" {
			fmt.Fprintf(to, "%-8s %s\n", "", printable(p.Fix))
		}
	}
	fmt.Fprintln(to)
	queueTable().print(to, s.Queues)
	table[admin.Limit]{
		"LIMIT,RATE,QUEUES,OCCUPIED,ROOM,STATE", func(l admin.Limit) []any { return limitTable().cells(l)[:6] },
	}.below(to, s.Limits)
	budgetTable().below(to, s.Budgets)
	routeTable().below(to, s.Routes)
	table[admin.Worker]{"WORKER,POOL,TASKS,RUNNING,LAST HEARTBEAT", func(w admin.Worker) []any {
		beat := admin.Ago(s.At, w.BeatAt)
		if !w.Live {
			beat += ": stopped or dead"
		}
		return []any{w.ID, w.Pool, short(strings.Join(w.Tasks, ",")), fmt.Sprintf("%d of %d", w.Running, w.Slots), beat}
	}}.below(to, s.Workers)
	fmt.Fprintln(to)
	if s.Oldest != nil {
		queue, ago := printable(short(s.Oldest.Queue)), admin.Ago(s.At, s.Oldest.DueAt)
		fmt.Fprintf(to, "oldest due call: %d in %s, due %s\n", s.Oldest.ID, queue, ago)
	}
}

func budgetTable() table[admin.Budget] {
	return table[admin.Budget]{"BUDGET,RATE,BURST,ON OUTAGE,FREE", func(b admin.Budget) []any {
		return []any{b.Name, b.Rate, b.Burst, b.OnOutage, freeText(b)}
	}}
}

func freeText(b admin.Budget) string {
	switch {
	case b.Free == nil:
		return "unknown: " + short(b.Unknown)
	case b.Shape.PerKey:
		return "per key"
	}
	text := fmt.Sprint(*b.Free)
	if b.Waiting > 0 {
		text += fmt.Sprintf("; draws wait for up to %s", b.Waiting.Round(time.Millisecond))
	}
	if b.Promised > 0 {
		text += fmt.Sprintf("; %d promised", b.Promised)
	}
	if b.Multiplier < 1 {
		text += fmt.Sprintf("; throttled to %.0f %%", 100*b.Multiplier)
	}
	for _, queue := range slices.Sorted(maps.Keys(b.NeededBy)) {
		if n := b.NeededBy[queue]; *b.Free-b.Promised < n {
			text += fmt.Sprintf("; too few for a call of %s (%d)", queue, n)
		}
	}
	return text
}

// readBudgets asks Redis, which a status without budgets does not need, what is free. Where Redis
// does not answer, each budget's line has that.
func readBudgets(ctx context.Context, cfg *config.Config, budgets []admin.Budget) {
	if len(budgets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	client, away := openBudgets(cfg)
	if client == nil && away == nil {
		client, away = openRedis(cfg)
	}
	if away == nil {
		defer client.Close()
	}
	for i := range budgets {
		b := &budgets[i]
		var s []budget.State
		rule := b.Rule()
		err := cmp.Or(away, rule.Check())
		if err == nil {
			s, err = budget.Peek(ctx, client, budget.Units{Name: b.Name, Rule: rule, Key: b.Asker.Key, N: max(1, b.NeededBy[b.Asker.Queue])})
			if lasting, ok := errors.AsType[*budget.LastingError](err); ok {
				b.Fix = lasting.Fix
			} else {
				away = err // the others need not wait for it too
			}
		}
		if err != nil {
			b.Unknown = explained(err)
			continue
		}
		b.Free, b.Waiting, b.Promised, b.Multiplier, b.Until = &s[0].Free, s[0].Waiting, s[0].Promised, s[0].Multiplier, s[0].Until
	}
}
