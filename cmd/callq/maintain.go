package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/recovery"
)

const progressEvery = 2 * time.Second

func maintainCommand(a *app) *cobra.Command {
	return group("maintain", "Look after callq's tables: what the schedule does, now",
		maintainStatusCommand(a), retentionCommand(a), vacuumCommand(a), sweepCommand(a))
}

// tablesReport is what `maintain status` shows.
type tablesReport struct {
	Tables    []doctor.Table     `json:"tables"`
	Retention maintenance.Purged `json:"retention"`       // what it would remove
	Bytes     int64              `json:"retention_bytes"` // about what that takes
	Snapshot  *doctor.Holder     `json:"longest_snapshot"`
	End       string             `json:"longest_snapshot_end"` // what ends it
}

func maintainStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show how large callq's tables are, what retention would remove, and the longest snapshot",
		Long: "Show how large callq's tables are and how much of them is dead, what retention would remove, and who has\n" +
			"held a snapshot for longest, which keeps vacuum from removing dead rows. Reads all calls, in short\n" +
			"transactions.",
		RunE: a.connected(ledger.Settings(), func(ctx context.Context, db *database, _ []string) error {
			m, err := readMaintenance(ctx, db)
			if err != nil {
				return err
			}
			return a.show(m, func(w io.Writer) { printMaintenance(w, m) })
		}),
	}
}

func readMaintenance(ctx context.Context, db *database) (*tablesReport, error) {
	m := &tablesReport{}
	holders, err := doctor.Holders(ctx, db.Pool)
	if err != nil {
		return nil, fmt.Errorf("read snapshots: %w", err)
	}
	if len(holders) > 0 {
		m.Snapshot, m.End = &holders[0], holders[0].End()
	}
	if m.Tables, err = readTables(ctx, db); err != nil {
		return nil, err
	}
	keep := maintenance.Retention(db.cfg.Retention)
	if m.Retention, err = maintenance.DryRun(ctx, db.Pool, keep, progress(db.stderr, "retention: found")); err != nil {
		return nil, err
	}
	for _, t := range m.Tables {
		rows := map[string]int64{"call_queue": m.Retention.Calls, "call_attempts": m.Retention.Attempts}[t.Name]
		if rows > 0 {
			m.Bytes += int64(float64(t.All()-t.FreeBytes) * min(1, float64(rows)/float64(max(t.LiveRows, rows))))
		}
		for _, at := range []*time.Time{t.LastVacuum, t.LastAnalyze} {
			if at != nil {
				*at = at.UTC()
			}
		}
	}
	return m, nil
}

func printMaintenance(to io.Writer, m *tablesReport) {
	table[doctor.Table]{"TABLE,SIZE,INDEXES,ROWS,DEAD,UNUSED,LAST VACUUM", func(t doctor.Table) []any {
		return []any{
			t.Name, doctor.Size(t.Bytes), doctor.Size(t.IndexBytes), fmt.Sprint("~", t.LiveRows), fmt.Sprint("~", t.DeadRows),
			"~" + doctor.Size(t.FreeBytes), t.LastVacuum,
		}
	}}.print(to, m.Tables)
	fmt.Fprintf(to, "\nretention would remove %d calls and %d attempts, about %s\n",
		m.Retention.Calls, m.Retention.Attempts, doctor.Size(m.Bytes))
	if m.Snapshot == nil {
		fmt.Fprintln(to, "nobody holds a snapshot")
		return
	}
	fmt.Fprintf(to, "longest snapshot: %s\n  to end it: %s\n", printable(m.Snapshot.String()), printable(m.End))
}

