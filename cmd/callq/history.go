package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/words"
)

const sparkWidth = 60

func limitsHistoryCommand(a *app) *cobra.Command {
	back := time.Hour
	cmd := &cobra.Command{
		Use: "history LIMIT", Short: "Draw what was used of a limit, what waited for it, and what the API refused, minute by minute",
		Long: "Draw what was used of a limit, what waited for it, and what the API refused, minute by minute. Dispatchers note each\n" +
			"minute; retention.history says for how long that is kept. With -o json it prints the minutes.",
		Args: cobra.ExactArgs(1),
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			limit, h, err := admin.ReadLimitHistory(ctx, db, args[0], back)
			switch {
			case err != nil:
				return err
			case limit == nil:
				return unknownRule("limit", args[0])
			}
			minutes := h.Limits[args[0]]
			if minutes == nil {
				minutes = []admin.LimitMinute{}
			}
			return db.show(minutes, func(w io.Writer) { drawLimit(w, limit, h, minutes) })
		}),
	}
	cmd.Flags().Var(&textFlag{kind: "duration", set: func(text string) (err error) {
		if back, err = words.ParseDuration(text); err == nil && (back < time.Minute || back > 366*24*time.Hour) {
			err = fmt.Errorf("%s is not from 1m to 366d", text)
		}
		return err
	}}, "since", "for how long back: 1m to 366d (default: 1h)")
	return cmd
}

func drawLimit(w io.Writer, l *admin.Limit, h *admin.Recent, minutes []admin.LimitMinute) {
	columns := func(of func(admin.LimitMinute) float64) []float64 {
		return admin.Columns(h, minutes, min(sparkWidth, int(h.Until.Sub(h.Since)/time.Minute)), func(m admin.LimitMinute) time.Time { return m.Minute }, of)
	}
	fmt.Fprintf(w, "%s: %s, from %s to %s\n\n", printable(l.Name), l.Rate, h.Since.Format(time.RFC3339), h.Until.Format(time.RFC3339))
	if len(minutes) == 0 {
		fmt.Fprintln(w, "Nothing was used of it, and nothing waited for it.")
		return
	}
	capacity, next, closed := 0.0, int64(0), map[string]int{}
	for _, m := range minutes {
		capacity = max(capacity, m.Capacity)
		next = max(next, nextUnit(m))
		for cause, seconds := range m.Closed {
			closed[cause] += seconds
		}
	}
	used := columns(func(m admin.LimitMinute) float64 { return float64(m.Used) })
	waiting := columns(func(m admin.LimitMinute) float64 { return float64(m.Waiting) })
	refused := columns(func(m admin.LimitMinute) float64 { return float64(m.Refused) })
	unit := "a minute"
	if l.Window == 0 {
		unit = "at once"
	}
	fmt.Fprintf(w, "used     %s  at most %.0f of %.0f %s\n", spark(used, max(capacity, slices.Max(used))), slices.Max(used), capacity, unit)
	fmt.Fprintf(w, "waiting  %s  at most %.0f\n", spark(waiting, slices.Max(waiting)), slices.Max(waiting))
	if most := slices.Max(refused); most > 0 {
		fmt.Fprintf(w, "refused  %s  at most %.0f a minute\n", spark(refused, most), most)
	}
	if next > 0 {
		waits := columns(func(m admin.LimitMinute) float64 { return float64(nextUnit(m)) })
		fmt.Fprintf(w, "wait     %s  at most %s for the next unit\n", spark(waits, slices.Max(waits)), admin.About(time.Duration(next)*time.Millisecond))
	}
	for _, cause := range admin.Causes {
		if seconds := closed[cause]; seconds > 0 {
			fmt.Fprintf(w, "\nclosed for %s: %s", words.Count(int64(seconds), "second"), cause)
		}
	}
	if len(closed) > 0 {
		fmt.Fprintln(w)
	}
}

// nextUnit is for how many ms a due call had to wait in a minute for the next unit.
func nextUnit(m admin.LimitMinute) int64 {
	if m.NextUnit == nil {
		return 0
	}
	return *m.NextUnit
}

// spark draws values from 0 to most, each in eighths of a line. What is more than nothing is seen.
func spark(values []float64, most float64) string {
	const bars = "▁▂▃▄▅▆▇█"
	line := make([]rune, len(values))
	for i, v := range values {
		line[i] = ' '
		if v > 0 && most > 0 {
			line[i] = []rune(bars)[min(int(v/most*8), 7)]
		}
	}
	return string(line)
}
