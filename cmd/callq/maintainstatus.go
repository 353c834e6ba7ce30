package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/maintenance"
)

// tablesReport is what `maintain status` shows.
type tablesReport struct {
	Tables    []doctor.Table     `json:"tables"`
	Retention maintenance.Purged `json:"retention"`       // what it would remove
	Bytes     int64              `json:"retention_bytes"` // about what that takes
	Snapshot  *doctor.Holder     `json:"longest_snapshot"`
	End       string             `json:"longest_snapshot_end"` // what ends it
}

func (p *program) maintainStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show how large callq's tables are, what retention would remove, and the longest snapshot",
		Long: "Show how large callq's tables are and how much of them is dead, what retention would remove, and who has\n" +
			"held a snapshot for longest, which keeps a vacuum from removing anything. All calls are looked at, in\n" +
			"short transactions.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.withPostgres(cmd.Context(), ledger.Settings(), func(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
				m, err := p.readMaintenance(ctx, pool, maintenance.Retention(cfg.Retention))
				if err != nil {
					return err
				}
				if p.output != "table" {
					return p.printJSON(m)
				}
				return p.printMaintenance(m)
			})
		},
	}
}

func (p *program) readMaintenance(
	ctx context.Context, pool *pgxpool.Pool, keep maintenance.Retention,
) (*tablesReport, error) {
	m := &tablesReport{}
	holders, err := doctor.Holders(ctx, pool)
	if err != nil {
		return nil, fmt.Errorf("read snapshots: %w", err)
	}
	if len(holders) > 0 {
		m.Snapshot, m.End = &holders[0], holders[0].End()
	}
	if m.Tables, err = doctor.Tables(ctx, pool); err != nil {
		return nil, fmt.Errorf("read tables: %w", err)
	}
	if m.Retention, err = maintenance.DryRun(ctx, pool, keep, p.retiring("retention: found")); err != nil {
		return nil, err
	}
	for _, t := range m.Tables {
		rows := map[string]int64{"call_queue": m.Retention.Calls, "call_attempts": m.Retention.Attempts}[t.Name]
		if rows > 0 {
			m.Bytes += int64(float64(t.All()-t.FreeBytes) * min(1, float64(rows)/float64(max(t.LiveRows, rows))))
		}
		inUTC(t.LastVacuum, t.LastAnalyze)
	}
	return m, nil
}

func (p *program) printMaintenance(m *tablesReport) error {
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	err := printTable(p.stdout, m.Tables,
		column[doctor.Table]{"TABLE", func(t doctor.Table) string { return t.Name }},
		column[doctor.Table]{"SIZE", func(t doctor.Table) string { return doctor.Size(t.Bytes) }},
		column[doctor.Table]{"INDEXES", func(t doctor.Table) string { return doctor.Size(t.IndexBytes) }},
		column[doctor.Table]{"ROWS", func(t doctor.Table) string { return "~" + count(t.LiveRows) }},
		column[doctor.Table]{"DEAD", func(t doctor.Table) string { return "~" + count(t.DeadRows) }},
		column[doctor.Table]{"UNUSED", func(t doctor.Table) string { return "~" + doctor.Size(t.FreeBytes) }},
		column[doctor.Table]{"LAST VACUUM", func(t doctor.Table) string { return instant(t.LastVacuum) }},
	)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "\nretention would remove %d calls and %d attempts, about %s\n",
		m.Retention.Calls, m.Retention.Attempts, doctor.Size(m.Bytes))
	if m.Snapshot == nil {
		fmt.Fprintln(p.stdout, "nobody holds a snapshot")
		return nil
	}
	fmt.Fprintf(p.stdout, "longest snapshot: %s\n  to end it: %s\n", printable(m.Snapshot.String()), printable(m.End))
	return nil
}

// rewriteTime is about how long writing so many bytes anew takes, with their indexes, on a disk that is not fast.
func rewriteTime(bytes int64) time.Duration {
	const bytesPerSecond = 50_000_000
	return max(time.Second, time.Duration(float64(bytes)/bytesPerSecond*float64(time.Second)).Round(time.Second))
}
