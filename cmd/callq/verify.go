package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/cmd/callq/config"
	"github.com/callq/callq/internal/ledger/verify"
)

func (p *program) verifyCommand() *cobra.Command {
	var since sinceFlag
	cmd := &cobra.Command{
		Use: "verify", Short: "Prove the rules from the ledger",
		Long: `Prove the rules from the ledger: no window of a limit held more than its rate, and no attempt sent two
requests or is missing. Each that may have been sent is charged to the limits that its queue had, and
every counter, status and version is what the other rows say. It may run beside everything else.
It says what the proof rests on. Exit code 3, and the rows, when a rule does not hold.`,
		Example: `  callq verify
  callq verify --since 24h
  callq verify --since 2026-11-01T00:00:00Z -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.withPostgres(cmd.Context(), commandSettings(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				report, err := verify.Run(ctx, pool, verify.Options{Since: time.Time(since)})
				if err != nil {
					return err
				}
				if err := p.printReport(report); err != nil {
					return err
				}
				if n := len(report.Findings); n > 0 {
					return &exitError{exitFindings, fmt.Errorf("verify: %d rows break a rule", n)}
				}
				return nil
			})
		},
	}
	cmd.Flags().Var(&since, "since", "look only at what came since then: a time, or so long ago (default: all)")
	return cmd
}

// sinceFlag is a moment, given as one or as how long ago it was.
type sinceFlag time.Time

func (f *sinceFlag) Type() string { return "time" }

func (f *sinceFlag) String() string {
	if time.Time(*f).IsZero() {
		return ""
	}
	return time.Time(*f).Format(time.RFC3339)
}

func (f *sinceFlag) Set(text string) error {
	if d, err := config.ParseDuration(text); err == nil {
		*f = sinceFlag(time.Now().Add(-d))
		return nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("write a time such as 2026-11-01T00:00:00Z, or how long ago, such as 24h or 7d")
	}
	*f = sinceFlag(t)
	return nil
}

func (p *program) printReport(r *verify.Report) error {
	if p.output != "table" {
		return p.printJSON(r)
	}
	if len(r.Limits) > 0 {
		err := printTable(p.stdout, r.Limits,
			column[verify.LimitUse]{"LIMIT", func(l verify.LimitUse) string { return l.Limit }},
			column[verify.LimitUse]{"IN FORCE FROM", func(l verify.LimitUse) string { return instant(&l.From) }},
			column[verify.LimitUse]{"RATE", func(l verify.LimitUse) string { return l.InForce().String() }},
			column[verify.LimitUse]{"STARTS", func(l verify.LimitUse) string { return strconv.FormatInt(l.Starts, 10) }},
			column[verify.LimitUse]{"MOST IN A WINDOW", func(l verify.LimitUse) string { return fmt.Sprintf("%d of %d", l.Most, l.InForce().Most()) }},
		)
		if err != nil {
			return err
		}
		fmt.Fprintln(p.stdout)
		p.printAbove(r.Limits)
	}
	if len(r.Findings) > 0 {
		err := printTable(p.stdout, r.Findings,
			column[verify.Violation]{"RULE THAT DOES NOT HOLD", func(v verify.Violation) string { return v.Rule }},
			column[verify.Violation]{"LIMIT", func(v verify.Violation) string { return dash(v.Limit) }},
			column[verify.Violation]{"CALL", func(v verify.Violation) string { return number(v.CallID) }},
			column[verify.Violation]{"ATTEMPT", func(v verify.Violation) string { return number(int64(v.Attempt)) }},
			column[verify.Violation]{"DETAIL", func(v verify.Violation) string { return v.Detail }},
		)
		if err != nil {
			return err
		}
		fmt.Fprintln(p.stdout)
	}
	fmt.Fprintln(p.stdout, "This rests on:")
	for _, what := range r.RestsOn {
		fmt.Fprintln(p.stdout, "- "+printable(what))
	}
	fmt.Fprintln(p.stdout)
	verdict := "every rule holds"
	if len(r.Findings) > 0 {
		verdict = fmt.Sprintf("%d rows break a rule", len(r.Findings))
	}
	fmt.Fprintf(p.stdout, "%d calls, %d attempts: %s\n", r.Calls, r.Attempts, verdict)
	return nil
}

// printAbove says which limits were charged more than the calls' costs said: no rule of callq's is broken, but
// the API may have been asked for more than the rate.
func (p *program) printAbove(limits []verify.LimitUse) {
	said := false
	for _, l := range limits {
		if l.Above > 0 {
			fmt.Fprintf(p.stdout, "limit %s: handlers settled %d units above what their calls had claimed; with them a window "+
				"held up to %d of %d: insert calls with an upper bound as cost\n", l.Limit, l.Above, l.MostSettled, l.InForce().Most())
			said = true
		}
	}
	if said {
		fmt.Fprintln(p.stdout)
	}
}

// number writes 0, which stands for none, as a dash.
func number(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}
