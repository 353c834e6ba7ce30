package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/cmd/callq/config"
	"github.com/callq/callq/internal/ledger"
)

func (p *program) verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "Prove the rules from the ledger",
		Long: `Prove the rules from the ledger: no window of a limit held more than its rate, no attempt sent two
requests, no attempt is missing, every counter is what the rows say. It may run beside everything else.
Exit code 3, and the rows, when a rule does not hold.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.withPostgres(cmd.Context(), commandSettings(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				report, err := ledger.Verify(ctx, pool)
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
}

func (p *program) printReport(r *ledger.Report) error {
	if p.output != "table" {
		return p.printJSON(r)
	}
	if len(r.Limits) > 0 {
		err := printTable(p.stdout, r.Limits,
			column[ledger.LimitUse]{"LIMIT", func(l ledger.LimitUse) string { return l.Limit }},
			column[ledger.LimitUse]{"IN FORCE FROM", func(l ledger.LimitUse) string { return instant(&l.From) }},
			column[ledger.LimitUse]{"RATE", func(l ledger.LimitUse) string { return l.InForce().String() }},
			column[ledger.LimitUse]{"STARTS", func(l ledger.LimitUse) string { return strconv.FormatInt(l.Starts, 10) }},
			column[ledger.LimitUse]{"MOST IN A WINDOW", func(l ledger.LimitUse) string { return fmt.Sprintf("%d of %d", l.Most, l.InForce().Most()) }},
		)
		if err != nil {
			return err
		}
		fmt.Fprintln(p.stdout)
		p.printAbove(r.Limits)
	}
	p.printOpened(r.Opened)
	if len(r.Findings) > 0 {
		err := printTable(p.stdout, r.Findings,
			column[ledger.Violation]{"RULE THAT DOES NOT HOLD", func(v ledger.Violation) string { return v.Rule }},
			column[ledger.Violation]{"LIMIT", func(v ledger.Violation) string { return dash(v.Limit) }},
			column[ledger.Violation]{"CALL", func(v ledger.Violation) string { return number(v.CallID) }},
			column[ledger.Violation]{"ATTEMPT", func(v ledger.Violation) string { return number(int64(v.Attempt)) }},
			column[ledger.Violation]{"DETAIL", func(v ledger.Violation) string { return v.Detail }},
		)
		if err != nil {
			return err
		}
		fmt.Fprintln(p.stdout)
	}
	verdict := "every rule holds"
	if len(r.Findings) > 0 {
		verdict = fmt.Sprintf("%d rows break a rule", len(r.Findings))
	}
	fmt.Fprintf(p.stdout, "%d calls, %d attempts: %s\n", r.Calls, r.Attempts, verdict)
	return nil
}

// printAbove says which limits were charged more than the calls' costs said: no rule of callq's is broken, but
// the API may have been asked for more than the rate.
func (p *program) printAbove(limits []ledger.LimitUse) {
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

// printOpened says whose word the proof rests on.
func (p *program) printOpened(openings []ledger.Opening) {
	for _, o := range openings {
		fmt.Fprintf(p.stdout, "limit %s: the proof rests on the word of %s, who opened it at %s: %s\n",
			o.Limit, printable(o.By), instant(&o.At), printable(o.Reason))
	}
	if len(openings) > 0 {
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
