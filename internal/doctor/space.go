package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/admin"
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

// Bloated reports whether a VACUUM FULL is worth its lock.
func (t Table) Bloated() bool { return t.FreeBytes > worthBytes && t.FreeBytes > t.Bytes/2 }

const worthBytes = 8 << 20

// Tables returns callq's tables, the largest first.
func Tables(ctx context.Context, pool *pgxpool.Pool) ([]Table, error) {
	return admin.Collect[Table](ctx, pool, "read the sizes of tables", tablesSQL, ownTables())
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

func bloat(ctx context.Context, pool *pgxpool.Pool) (findings, error) {
	tables, err := Tables(ctx, pool)
	return judgeTables(tables), err
}

// Dead rows are normal up to a share, and on small tables.
const (
	deadMost  = 50_000
	deadShare = 0.5 // of the live rows
)

func judgeTables(tables []Table) (found findings) {
	for _, t := range tables {
		switch {
		case t.DeadRows > deadMost && float64(t.DeadRows) > deadShare*float64(t.LiveRows):
			vacuumed := "it was never vacuumed"
			if t.LastVacuum != nil {
				vacuumed = "last vacuumed " + admin.Instant(t.LastVacuum)
			}
			found.add(Problem, "callq maintain vacuum; if they stay, end the old snapshots first",
				"%s has %d dead rows beside %d, %s", t.Name, t.DeadRows, t.LiveRows, vacuumed)
		case t.Bloated():
			found.add(Note, "it is used again as calls come; to give it back to the disk: callq maintain vacuum --full, which locks "+
				"the table", "%s takes %s, about %s of it unused", t.Name, Size(t.Bytes), Size(t.FreeBytes))
		}
	}
	return found
}

// Size writes a number of bytes for people.
func Size(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// Holder keeps VACUUM from removing dead rows, because it may still see them: a session, a prepared transaction or a
// replication slot.
type Holder struct {
	Kind string        `json:"kind" db:"kind"` // session, prepared transaction, replication slot
	Name string        `json:"name" db:"name"` // its pid, gid or name
	Who  string        `json:"who" db:"who"`   // user and application
	Does string        `json:"does" db:"does"` // its state and statement
	Age  time.Duration `json:"age_ns" db:"age"`
	Xids int64         `json:"transactions" db:"xids"` // that began since
	End  string        `json:"-" db:"ending"`          // the statement that ends it
}

func (h Holder) String() string {
	age := fmt.Sprintf(" that is %s old", h.Age.Round(time.Second))
	if h.Age == 0 {
		age = fmt.Sprintf(", and %d transactions began since", h.Xids)
	}
	text := fmt.Sprintf("%s %s (%s) holds a snapshot%s", h.Kind, h.Name, h.Who, age)
	if h.Does != "" {
		text += ": " + h.Does
	}
	return text
}

// Holders returns all that hold a snapshot or a transaction, the oldest first.
func Holders(ctx context.Context, pool *pgxpool.Pool) ([]Holder, error) {
	return admin.Collect[Holder](ctx, pool, "read snapshots", holdersSQL)
}

// Sessions of other databases do not matter to this one's tables, nor does a vacuum. A slot has no age in time. Of a
// slot only what a standby's feedback holds counts, not the catalog's xmin.
const holdersSQL = `
SELECT kind, name, who, does, greatest(age, '0') AS age, xids, format(ends, name) AS ending
FROM (
    SELECT 'session' AS kind, pid::text AS name, concat_ws(', ', usename, nullif(application_name, '')) AS who,
        concat_ws(': ', CASE WHEN state <> 'active' THEN state END,
            left(regexp_replace(query, '\s+', ' ', 'g'), 80)) AS does,
        clock_timestamp() - coalesce(xact_start, backend_start) AS age,
        coalesce(age(coalesce(backend_xmin, backend_xid)), 0)::bigint AS xids, 'SELECT pg_terminate_backend(%s);' AS ends
    FROM pg_stat_activity
    WHERE (datname = current_database() OR backend_type = 'walsender') AND pid <> pg_backend_pid()
      AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state LIKE 'idle in transaction%')
      AND backend_type <> 'autovacuum worker' AND query NOT ILIKE 'vacuum%'
    UNION ALL
    SELECT 'prepared transaction', gid, owner::text, '', clock_timestamp() - prepared, age(transaction)::bigint,
        'ROLLBACK PREPARED %L;'
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', slot_name, coalesce(plugin, 'physical'),
        CASE WHEN active THEN 'active' ELSE 'nobody uses it' END, NULL, age(xmin)::bigint,
        'SELECT pg_drop_replication_slot(%L);'
    FROM pg_replication_slots WHERE xmin IS NOT NULL
) h
ORDER BY xids DESC, age DESC`

const (
	oldAge  = time.Minute
	oldXids = 1_000_000 // of slots, whose age in time is not known
)

func oldSnapshots(ctx context.Context, pool *pgxpool.Pool) (findings, error) {
	holders, err := Holders(ctx, pool)
	return judgeHolders(holders), err
}

func judgeHolders(holders []Holder) (found findings) {
	for _, h := range holders {
		if h.Age >= oldAge || h.Kind == "replication slot" && h.Xids >= oldXids {
			found.add(Problem, h.End, "%s; what callq leaves behind cannot be vacuumed meanwhile", h)
		}
	}
	return found[:min(len(found), namedMost)]
}
