package doctor

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
    SELECT 'functions', concat_ws(' ', p.proname, replace(pg_get_function_identity_arguments(p.oid), h.prefix, ''), md5(p.prosrc),
        p.prosecdef, p.prosecdef AND has_function_privilege('public', p.oid, 'EXECUTE'))
    FROM pg_proc p JOIN home h ON p.pronamespace = h.oid
    WHERE p.proname LIKE 'callq\_%' OR p.proname LIKE 'enqueue\_%'
)
SELECT name || ' ' || md5(string_agg(line, E'\n' ORDER BY line COLLATE "C"))
FROM listing GROUP BY name ORDER BY name COLLATE "C"`

// version finds whether the schema is this program's.
func version(ctx context.Context, pool *pgxpool.Pool) (found findings, err error) {
	err = migrations.Check(ctx, pool)
	if problem, ok := errors.AsType[*migrations.SchemaError](err); ok {
		found.add(Problem, problem.Fix, "%s", problem.What)
		return found, nil
	}
	found.add(OK, "", "%d", migrations.Version())
	return found, err
}

// drift compares the schema with what the migrations make of it.
func drift(ctx context.Context, pool *pgxpool.Pool) (findings, error) {
	actual, err := fingerprint(ctx, pool)
	return judgeSchema(actual), err
}

func fingerprint(ctx context.Context, db ledger.DB) ([]string, error) {
	rows, err := db.Query(ctx, fingerprintSQL)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func judgeSchema(actual []string) (found findings) {
	for i, line := range expectedLines() {
		if !slices.Contains(actual, line) {
			found.add(Problem, "compare it with `callq migrate sql` and make it so: indexes valid, triggers enabled; then "+recoverFix,
				"%s: not what the migrations made (columns, indexes, constraints, triggers; who may execute functions)", ownTables()[i])
		}
	}
	return found
}

// Whether a superuser owns callq's tables or functions: some functions run with their owner's rights.
const ownerSQL = `
SELECT 'note' AS level,
    format('callq''s tables or functions belong to a superuser, %s: who found a flaw in a function that runs as its owner '
        'would have the whole server', string_agg(DISTINCT quote_ident(r.rolname), ', ')) AS what,
    'give them to a role that is none: docs/operating.md, Roles, has the statements' AS fix
FROM (
    SELECT relowner AS owner FROM pg_class
    WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('call_queue')) AND relname LIKE 'call%'
    UNION ALL
    SELECT proowner FROM pg_proc
    WHERE pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('call_queue'))
      AND (proname LIKE 'callq\_%' OR proname = 'enqueue_call')
) o
JOIN pg_roles r ON r.oid = o.owner
WHERE r.rolsuper
HAVING count(*) > 0`
