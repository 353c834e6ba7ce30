package doctor

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/migrations"
)

// expected has a line for each table and view, and one for all functions: the name, and a fingerprint of what the
// migrations make. `make docs` writes it anew, and a test compares it with a fresh database.
//
//go:embed schema.txt
var expected string

func expectedLines() []string { return strings.Split(strings.TrimSpace(expected), "\n") }

func ownTables() (names []string) {
	for _, line := range expectedLines() {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	return names
}

// fingerprintSQL hashes what exists, in terms that do not depend on Postgres's version or the schema's name. A view's
// text depends on the version, so its columns stand for it. Indexes with other names are the operator's own.
const fingerprintSQL = `
WITH home AS (
    SELECT n.oid, quote_ident(n.nspname) || '.' AS prefix
    FROM pg_namespace n WHERE n.oid = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('call_queue'))
), relations AS (
    SELECT c.oid, c.relname::text AS relname, h.prefix FROM pg_class c JOIN home h ON c.relnamespace = h.oid
    WHERE c.relkind IN ('r', 'v', 'p') AND c.relname LIKE 'call\_%'
), listing AS (
    SELECT r.relname AS name, concat_ws(' ', 'column', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
        replace(pg_get_expr(d.adbin, d.adrelid), r.prefix, '')) AS line
    FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
    UNION ALL
    SELECT r.relname, concat_ws(' ', 'index', replace(pg_get_indexdef(i.indexrelid), r.prefix, ''), i.indisvalid AND i.indisready)
    FROM relations r JOIN pg_index i ON i.indrelid = r.oid JOIN pg_class c ON c.oid = i.indexrelid AND c.relname LIKE 'call\_%'
    UNION ALL
    SELECT r.relname, concat_ws(' ', 'constraint', k.conname, replace(pg_get_constraintdef(k.oid), r.prefix, ''))
    FROM relations r JOIN pg_constraint k ON k.conrelid = r.oid AND k.contype IN ('p', 'u', 'f', 'c', 'x')
    UNION ALL
    SELECT r.relname, concat_ws(' ', 'trigger', replace(pg_get_triggerdef(t.oid), r.prefix, ''), t.tgenabled IN ('O', 'A'))
    FROM relations r JOIN pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal
    UNION ALL
    SELECT 'functions', concat_ws(' ', p.proname, replace(pg_get_function_identity_arguments(p.oid), h.prefix, ''), md5(replace(p.prosrc, h.prefix, '')),
        p.prosecdef, p.prosecdef AND has_function_privilege('public', p.oid, 'EXECUTE'))
    FROM pg_proc p JOIN home h ON p.pronamespace = h.oid
    WHERE p.proname LIKE 'callq\_%' OR p.proname LIKE 'enqueue\_%'
)
SELECT name || ' ' || md5(string_agg(line, E'\n' ORDER BY line COLLATE "C"))
FROM listing GROUP BY name ORDER BY name COLLATE "C"`

// version finds whether the schema is this program's.
func version(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	err := migrations.Check(ctx, pool)
	if problem, ok := errors.AsType[*migrations.SchemaError](err); ok {
		return []Finding{{Level: Problem, What: problem.What, Fix: problem.Fix}}, nil
	}
	return []Finding{{Level: OK, What: fmt.Sprint(migrations.Version())}}, err
}

// drift compares the schema with what the migrations make of it.
func drift(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	actual, err := fingerprint(ctx, pool)
	return judgeSchema(actual), err
}

func fingerprint(ctx context.Context, db ledger.DB) ([]string, error) {
	rows, _ := db.Query(ctx, fingerprintSQL)
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func judgeSchema(actual []string) (found []Finding) {
	for i, line := range expectedLines() {
		if !slices.Contains(actual, line) {
			found = append(found, Finding{
				Level: Problem,
				What: ownTables()[i] + ": not what the migrations made (columns, indexes, constraints, triggers; who may execute " +
					"functions)",
				Fix: "compare it with `callq migrate sql` and make it so: indexes valid, triggers enabled; then " + recoverFix,
			})
		}
	}
	return found
}

// Whether a superuser owns callq's functions, of which some run with their owner's rights.
const ownerSQL = `
SELECT 'note' AS level,
    format('callq''s functions belong to a superuser, %s: who found a flaw in one that runs as its owner would have the whole server',
        string_agg(DISTINCT quote_ident(r.rolname), ', ')) AS what,
    'give them to a role that is none: docs/operating.md, Roles, has the statements' AS fix
FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner
WHERE r.rolsuper AND (proname LIKE 'callq\_%' OR proname = 'enqueue_call')
  AND pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('call_queue'))
HAVING count(*) > 0`

// Table is the state of one of callq's tables.
type Table struct {
	Name       string     `json:"table" db:"name"`
	Bytes      int64      `json:"bytes" db:"bytes"`         // with TOAST
	IndexBytes int64      `json:"index_bytes" db:"indexes"` // of its indexes
	LiveRows   int64      `json:"live_rows" db:"live"`      // as Postgres estimates
	DeadRows   int64      `json:"dead_rows" db:"dead"`      // not yet vacuumed
	FreeBytes  int64      `json:"free_bytes" db:"free"`     // that VACUUM FULL would give back: an estimate
	LastVacuum *time.Time `json:"last_vacuum" db:"vacuumed"`
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
    greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed
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

// Size writes a number of bytes for people.
func Size(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// Dead rows are normal up to a share, and on small tables.
const deadRowsSQL = `
SELECT 'problem' AS level,
    format('%s has %s dead rows beside %s, %s', relname, n_dead_tup, n_live_tup,
        coalesce('last vacuumed ' || greatest(last_vacuum, last_autovacuum), 'it was never vacuumed')) AS what,
    'callq maintain vacuum; if they stay, end the old snapshots first' AS fix
FROM pg_stat_user_tables
WHERE relname LIKE 'call\_%' AND relid = to_regclass(quote_ident(relname)) AND n_dead_tup > 50000 AND n_dead_tup * 2 > n_live_tup`

// Who keeps VACUUM from removing dead rows, because it may still see them, the oldest first. Sessions of other databases do
// not matter to this one's tables, nor does a vacuum. A slot has no age in time. Of a slot only what a standby's feedback
// holds counts, not the catalog's xmin.
const snapshotsSQL = `
SELECT 'problem' AS level, format('%s %s (%s) holds a snapshot%s%s; what callq leaves behind cannot be vacuumed meanwhile',
        kind, name, who,
        coalesce(' that is ' || date_trunc('second', age) || ' old', ', and ' || xids || ' transactions began since'),
        ': ' || nullif(does, '')) AS what,
    format(ends, name) AS fix
FROM (
    SELECT 'session' AS kind, pid::text AS name, concat_ws(', ', usename, nullif(application_name, '')) AS who,
        concat_ws(': ', CASE WHEN state <> 'active' THEN state END,
            left(regexp_replace(query, '\s+', ' ', 'g'), 80)) AS does,
        clock_timestamp() - coalesce(xact_start, backend_start) AS age,
        coalesce(age(coalesce(backend_xmin, backend_xid)), 0) AS xids, 'SELECT pg_terminate_backend(%s);' AS ends
    FROM pg_stat_activity
    WHERE (datname = current_database() OR backend_type = 'walsender') AND pid <> pg_backend_pid()
      AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state LIKE 'idle in transaction%')
      AND backend_type <> 'autovacuum worker' AND query NOT ILIKE 'vacuum%'
    UNION ALL
    SELECT 'prepared transaction', gid, owner::text, '', clock_timestamp() - prepared, age(transaction),
        'ROLLBACK PREPARED %L;'
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', slot_name, coalesce(plugin, 'physical'),
        CASE WHEN active THEN 'active' ELSE 'nobody uses it' END, NULL, age(xmin),
        'SELECT pg_drop_replication_slot(%L);'
    FROM pg_replication_slots WHERE xmin IS NOT NULL
) h
WHERE age > interval '1 minute' OR age IS NULL AND xids > 1000000
ORDER BY xids DESC, age DESC
LIMIT 10`
