package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/recovery"
)

func maintainCommand(a *app) *cobra.Command {
	return group("maintain", "Look after callq's tables: what the schedule does, now",
		maintainStatusCommand(a), retentionCommand(a), vacuumCommand(a), sweepCommand(a))
}

// tablesReport is what `maintain status` shows.
type tablesReport struct {
	Tables    []doctor.Table     `json:"tables"`
	Retention maintenance.Purged `json:"retention"` // what it would remove
}

func maintainStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show how large callq's tables are, and what retention would remove",
		Long: "Show how large callq's tables are, how much of them is dead, and what retention would remove. Reads all\n" +
			"calls and attempts, in one statement. `callq doctor` says who keeps vacuum from removing dead rows.",
		RunE: a.connected(ledger.Settings(), maintainStatus),
	}
}

func maintainStatus(ctx context.Context, db *database, _ []string) (err error) {
	var m tablesReport
	if m.Tables, err = doctor.Tables(ctx, db.Pool); err != nil {
		return err
	}
	keep := maintenance.Retention(db.cfg.Retention)
	if m.Retention, err = maintenance.DryRun(ctx, db.Pool, keep); err != nil {
		return err
	}
	for _, t := range m.Tables {
		for _, at := range []*time.Time{t.LastVacuum, t.LastAnalyze} {
			if at != nil {
				*at = at.UTC()
			}
		}
	}
	return db.show(m, func(w io.Writer) { printMaintenance(w, &m) })
}

func printMaintenance(to io.Writer, m *tablesReport) {
	table[doctor.Table]{"TABLE,SIZE,INDEXES,ROWS,DEAD,UNUSED,LAST VACUUM", func(t doctor.Table) []any {
		return []any{
			t.Name, doctor.Size(t.Bytes), doctor.Size(t.IndexBytes), fmt.Sprint("~", t.LiveRows), fmt.Sprint("~", t.DeadRows),
			"~" + doctor.Size(t.FreeBytes), t.LastVacuum,
		}
	}}.print(to, m.Tables)
	fmt.Fprintf(to, "\nretention would remove %d calls and %d attempts\n", m.Retention.Calls, m.Retention.Attempts)
}

