package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/words"
)

func limitsReplayCommand(a *app) *cobra.Command {
	back, rate := 24*time.Hour, ""
	cmd := &cobra.Command{
		Use: "replay LIMIT", Short: "Say how a limit's requests would have fared under another rate",
		Long: "Say how a limit's requests would have fared under another rate: how long they would have waited, how many at once,\n" +
			"and how much of the rate they would have used. It replays those that the ledger has, in the order in which they could\n" +
			"be made, with all units free at the beginning. When retries could be made it does not know: they take units, and\n" +
			"their waits are not told. Other limits, pauses and workers play no part. It changes nothing.",
		Example: "  callq limits replay stripe --rate 200/1m\n  callq limits replay sockets --rate 20 --since 7d -o json",
		Args:    cobra.ExactArgs(1),
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			if rate == "" {
				return errors.New("say under which rate: --rate 200/1m, or --rate 20 of a concurrency")
			}
			replay, err := admin.ReadReplayText(ctx, db, args[0], rate, back, 100_000)
			switch {
			case err != nil:
				return err
			case replay == nil:
				return unknownRule("limit", args[0])
			}
			return db.show(replay, func(w io.Writer) { printReplay(w, replay) })
		}),
	}
	cmd.Flags().StringVar(&rate, "rate", "", "the rate: units/window, or a number of a concurrency")
	cmd.Flags().Var(&textFlag{kind: "duration", set: func(text string) (err error) {
		if back, err = words.ParseDuration(text); err == nil && (back < time.Minute || back > 366*24*time.Hour) {
			err = fmt.Errorf("%s is not from 1m to 366d", text)
		}
		return err
	}}, "since", "for how long back: 1m to 366d (default: 24h)")
	return cmd
}

func printReplay(w io.Writer, r *admin.Replay) {
	fmt.Fprintf(w, "%s: %s since %s, %s of them retries\n\n", printable(r.Limit), words.Count(r.Requests, "request"), r.Since.Format(time.RFC3339), words.Number(r.Retries))
	if len(r.Rates) == 0 {
		fmt.Fprintln(w, "Of none it is known when it could be made: nothing can be replayed.")
		return
	}
	short := func(d time.Duration) string { return admin.About(d) }
	table[admin.Outcome]{"RATE,WAIT P50,P99,LONGEST,MOST WAITING,USED", func(o admin.Outcome) []any {
		if o.Rate == "" {
			return []any{"as it was", short(o.P50), short(o.P99), short(o.Longest), "-", "-"}
		}
		return []any{o.Rate, short(o.P50), short(o.P99), short(o.Longest), words.Number(o.Waiting), fmt.Sprintf("%.0f%%", 100*o.Used)}
	}}.print(w, append([]admin.Outcome{r.Was}, r.Rates...))
}
