package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/cmd/callq/config"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

func (p *program) limitsCommand() *cobra.Command {
	return group("limits", "Show the limits in force", &cobra.Command{
		Use: "list", Short: "List the limits in force, and what is used of them",
		Long: "List the limits in force, and what is used of them. Occupied and room are read without the limits'\n" +
			"locks: they are approximate, and nothing is decided by them.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				limits, err := readLimits(ctx, pool)
				if err != nil {
					return err
				}
				return printRows(p, limits, limitColumns()...)
			})
		},
	})
}

// limitRow is a limit in force.
type limitRow struct {
	Name      string        `json:"name" db:"name"`
	Rate      string        `json:"rate" db:"-"`
	Units     int64         `json:"units" db:"rate"`
	Window    time.Duration `json:"window_ns" db:"window_size"`
	Queues    []string      `json:"queues" db:"queues"`
	Occupied  int64         `json:"occupied" db:"occupied"` // approximate
	Room      int64         `json:"room" db:"-"`
	State     string        `json:"state" db:"state"`
	ShutUntil *time.Time    `json:"shut_until" db:"shut_until"`
	ChangedAt time.Time     `json:"changed_at" db:"published_at"`
	ChangedBy string        `json:"changed_by" db:"published_by"`
}

func limitColumns() []column[limitRow] {
	return []column[limitRow]{
		{"LIMIT", func(l limitRow) string { return l.Name }},
		{"RATE", func(l limitRow) string { return l.Rate }},
		{"QUEUES", func(l limitRow) string { return dash(strings.Join(l.Queues, ",")) }},
		{"OCCUPIED", func(l limitRow) string { return "~" + strconv.FormatInt(l.Occupied, 10) }},
		{"ROOM", func(l limitRow) string { return "~" + strconv.FormatInt(l.Room, 10) }},
		{"STATE", func(l limitRow) string {
			if l.ShutUntil != nil {
				return l.State + " until " + instant(l.ShutUntil)
			}
			return l.State
		}},
		{"CHANGED AT", func(l limitRow) string { return instant(&l.ChangedAt) }},
		{"BY", func(l limitRow) string { return l.ChangedBy }},
	}
}

func readLimits(ctx context.Context, db ledger.DB) ([]limitRow, error) {
	limits, err := collect[limitRow](ctx, db, "read limits", limitsSQL)
	if err != nil {
		return nil, err
	}
	for i := range limits {
		l := &limits[i]
		l.Rate = limit.Rate{Units: l.Units, Window: l.Window}.String()
		if l.State == "open" {
			l.Room = limit.Use{Rate: l.Units, Window: l.Window, Occupied: l.Occupied}.Room()
		}
		inUTC(&l.ChangedAt, l.ShutUntil)
	}
	return limits, nil
}

// As the claim counts what is occupied, but without locks. A limit that left the configuration, or
// that no queue uses, is idle; its row stays for what was claimed under it.
const limitsSQL = `
WITH marks AS (
    SELECT name, clock_timestamp() - window_size * 1.001 AS since FROM call_limits
), open AS (
    SELECT u.name, sum(u.cost) AS cost
    FROM call_open o
    CROSS JOIN LATERAL unnest(o.limits, o.costs) AS u (name, cost)
    JOIN call_limits l ON l.name = u.name
    JOIN marks m ON m.name = u.name
    WHERE CASE WHEN o.started_at IS NOT NULL
                AND coalesce(l.anchor, CASE o.task WHEN 'http' THEN 'start' ELSE 'finish' END) = 'start'
               THEN o.started_at + o.send_within + l.slack
               ELSE 'infinity' END > m.since
    GROUP BY u.name
), used AS (
    SELECT u.limit_name AS name, sum(u.used) AS cost
    FROM call_usage u JOIN marks m ON m.name = u.limit_name AND u.bucket > m.since
    GROUP BY u.limit_name
)
SELECT l.name, l.rate, l.window_size, l.queues, l.published_at, l.published_by,
    (coalesce(o.cost, 0) + coalesce(u.cost, 0))::bigint AS occupied,
    CASE
    WHEN cardinality(l.queues) = 0 THEN 'idle: no queue uses it'
    WHEN l.epoch <> callq_epoch() THEN 'shut: Postgres failed over or was restored'
    WHEN l.shut_until > clock_timestamp() THEN 'shut after a failover'
    WHEN l.complete_since IS NULL THEN 'shut: counting its usage'
    ELSE 'open' END AS state,
    CASE WHEN l.shut_until > clock_timestamp() THEN l.shut_until END AS shut_until
FROM call_limits l
LEFT JOIN open o ON o.name = l.name
LEFT JOIN used u ON u.name = l.name
ORDER BY l.name`
