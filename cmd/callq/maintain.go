package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/recovery"
	"github.com/callq/callq/internal/words"
)

func maintainCommand(a *app) *cobra.Command {
	return group("maintain", "Look after callq's tables: what the schedule does, now",
		&cobra.Command{
			Use: "status", Short: "Show how large callq's tables are, and how much of them is dead",
			Long: "Show how large callq's tables are, and how much of them is dead. `callq doctor` says who keeps vacuum from\n" +
				"removing dead rows, and `callq maintain retention --dry-run` what is old enough to be removed.",
			RunE: a.query(func(ctx context.Context, db *database, _ []string) error {
				tables, err := doctor.Tables(ctx, db.DB)
				return sizes("TABLE").show(a, tables, err)
			}),
		},
		retentionCommand(a), vacuumCommand(a), sweepCommand(a))
}

// sizes shows tables below a title.
func sizes(title string) table[doctor.Table] {
	return table[doctor.Table]{title + ",SIZE,INDEXES,ROWS,DEAD,UNUSED,LAST VACUUM", func(t doctor.Table) []any {
		return []any{
			t.Name, doctor.Size(t.Bytes), doctor.Size(t.IndexBytes), fmt.Sprint("~", t.LiveRows), fmt.Sprint("~", t.DeadRows),
			"~" + doctor.Size(t.FreeBytes), t.LastVacuum,
		}
	}}
}

func retentionCommand(a *app) *cobra.Command {
	dryRun := false
	cmd := &cobra.Command{
		Use: "retention", Short: "Remove calls that ended longer ago than they are kept",
		Long: "Remove calls that ended longer ago than they are kept, and what the ledger no longer needs of them.\n" +
			"That frees no unit of a limit. The configuration's `retention` says how long they are kept.",
		RunE: a.connected(ledger.Settings(), func(ctx context.Context, db *database, _ []string) error {
			verb := "removed"
			if dryRun {
				verb = "would remove"
			}
			var r maintenance.Purged
			if err := a.live(progress{what: "retention", about: true}, func(tell report) (err error) {
				if dryRun {
					r, err = maintenance.DryRun(ctx, db.DB, retention(db.cfg))
				} else {
					r, err = maintenance.PurgeAndTell(ctx, db.DB, retention(db.cfg), tell)
				}
				return err
			}); err != nil {
				return err
			}
			return a.show(r, func(w io.Writer) {
				fmt.Fprintf(w, "%s %s and %s of the ledger, and %s\n", verb,
					words.Count(r.Calls, "call"), words.Count(r.Attempts, "attempt"), words.Count(r.Results, "answer"))
				if r.Kept > 0 {
					fmt.Fprintf(w, "kept %s that cannot be removed, the last for: %s\n", words.Count(r.Kept, "row"), r.KeptFor)
				}
			})
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count what would be removed")
	return cmd
}

func sweepCommand(a *app) *cobra.Command {
	dryRun := false
	cmd := &cobra.Command{
		Use: "sweep", Short: "Recover what a crash left behind, all of it, now",
		Long: `Run the dispatchers' recovery now, until nothing is left to do: attempts whose workers were lost, that no worker
started or that Redis lost, expired calls, limits to open. It also repairs the backlog: waiting calls that no
claim would find are put back in line. That reads all calls. Nothing is claimed or published.`,
		RunE: a.connected(ledger.Settings(), func(ctx context.Context, db *database, _ []string) error {
			title := "RECOVERED"
			if dryRun {
				title = "TO RECOVER"
			}
			var recovered []recovery.Recovered
			err := db.withRedis(ctx, db.cfg, func(client redis.UniversalClient) error {
				return a.live(progress{what: "sweep"}, func(report) error {
					d, err := dispatcher.New(dispatcher.Config{
						Pool: db.pool, Schema: db.cfg.Postgres.Schema, TableSchema: db.cfg.Postgres.TableSchema, Redis: client, Logger: db.logger(db.cfg),
						Failover: policy.Failover(db.cfg.Postgres.Failover),
					})
					if err != nil {
						return err
					}
					recovered, err = d.Recover(ctx, dryRun)
					return err
				})
			})
			return table[recovery.Recovered]{
				title + ",COUNT", func(r recovery.Recovered) []any { return []any{r.Kind, r.Count} },
			}.show(a, recovered, err)
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what it would recover")
	return cmd
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
			if !dryRun {
				if err := a.live(progress{what: "vacuum"}, func(tell report) error {
					return maintenance.VacuumAndTell(ctx, db.DB, tell)
				}); err != nil {
					return err
				}
			}
			tables, err := doctor.Tables(ctx, db.DB)
			return sizes("TABLE").show(a, tables, err)
		}),
	}
	cmd.Flags().BoolVar(&full, "full", false, "VACUUM FULL those that are mostly unused: it locks them")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show the tables")
	return cmd
}

func vacuumFull(ctx context.Context, db *database, dryRun bool) error {
	if err := db.live(progress{what: "analyze"}, func(tell report) error { return maintenance.Analyze(ctx, db.DB, tell) }); err != nil {
		return err
	}
	tables, err := doctor.Tables(ctx, db.DB)
	if err != nil {
		return err
	}
	tables = slices.DeleteFunc(tables, func(t doctor.Table) bool { return !t.Bloated() })
	title := "MOSTLY UNUSED"
	if !dryRun && len(tables) > 0 {
		title = "WRITTEN ANEW"
		err = writeAnew(ctx, db, tables)
	}
	return sizes(title).show(db.app, tables, err)
}

// writeAnew refuses while calls run: how they end could not be recorded.
func writeAnew(ctx context.Context, db *database, tables []doctor.Table) error {
	var open int64
	if err := db.QueryRow(ctx, `SELECT count(*) FROM callq.call_open`).Scan(&open); err != nil {
		return fmt.Errorf("see what runs: %w", err)
	}
	if open > 0 {
		return fmt.Errorf("calls are handed over or run (%d), and would wait while tables are locked: pause the queues, and try again "+
			"when they have ended", open)
	}
	var names []string
	for _, t := range tables {
		names = append(names, t.Name)
	}
	if err := db.confirm(ctx, fmt.Sprintf("Lock %s, and write them anew?", strings.Join(names, ", "))); err != nil {
		return err
	}
	err := db.live(progress{what: "vacuum"}, func(tell report) error { return maintenance.VacuumFull(ctx, db.DB, names, tell) })
	if hasCode(err, "55P03") {
		err = fmt.Errorf("%w; somebody uses the table: try again, or see `callq doctor` for who holds it", err)
	}
	return err
}
