package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

func limitsCommand(a *app) *cobra.Command {
	return group("limits", "Show, set and pause limits",
		&cobra.Command{
			Use: "list", Short: "List the limits in force, and what is used of them",
			Long: "List the limits in force, and what is used of them; for a limit per key, of the key that uses most.\n" +
				"Occupied and room are read without the limits' locks: they are approximate, and decide nothing.",
			RunE: a.query(func(ctx context.Context, db *database, _ []string) error {
				limits, err := admin.ReadLimits(ctx, db)
				return limitTable().show(a, limits, err)
			}),
		},
		&cobra.Command{
			Use: "get LIMIT", Short: "Show one limit: what is used of it, its pauses, its last changes",
			Args: cobra.ExactArgs(1),
			RunE: a.query(showLimit),
		},
		limitsAdviseCommand(a), limitsForecastCommand(a), limitsHistoryCommand(a), limitsReplayCommand(a), limitsSetCommand(a),
		&cobra.Command{
			Use: "reset LIMIT", Short: "Put the configuration's rate in force again",
			Args: cobra.ExactArgs(1),
			RunE: a.query(func(ctx context.Context, db *database, args []string) error {
				changes, err := policy.Reset(ctx, db.DB, args[0], ledger.By(operator()))
				return a.showChanges("limit", args[0], changes, err)
			}),
		},
		pauseCommand(a, "limit"), resumeCommand(a, "limit"), limitsOpenCommand(a))
}

func limitTable() table[admin.Limit] {
	return table[admin.Limit]{"LIMIT,RATE,QUEUES,OCCUPIED,ROOM,STATE,CHANGED AT,BY", func(l admin.Limit) []any {
		rate := l.Rate
		if l.Config != nil {
			rate += " (set; config: " + *l.Config + ")"
		}
		occupied, room := fmt.Sprint("~", l.Occupied), fmt.Sprint("~", l.Room)
		return []any{l.Name, rate, l.Queues, occupied, room, l.StateText(), l.ChangedAt, l.ChangedBy}
	}}
}

func showLimit(ctx context.Context, db *database, args []string) error {
	d, err := admin.ReadLimit(ctx, db, args[0])
	switch {
	case err != nil:
		return err
	case d == nil:
		return unknownRule("limit", args[0])
	}
	return db.show(d, func(w io.Writer) {
		limitTable().print(w, []admin.Limit{d.Limit})
		if text := d.RemoteText(); text != "" {
			fmt.Fprintln(w, text)
		}
		table[admin.Share]{"SHARE,PART,UNITS,USED IN A MINUTE,WAITING", func(s admin.Share) []any {
			return []any{s.Name, limit.Part(s.Percent), strconv.FormatFloat(s.Units, 'f', -1, 64), s.Used, s.Waiting}
		}}.below(w, d.Parts)
		table[admin.Pause]{"PAUSED KEY,UNTIL,REASON,SINCE,BY", func(p admin.Pause) []any {
			return []any{p.Key, p.Until, p.Reason, p.At, p.By}
		}}.below(w, d.Pauses)
		table[admin.Change]{
			"CHANGED AT,BY,CHANGE", func(c admin.Change) []any { return []any{c.At, c.By, c.Change} },
		}.below(w, d.Changes)
	})
}

func limitsAdviseCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "advise LIMIT", Short: "Find the limit that fits what the API refused",
		Long: "Find the limit that fits what the API refused: its algorithm, rate, burst or spacing, the evidence, what part of the\n" +
			"API's rate it would use, what that rests on, and the line of config.yaml to write. It replays the newest requests\n" +
			"under the limit, 10,000 at most, through models of limiters; of a limit per key those of the key that was refused\n" +
			"most. Where the ledger cannot tell, it explains why, and what to try. It changes nothing.",
		Args: cobra.ExactArgs(1),
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			advice, err := admin.ReadAdvice(ctx, db, args[0])
			switch {
			case err != nil:
				return err
			case advice == nil:
				return unknownRule("limit", args[0])
			}
			return db.show(advice, func(w io.Writer) {
				for line := range strings.Lines(advice.Text()) {
					fmt.Fprintln(w, printable(strings.TrimSuffix(line, "\n")))
				}
			})
		}),
	}
}

func limitsForecastCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "forecast [LIMIT]", Short: "Say when the last of the calls that wait now for each limit starts",
		Long: "Print when the last of the calls that wait now for each limit starts: with all other limits of their queues,\n" +
			"the turns of keys, costs, hours and pauses. It assumes that no calls are added, that each takes one attempt, and\n" +
			"as long as those of the last day did.",
		Args: cobra.MaximumNArgs(1),
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			if len(args) == 0 {
				args = nil // all
			}
			rows, err := admin.ReadForecasts(ctx, db, args)
			if err == nil && len(args) > 0 && len(rows) == 0 {
				err = unknownRule("limit", args[0])
			}
			return table[admin.Forecast]{"LIMIT,RATE,WAITING,MOST OF A KEY,LAST STARTS IN,AT", func(f admin.Forecast) []any {
				key, busy := "-", "unknown: "+f.State
				if f.Key != nil && f.OfKey > 0 {
					key = fmt.Sprintf("%d (%s)", f.OfKey, short(dash(*f.Key)))
				}
				if f.Lasts != nil {
					busy = "~" + f.Lasts.Round(time.Second).String()
				}
				return []any{f.Limit, f.Rate, f.Waiting, key, busy, f.Until}
			}}.show(a, rows, err)
		}),
	}
}

func limitsSetCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "set LIMIT RATE", Short: "Put another rate in force until it is reset",
		Long: "Put another rate in force, over the configuration's, until `limits reset`: 20/s for a rate, 20 for a\n" +
			"concurrency. Algorithm, burst, time zone, tolerance and overrides stay. When it returns, nothing starts beyond\n" +
			"the new rate: calls that were claimed and had not started have been recalled.",
		Args: cobra.ExactArgs(2),
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			rate, err := limit.ParseSetting(args[1])
			if err != nil {
				return usagef("%w", err)
			}
			changes, err := policy.Override(ctx, db.DB, args[0], rate, ledger.By(operator()))
			return a.showChanges("limit", args[0], changes, err)
		}),
	}
}

func limitsOpenCommand(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "open LIMIT --reason TEXT", Short: "Say that nothing is missing of what a limit has used",
		Long: "Open a limit early, if you know that nothing was sent without callq's knowledge, and that nothing is still on its\n" +
			"way. After a failover or a restore, what was left of a limit counts as used, for it may have been given out. A\n" +
			"new limit is shut if retention has removed what was sent before. A request without an answer counts until its\n" +
			"host answers a later one. All end by themselves: `limits list` says when. The reason goes into the audit, and\n" +
			"`verify` says that its proof rests on it. This does not end a pause: see `limits resume`.",
		Args: cobra.ExactArgs(1),
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usagef("--reason: it is empty: say why you know that nothing was sent which callq does not know of")
			}
			changes, err := policy.Open(ctx, db.DB, args[0], ledger.Author{By: operator(), Reason: reason})
			return a.showChanges("limit", args[0], changes, err)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why nothing is missing, for the audit and verify")
	_ = cmd.MarkFlagRequired("reason") // there is such a flag
	return cmd
}

// showChanges prints what changed, a line each; as JSON a list.
func (a *app) showChanges(what, name string, changes []string, err error) error {
	switch {
	case errors.Is(err, ledger.ErrUnknown):
		return unknownRule(what, name)
	case err != nil:
		return err
	}
	return a.show(map[string]any{"changes": append([]string{}, changes...)}, func(w io.Writer) {
		if len(changes) == 0 {
			fmt.Fprintln(w, what, name+": as it was")
		}
		for _, change := range changes {
			fmt.Fprintln(w, printable(change))
		}
	})
}

func unknownRule(what, name string) error {
	name = cmp.Or(printable(short(name)), `""`)
	return exitf(exitNotFound, "no such %s: %s; `callq %ss list` shows those in force", what, name, what)
}

// operator is who runs the command, for the audit.
func operator() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return name + "@" + host
}
