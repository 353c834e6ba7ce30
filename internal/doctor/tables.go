package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Table is the state of one of callq's tables.
type Table struct {
	Name        string     `json:"table" db:"name"`
	Bytes       int64      `json:"bytes" db:"bytes"`         // with TOAST
	IndexBytes  int64      `json:"index_bytes" db:"indexes"` // of its indexes
	LiveRows    int64      `json:"live_rows" db:"live"`      // as Postgres estimates
	DeadRows    int64      `json:"dead_rows" db:"dead"`      // not yet vacuumed
	FreeBytes   int64      `json:"free_bytes" db:"free"`     // that VACUUM FULL would give back: an estimate
	LastVacuum  *time.Time `json:"last_vacuum" db:"vacuumed"`
	LastAnalyze *time.Time `json:"last_analyze" db:"analyzed"`
}

// All is the table's size on disk, with its indexes.
func (t Table) All() int64 { return t.Bytes + t.IndexBytes }

// Bloated reports whether a VACUUM FULL is worth its lock.
func (t Table) Bloated() bool { return t.FreeBytes > worthBytes && t.FreeBytes > t.Bytes/2 }

const worthBytes = 8 << 20

// Tables returns callq's tables, the largest first.
func Tables(ctx context.Context, pool *pgxpool.Pool) ([]Table, error) {
	return collect[Table](ctx, pool, tablesSQL, ownTables())
}

// A row takes its columns, a header of 24 bytes, a line pointer of 4 and some padding. Of a page, the fillfactor's
// share less 24 bytes is used. TOAST is not estimated: it counts as in use. The number of rows is ANALYZE's or the
// counters', which a crash resets, whichever is more: too few would promise too much.
const tablesSQL = `
SELECT c.relname AS name, pg_table_size(c.oid) AS bytes, pg_indexes_size(c.oid) AS indexes,
    coalesce(s.n_live_tup, 0) AS live, coalesce(s.n_dead_tup, 0) AS dead,
    greatest(0, pg_relation_size(c.oid) - 8192 * ceil(greatest(c.reltuples, s.n_live_tup, 0) * (w.width + 32)
        / (8192 * f.fillfactor / 100 - 24)))::bigint AS free,
    greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed, greatest(s.last_analyze, s.last_autoanalyze) AS analyzed
FROM pg_class c
LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
CROSS JOIN LATERAL (
    SELECT coalesce(max(option_value::float) FILTER (WHERE option_name = 'fillfactor'), 100) AS fillfactor
    FROM pg_options_to_table(c.reloptions)
) f
CROSS JOIN LATERAL (
    SELECT coalesce(sum(p.avg_width * (1 - p.null_frac)), 0) AS width
    FROM pg_stats p WHERE p.schemaname = c.relnamespace::regnamespace::text AND p.tablename = c.relname
) w
WHERE c.relkind = 'r' AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('call_queue'))
  AND c.relname = ANY($1)
ORDER BY pg_total_relation_size(c.oid) DESC, c.relname`

func bloat(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	tables, err := Tables(ctx, pool)
	return judgeTables(tables), err
}

// Dead rows are normal up to a share, and on small tables.
const (
	deadMost  = 50_000
	deadShare = 0.5 // of the live rows
)

func judgeTables(tables []Table) (found []Finding) {
	for _, t := range tables {
		vacuumed := "it was never vacuumed"
		if t.LastVacuum != nil {
			vacuumed = "last vacuumed " + t.LastVacuum.UTC().Format("2006-01-02 15:04:05Z")
		}
		switch {
		case t.DeadRows > deadMost && float64(t.DeadRows) > deadShare*float64(t.LiveRows):
			found = append(found, one(Problem, fmt.Sprintf("%s has %d dead rows beside %d, %s", t.Name, t.DeadRows, t.LiveRows, vacuumed),
				"callq maintain vacuum; if they stay, end the old snapshots first")...)
		case t.Bloated():
			found = append(found, one(Note, fmt.Sprintf("%s takes %s, about %s of it unused", t.Name, Size(t.Bytes), Size(t.FreeBytes)),
				"it is used again as calls come; to give it back to the disk: callq maintain vacuum --full, which locks the table")...)
		}
	}
	return found
}