func retentionCommand(a *app) *cobra.Command {
	var given maintenance.Retention
	flags := map[string]*time.Duration{"done": &given.Done, "failed": &given.Failed, "cancelled": &given.Cancelled}
	dryRun := false
	cmd := &cobra.Command{
		Use: "retention", Short: "Remove calls that ended longer ago than they are kept",
		Long: "Remove calls that ended longer ago than they are kept, and what the ledger no longer needs of them.\n" +
			"That frees no unit of a limit.",
		RunE: a.connected(ledger.Settings(), func(ctx context.Context, db *database, _ []string) error {
			return retain(ctx, db, maintenance.Retention{
				Done:      cmp.Or(given.Done, db.cfg.Retention.Done),
				Failed:    cmp.Or(given.Failed, db.cfg.Retention.Failed),
				Cancelled: cmp.Or(given.Cancelled, db.cfg.Retention.Cancelled),
			}, dryRun)
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count what would be removed")
	for name, keep := range flags {
		durationVar(cmd.Flags(), keep, time.Second, name, fmt.Sprintf("keep %s calls this long (default: retention.%s)", name, name))
	}
	return cmd
}

func retain(ctx context.Context, db *database, keep maintenance.Retention, dryRun bool) error {
	if dryRun {
		r, err := maintenance.DryRun(ctx, db.Pool, keep)
		if err != nil {
			return err
		}
		return showPurged(db.app, "would remove", r)
	}
	r, err := maintenance.Purge(ctx, db.Pool, keep)
	if err != nil {
		return fmt.Errorf("%w; %d calls and %d attempts were removed before", err, r.Calls, r.Attempts)
	}
	return showPurged(db.app, "removed", r)
}

func showPurged(a *app, verb string, r maintenance.Purged) error {
	return a.show(r, func(w io.Writer) {
		fmt.Fprintf(w, "%s %d calls and %d attempts of the ledger\n", verb, r.Calls, r.Attempts)
		if r.Kept > 0 {
			fmt.Fprintf(w, "kept %d rows that cannot be removed, the last for: %s\n", r.Kept, r.KeptFor)
		}
	})
}

func sweepCommand(a *app) *cobra.Command {
	dryRun := false
	cmd := &cobra.Command{
		Use: "sweep", Short: "Recover what a crash left behind, all of it, now",
		Long: `Run the dispatchers' recovery now, until nothing is left to do: attempts whose workers were lost, that nobody
started or that Redis lost, expired calls, limits to open. It also repairs the backlog: waiting calls that no
claim would find are put back in line. That reads all calls. Nothing is claimed or published.`,
		RunE: a.connected(ledger.Settings(), func(ctx context.Context, db *database, _ []string) error {
			return sweep(ctx, db, dryRun)
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what it would recover")
	return cmd
}

func sweep(ctx context.Context, db *database, dryRun bool) error {
	return db.withRedis(ctx, db.cfg, func(client redis.UniversalClient) error {
		d, err := dispatcher.New(dispatcher.Config{Pool: db.Pool, Redis: client, Logger: db.logger(db.cfg)})
		if err != nil {
			return err
		}
		verb := "RECOVERED"
		if dryRun {
			verb = "TO RECOVER"
		}
		swept, err := d.Recover(ctx, dryRun)
		return table[recovery.Recovered]{
			verb + ",COUNT", func(s recovery.Recovered) []any { return []any{s.Kind, s.Count} },
		}.show(db.app, swept, err)
	})
}

func vacuumCommand(a *app) *cobra.Command {
	full, dryRun := false, false
	cmd := &cobra.Command{
		Use: "vacuum", Short: "VACUUM (ANALYZE) callq's tables, without blocking anything",
		Long: `VACUUM (ANALYZE) callq's tables: this blocks nothing, and lets their dead space be used again. --full rewrites the
tables that are mostly unused, one after the other, and returns the space to the disk. Each table is locked
meanwhile: nothing is inserted, claimed or recorded. So callq asks first, and refuses while calls are handed over
or run: pause the queues, and let what runs end.`,
		RunE: a.connected(commandSettings(), func(ctx context.Context, db *database, _ []string) error {
			if full {
				return vacuumFull(ctx, db, dryRun)
			}
			return vacuum(ctx, db, dryRun)
		}),
	}
	cmd.Flags().BoolVar(&full, "full", false, "VACUUM FULL those that are mostly unused: it locks them")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what it would do")
	return cmd
}

func vacuum(ctx context.Context, db *database, dryRun bool) error {
	if dryRun {
		tables, err := doctor.Tables(ctx, db.Pool)
		if err != nil {
			return err
		}
		return showVacuumed(db.app, "would vacuum", tables)
	}
	begun := time.Now()
	if err := maintenance.Vacuum(ctx, db.Pool); err != nil {
		return err
	}
	took := time.Since(begun).Round(time.Millisecond)
	return db.show(map[string]any{"vacuumed": true, "took_ms": took.Milliseconds()}, func(w io.Writer) {
		fmt.Fprintf(w, "vacuumed callq's tables in %s\n", took)
	})
}

func vacuumFull(ctx context.Context, db *database, dryRun bool) error {
	if err := maintenance.Analyze(ctx, db.Pool); err != nil {
		return err
	}
	tables, err := doctor.Tables(ctx, db.Pool)
	if err != nil {
		return err
	}
	var bloated []doctor.Table
	var names []string
	for _, t := range tables {
		if t.Bloated() {
			bloated, names = append(bloated, t), append(names, t.Name)
		}
	}
	if dryRun || len(bloated) == 0 {
		return showVacuumed(db.app, "would write anew", bloated)
	}
	// What runs could not be recorded.
	var open int64
	if err := db.QueryRow(ctx, `SELECT count(*) FROM call_open`).Scan(&open); err != nil {
		return fmt.Errorf("see what runs: %w", err)
	}
	if open > 0 {
		return fmt.Errorf("calls are handed over or run (%d), and would wait while tables are locked: pause the queues, and try again "+
			"when they have ended", open)
	}
	if err := db.confirm(ctx, fmt.Sprintf("Lock %s, and write them anew?", strings.Join(names, ", "))); err != nil {
		return err
	}
	err = maintenance.VacuumFull(ctx, db.Pool, names)
	if hasCode(err, "55P03") {
		return fmt.Errorf("%w; somebody uses the table: try again, or see `callq doctor` for who holds it", err)
	}
	if err != nil {
		return err
	}
	return showVacuumed(db.app, "wrote anew", bloated)
}

// showVacuumed shows tables as they are, or were.
func showVacuumed(a *app, verb string, tables []doctor.Table) error {
	return a.show(map[string]any{"tables": append([]doctor.Table{}, tables...)}, func(w io.Writer) {
		if len(tables) == 0 {
			fmt.Fprintln(w, "no table is mostly unused: nothing to do")
		}
		for _, t := range tables {
			fmt.Fprintf(w, "%s %s: %s, about %s unused\n", verb, t.Name, doctor.Size(t.All()), doctor.Size(t.FreeBytes))
		}
	})
}
