package doctor

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/migrations"
)

// expected lists what the migrations make, a line each: kind, table, name, definition, between tabs. `make
// docs` writes it anew, and a test compares it with a fresh database.
//
//go:embed schema.txt
var expected string

// object is a part of the schema.
type object struct {
	Kind       string `db:"kind"` // table, column, index, constraint, trigger, function or view
	Table      string `db:"on_table"`
	Name       string `db:"name"`
	Definition string `db:"definition"`
}

func (o object) line() string {
	return strings.Join([]string{o.Kind, o.Table, o.Name, o.Definition}, "\t")
}

// whole says that others are parts of it.
func (o object) whole() bool { return o.Kind == "table" || o.Kind == "view" }

func (o object) String() string {
	if o.Kind == "column" {
		return "column " + o.Table + "." + o.Name
	}
	return o.Kind + " " + o.Name
}

func expectedObjects() (list []object) {
	for line := range strings.Lines(expected) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(f) == 4 {
			list = append(list, object{f[0], f[1], f[2], f[3]})
		}
	}
	return list
}

func ownTables() (names []string) {
	for _, o := range expectedObjects() {
		if o.Kind == "table" {
			names = append(names, o.Name)
		}
	}
	return names
}

// catalogSQL lists what there is, in words that do not depend on Postgres's version or the schema's name. A
// view's text does, so its columns stand for it.
const catalogSQL = `
WITH home AS (
    SELECT n.oid, quote_ident(n.nspname) || '.' AS prefix
    FROM pg_namespace n WHERE n.oid = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('call_queue'))
), relations AS (
    SELECT c.oid, c.relname, c.relkind, h.prefix FROM pg_class c JOIN home h ON c.relnamespace = h.oid
    WHERE c.relkind IN ('r', 'v', 'p') AND c.relname LIKE 'call\_%'
), listing AS (
    SELECT CASE relkind WHEN 'v' THEN 'view' ELSE 'table' END AS kind, relname AS on_table, relname AS name, '' AS definition
    FROM relations
    UNION ALL
    SELECT 'column', r.relname, a.attname, concat_ws(' ', format_type(a.atttypid, a.atttypmod),
        CASE WHEN a.attnotnull THEN 'NOT NULL' END,
        CASE WHEN a.attidentity <> '' THEN 'IDENTITY ' || a.attidentity::text END,
        'DEFAULT ' || replace(pg_get_expr(d.adbin, d.adrelid), r.prefix, ''))
    FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
    UNION ALL
    SELECT 'index', r.relname, c.relname, replace(pg_get_indexdef(i.indexrelid), r.prefix, '')
        || CASE WHEN i.indisvalid AND i.indisready THEN '' ELSE ' (invalid)' END
    FROM relations r JOIN pg_index i ON i.indrelid = r.oid JOIN pg_class c ON c.oid = i.indexrelid
    WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid)
    UNION ALL
    SELECT 'constraint', r.relname, k.conname, replace(pg_get_constraintdef(k.oid), r.prefix, '')
    FROM relations r JOIN pg_constraint k ON k.conrelid = r.oid AND k.contype IN ('p', 'u', 'f', 'c', 'x')
    UNION ALL
    SELECT 'trigger', r.relname, t.tgname, replace(pg_get_triggerdef(t.oid), r.prefix, '')
        || CASE WHEN t.tgenabled IN ('O', 'A') THEN '' ELSE ' (disabled)' END
    FROM relations r JOIN pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal
    UNION ALL
    SELECT 'function', '', p.proname || '(' || replace(pg_get_function_identity_arguments(p.oid), h.prefix, '') || ')',
        concat_ws(' ', md5(p.prosrc), CASE WHEN p.prosecdef THEN 'SECURITY DEFINER' END)
        || CASE WHEN p.prosecdef AND has_function_privilege('public', p.oid, 'EXECUTE') THEN ' (for anybody)' ELSE '' END
    FROM pg_proc p JOIN home h ON p.pronamespace = h.oid
    WHERE p.proname LIKE 'callq\_%' OR p.proname LIKE 'enqueue\_%'
)
SELECT kind, on_table::text, name::text, definition FROM listing
ORDER BY kind COLLATE "C", on_table COLLATE "C", name COLLATE "C"`

// version says whether the schema is this program's.
func version(ctx context.Context, pool *pgxpool.Pool) ([]Finding, bool, error) {
	found, err := check{"schema version", readVersion}.run(ctx, pool)
	return found, err == nil && found[0].Level == OK, err
}

func readVersion(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	var exists bool
	var has int64
	if err := pool.QueryRow(ctx, `SELECT to_regclass('callq_migrations') IS NOT NULL`).Scan(&exists); err != nil {
		return nil, err
	}
	if exists {
		if err := pool.QueryRow(ctx, versionSQL).Scan(&has); err != nil {
			return nil, err
		}
	}
	switch want := migrations.Version(); {
	case has == 0:
		return one(Problem, "callq's tables are not in this database", "callq migrate up"), nil
	case has < want:
		return one(Problem, fmt.Sprintf("the schema has version %d, and this callq needs %d",
			has, want), "callq migrate up"), nil
	case has > want:
		return one(Problem, fmt.Sprintf("the schema has version %d, and this callq knows %d", has, want),
			"use a newer callq, or that one's `callq migrate down`"), nil
	}
	return one(OK, fmt.Sprint(has), ""), nil
}

const versionSQL = `SELECT coalesce(max(version_id), 0) FROM callq_migrations WHERE is_applied`

// drift compares the schema with what the migrations make of it.
func drift(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	actual, err := collect[object](ctx, pool, catalogSQL)
	if err != nil {
		return nil, err
	}
	return compareSchemas(expectedObjects(), actual), nil
}