func retentionCommand(a *app) *cobra.Command {
	var given maintenance.Retention
	flags := map[string]*time.Duration{"done": &given.Done, "failed": &given.Failed, "cancelled": &given.Cancelled}
	dryRun := false
	cmd := &cobra.Command{
		Use: "retention", Short: "Remove calls that ended longer ago than they are kept",
		Long: "Remove calls that ended longer ago than they are kept, and what the ledger no longer needs of them.\n" +
			"That frees no unit of a limit.",
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			for name, keep := range flags {
				if cmd.Flags().Changed(name) && *keep < time.Second {
					return usagef("--%s is %s, less than 1s", name, *keep)
				}
			}
			return nil
		},
		RunE: a.connected(ledger.Settings(), func(ctx context.Context, db *database, _ []string) error {
			return retain(ctx, db, maintenance.Retention{
				Done:      cmp.Or(given.Done, db.cfg.Retention.Done),
				Failed:    cmp.Or(given.Failed, db.cfg.Retention.Failed),
				Cancelled: cmp.Or(given.Cancelled, db.cfg.Retention.Cancelled),
			}, dryRun)
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count what would be removed")
	for name, calls := range map[string]string{"done": "calls that are done", "failed": "failed calls", "cancelled": "cancelled calls"} {
		durationVar(cmd.Flags(), flags[name], name, fmt.Sprintf("keep %s this long (default: retention.%s)", calls, name))
	}
	return cmd
}

func retain(ctx context.Context, db *database, keep maintenance.Retention, dryRun bool) error {
	verb, run, doing := "removed", maintenance.Purge, "removed"
	if dryRun {
		verb, run, doing = "would remove", maintenance.DryRun, "found"
	}
	r, err := run(ctx, db.Pool, keep, progress(db.stderr, doing))
	switch {
	case err != nil && !dryRun:
		return fmt.Errorf("%w; %d calls and %d attempts were removed before", err, r.Calls, r.Attempts)
	case err != nil:
		return err
	}
	return db.show(r, func(w io.Writer) {
		fmt.Fprintf(w, "%s %d calls and %d attempts of the ledger\n", verb, r.Calls, r.Attempts)
		if r.Kept > 0 {
			fmt.Fprintf(w, "kept %d rows that cannot be removed, the last for: %s\n", r.Kept, r.KeptFor)
		}
	})
}

// progress says how far retention is, where it takes long.
func progress(to io.Writer, verb string) func(maintenance.Purged) {
	next := time.Now().Add(progressEvery)
	return func(r maintenance.Purged) {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressEvery)
			fmt.Fprintf(to, "%s %d calls and %d attempts so far\n", verb, r.Calls, r.Attempts)
		}
	}
}

func sweepCommand(a *app) *cobra.Command {
	dryRun := false
	cmd := &cobra.Command{
		Use: "sweep", Short: "Recover what a crash left behind, all of it, now",
		Long: `Run the dispatchers' recovery now, until nothing is left to do: attempts whose workers were lost, that nobody
started or that Redis lost, expired calls, limits to open, parts of the backlog whose calls have mostly ended. It
also repairs the backlog: waiting calls that no claim would find are put back in line. That reads all calls.
Nothing is claimed or published.`,
		RunE: a.connected(ledger.Settings(), func(ctx context.Context, db *database, _ []string) error {
			return sweep(ctx, db, dryRun)
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what it would recover")
	return cmd
}

func sweep(ctx context.Context, db *database, dryRun bool) error {
	log := db.logger(db.cfg)
	client, err := openRedis(db.cfg, log)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := db.awaitRedis(ctx, db.cfg, client); err != nil {
		return err
	}
	d, err := dispatcher.New(dispatcher.Config{Pool: db.Pool, Redis: client, Logger: log})
	if err != nil {
		return err
	}
	verb, run := "RECOVERED", d.RecoverAll
	if dryRun {
		verb, run = "TO RECOVER", d.RecoverDryRun
	}
	swept, err := run(ctx)
	if err != nil {
		return err
	}
	return table[recovery.Recovered]{
		verb + ",COUNT", func(s recovery.Recovered) []any { return []any{s.Kind, s.Count} },
	}.show(db.app, swept)
}
