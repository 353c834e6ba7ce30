package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/words"
)

func verifyCommand(a *app) *cobra.Command {
	var options verify.Options
	cmd := &cobra.Command{
		Use: "verify", Short: "Prove the rules from the ledger",
		Long: `Prove the rules from the ledger: no window of a limit held more than its rate, and no attempt sent two
requests or is missing. Every attempt that may have been sent is charged to the limits that its queue had, and
every counter, status and version agrees with the other rows. It may run beside everything else, and says what
the proof rests on. If a rule does not hold, it prints the rows and exits with 3.`,
		Example: `  callq verify
  callq verify --since 24h
  callq verify --since 2026-11-01T00:00:00Z -o json`,
		RunE: a.connected(commandSettings(), func(ctx context.Context, db *database, _ []string) error {
			var found *verify.Report
			err := a.live(progress{what: "verify", about: true}, func(tell report) (err error) {
				options.Progress = tell
				found, err = verify.Run(ctx, db.DB, options)
				return err
			})
			if err != nil {
				return err
			}
			err = db.show(found, func(w io.Writer) { printProof(w, found) })
			if n := len(found.Findings); n > 0 && err == nil {
				return exitf(exitFindings, "verify: %s of a rule", words.Count(int64(n), "violation"))
			}
			return err
		}),
	}
	cmd.Flags().Var(&textFlag{kind: "time", set: func(text string) (err error) {
		if d, not := words.ParseDuration(text); not == nil {
			options.Since = time.Now().Add(-d)
		} else if options.Since, err = time.Parse(time.RFC3339, text); err != nil {
			return errors.New("write a time such as 2026-11-01T00:00:00Z, or how long ago, such as 24h or 7d")
		}
		return nil
	}}, "since", "look only at what came since then: a time, or so long ago (default: all)")
	return cmd
}

// printProof prints the report. By what was settled above the cost, a window may have held more than its rate: no claim can know.
func printProof(to io.Writer, r *verify.Report) {
	table[verify.LimitUse]{"LIMIT,IN FORCE FROM,RATE,STARTS,MOST IN A WINDOW,SETTLED ABOVE COST", func(l verify.LimitUse) []any {
		return []any{l.Limit, l.From, l.Rate.String(), l.Starts, fmt.Sprintf("%d of %d", l.Most, l.Rate.Most()), l.Above}
	}}.print(to, r.Limits)
	table[verify.ShareUse]{"SHARE,LIMIT,PART,UNITS,LEAST PART WHILE IT WAITED,LONGEST WAIT", func(s verify.ShareUse) []any {
		least := "-"
		if s.LeastPercent != nil {
			least = fmt.Sprintf("%.1f%% from %s", *s.LeastPercent, s.LeastFrom.Format(time.RFC3339))
		}
		return []any{s.Share, s.Limit, limit.Part(s.Percent), s.Units, least, time.Duration(s.LongestWait * float64(time.Millisecond)).Round(time.Millisecond).String()}
	}}.below(to, r.Shares)
	table[verify.Arrivals]{"LIMIT,ARRIVED BY ITS ANSWER,BY A LATER ANSWER,BY SLACK,ANSWERED LATER THAN SLACK,ASSUMED,IN DOUBT", func(a verify.Arrivals) []any {
		overdue := number(a.Overdue)
		if a.Overdue > 0 {
			overdue += fmt.Sprintf(", by up to %s", time.Duration(a.OverdueBy)*time.Millisecond)
		}
		return []any{a.Limit, a.Answered, number(a.Later), number(a.Slack), overdue, number(a.Assumed), number(a.InDoubt)}
	}}.below(to, r.Arrivals)
	for _, a := range r.Arrivals {
		for _, s := range a.Still {
			fmt.Fprintf(to, "\n%s stood still from %s to %s, under limit %s", printable(s.Host), s.From.Format(time.RFC3339), s.To.Format(time.RFC3339), printable(a.Limit))
		}
	}
	table[verify.Violation]{"RULE THAT DOES NOT HOLD,LIMIT,CALL,ATTEMPT,DETAIL", func(v verify.Violation) []any {
		return []any{v.Rule, v.Limit, number(v.CallID), number(int64(v.Attempt)), v.Detail}
	}}.below(to, r.Findings)
	fmt.Fprintln(to, "\nThis rests on:")
	for _, what := range r.RestsOn {
		fmt.Fprintln(to, "- "+printable(what))
	}
	verdict := "every rule holds"
	if len(r.Findings) > 0 {
		verdict = words.Count(int64(len(r.Findings)), "violation") + " of a rule"
	}
	fmt.Fprintf(to, "\n%s, %s: %s\n", words.Count(r.Calls, "call"), words.Count(r.Attempts, "attempt"), verdict)
}

// number writes 0, which stands for none, as a dash.
func number(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}