func compareSchemas(want, have []object) (found []Finding) {
	type place struct{ kind, table, name string }
	at := func(o object) place { return place{o.Kind, o.Table, o.Name} }
	is := map[place]string{}
	for _, o := range have {
		is[at(o)] = o.Definition
	}
	tables := map[string]bool{}
	var gone []string // tables and views, of which no part need be told
	for _, o := range want {
		if _, exists := is[at(o)]; o.whole() && !exists {
			gone = append(gone, o.Name)
		}
	}
	for _, o := range want {
		tables[o.Table] = true
		definition, exists := is[at(o)]
		delete(is, at(o))
		switch {
		case exists && definition == o.Definition, !o.whole() && slices.Contains(gone, o.Table):
		case !exists:
			found = append(found, Finding{Level: Problem, What: o.String() + " is missing", Fix: restore(o, "")})
		case definition == o.Definition+" (disabled)":
			found = append(found, Finding{
				Level: Problem, What: o.String() + " is disabled: calls that are inserted or changed are not found",
				Fix: fmt.Sprintf("ALTER TABLE %s ENABLE TRIGGER %s; then callq maintain sweep", o.Table, o.Name),
			})
		case definition == o.Definition+" (for anybody)":
			name, _, _ := strings.Cut(o.Name, "(")
			found = append(found, Finding{
				Level: Problem, What: "function " + name + " runs as its owner, and anybody may execute it",
				Fix: fmt.Sprintf("REVOKE ALL ON FUNCTION %s FROM PUBLIC", name),
			})
		case definition == o.Definition+" (invalid)":
			found = append(found, Finding{
				Level: Problem, What: o.String() + " is invalid",
				Fix: "REINDEX INDEX CONCURRENTLY " + o.Name + ";",
			})
		default:
			found = append(found, Finding{
				Level: Problem, What: o.String() + " is not what the migrations made of it: " + short(definition),
				Fix: restore(o, definition),
			})
		}
	}
	for _, o := range have { // what is left
		if _, extra := is[at(o)]; extra && o.Kind == "index" && tables[o.Table] {
			found = append(found, Finding{
				Level: Note,
				What:  o.String() + " on " + o.Table + " is not callq's: claims and starts may become slower",
				Fix:   "DROP INDEX CONCURRENTLY " + o.Name + ";",
			})
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int { return strings.Compare(string(b.Level), string(a.Level)) })
	if len(found) > shownMost {
		more := len(found) - shownMost
		found = append(found[:shownMost], one(Problem, fmt.Sprintf("%d more parts of the schema differ",
			more), "compare the database with `callq migrate sql`")...)
	}
	return found
}

// restore says how an object comes to be as it was, from what it is (empty: it is missing). Where its
// definition alone does not do that, the migrations have the statement.
func restore(o object, is string) string {
	switch o.Kind {
	case "index":
		return "DROP INDEX IF EXISTS " + o.Name + "; " + o.Definition + ";"
	case "trigger":
		return fmt.Sprintf("DROP TRIGGER IF EXISTS %s ON %s; %s; then callq maintain sweep", o.Name, o.Table, o.Definition)
	case "function":
		return "run the function's statement, and those after it that ALTER it, from `callq migrate sql`"
	case "constraint":
		return fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT IF EXISTS %[2]s, ADD CONSTRAINT %[2]s %[3]s;", o.Table, o.Name, o.Definition)
	case "column":
		if slices.ContainsFunc(expectedObjects(), func(v object) bool { return v.Kind == "view" && v.Name == o.Table }) {
			return "DROP VIEW " + o.Table + "; then run its statement from `callq migrate sql`"
		}
		return restoreColumn(o, is)
	}
	return "run its statements from `callq migrate sql`, then callq maintain sweep"
}

func restoreColumn(o object, is string) string {
	want := readColumn(o.Definition)
	if is == "" {
		definition := strings.NewReplacer("IDENTITY a", "GENERATED ALWAYS AS IDENTITY", "IDENTITY d",
			"GENERATED BY DEFAULT AS IDENTITY").Replace(o.Definition)
		return fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s;", o.Table, o.Name, definition)
	}
	var changes []string
	change := func(format string, args ...any) {
		changes = append(changes, fmt.Sprintf("ALTER COLUMN %s ", o.Name)+fmt.Sprintf(format, args...))
	}
	has := readColumn(is)
	if has.kind != want.kind {
		change("TYPE %s USING %s::%[1]s", want.kind, o.Name)
	}
	switch want.standard {
	case has.standard:
	case "":
		change("DROP DEFAULT")
	default:
		change("SET DEFAULT %s", want.standard)
	}
	switch {
	case want.notNull == has.notNull:
	case want.notNull:
		change("SET NOT NULL")
	default:
		change("DROP NOT NULL")
	}
	if len(changes) == 0 || want.identity != has.identity {
		return fmt.Sprintf("make it %s.%s %s", o.Table, o.Name, o.Definition)
	}
	return "ALTER TABLE " + o.Table + " " + strings.Join(changes, ", ") + ";"
}

// columnDefinition is what catalogSQL says of a column.
type columnDefinition struct {
	kind, identity, standard string // standard: its default
	notNull                  bool
}

func readColumn(definition string) (c columnDefinition) {
	c.kind, c.standard, _ = strings.Cut(definition, " DEFAULT ")
	c.kind, c.identity, _ = strings.Cut(c.kind, " IDENTITY ")
	c.kind, c.notNull = strings.CutSuffix(c.kind, " NOT NULL")
	return c
}

func short(s string) string {
	if r := []rune(s); len(r) > 160 {
		return string(r[:159]) + "…"
	}
	return s
}
