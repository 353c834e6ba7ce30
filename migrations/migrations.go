// Package migrations holds callq's schema and brings a database to it.
//
// Any number of processes may call Up at once: an advisory lock lets one apply while the others wait and then find nothing to do.
package migrations

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"regexp"
	"strings"

	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int64  `json:"version"`
	File    string `json:"file"`
	Applied bool   `json:"applied"`
}

// Up makes the schemas that are missing, applies what is missing in them and returns it. conn must not go through a pooler in
// transaction mode: the lock belongs to the session.
func Up(ctx context.Context, conn *pgx.ConnConfig, names schema.Names) ([]Migration, error) {
	return UpAndTell(ctx, conn, names, func(int64, int64) {})
}

// UpAndTell is Up, and tells at which of how many versions the schema is, after each step and before each statement.
func UpAndTell(ctx context.Context, conn *pgx.ConnConfig, names schema.Names, tell func(version, of int64)) ([]Migration, error) {
	told := slog.New(steps{slog.DiscardHandler, func(version int64) { tell(version, Version()) }})
	return migrate(ctx, conn, names, func(p *goose.Provider) (list []Migration, err error) {
		results, err := p.Up(ctx)
		for _, r := range results {
			list = append(list, Migration{r.Source.Version, r.Source.Path, true})
		}
		return list, err
	}, goose.WithVerbose(true), goose.WithSlog(told))
}

// steps is a handler of goose's log, which alone says how far it is before all steps are applied.
type steps struct {
	slog.Handler
	tell func(version int64)
}

func (s steps) Enabled(context.Context, slog.Level) bool { return true }

func (s steps) Handle(_ context.Context, r slog.Record) error {
	var version, under int64
	r.Attrs(func(attr slog.Attr) bool {
		switch {
		case attr.Key == "version" && attr.Value.Kind() == slog.KindInt64:
			version = attr.Value.Int64()
		case attr.Key == "statement": // of a step that is not yet applied
			under = 1
		}
		return true
	})
	if version > 0 {
		s.tell(version - under)
	}
	return nil
}

// Down takes back the newest step and returns it; with nothing applied it returns none.
func Down(ctx context.Context, conn *pgx.ConnConfig, names schema.Names) ([]Migration, error) {
	return migrate(ctx, conn, names, func(p *goose.Provider) ([]Migration, error) {
		r, err := p.Down(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return []Migration{{r.Source.Version, r.Source.Path, false}}, nil
	})
}

// Status lists every step and whether it is applied. It makes goose's own table, and the schemas where
// they are missing; nothing else.
func Status(ctx context.Context, conn *pgx.ConnConfig, names schema.Names) ([]Migration, error) {
	return migrate(ctx, conn, names, func(p *goose.Provider) (list []Migration, err error) {
		steps, err := p.Status(ctx)
		for _, s := range steps {
			list = append(list, Migration{s.Source.Version, s.Source.Path, s.State == goose.StateApplied})
		}
		return list, err
	})
}

func migrate(
	ctx context.Context, conn *pgx.ConnConfig, names schema.Names, run func(*goose.Provider) ([]Migration, error),
	options ...goose.ProviderOption,
) ([]Migration, error) {
	if err := names.Check(); err != nil {
		return nil, err
	}
	if err := onConn(ctx, conn, func(c *pgx.Conn) error { return makeSchemas(ctx, c, names) }); err != nil {
		return nil, err
	}
	db := sql.OpenDB(onPrimary{stdlib.GetConnector(*conn)})
	defer db.Close()
	locker, _ := lock.NewPostgresSessionLocker() // it errs by its options alone
	options = append(options, goose.WithSessionLocker(locker), goose.WithTableName(names.OwnName()+".migrations"))
	provider, err := goose.NewProvider(goose.DialectPostgres, db, placed{names}, options...)
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	list, err := run(provider)
	if err != nil {
		return list, fmt.Errorf("migrate: %w", err)
	}
	return append([]Migration{}, list...), nil
}

// onPrimary makes connections on which what goose reads has to come from the primary, as by schema.OnPrimary.
type onPrimary struct{ driver.Connector }

func (c onPrimary) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return onPrimaryConn{conn.(*stdlib.Conn)}, nil
}

type onPrimaryConn struct{ *stdlib.Conn }

func (c onPrimaryConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.QueryContext(ctx, schema.OnPrimary+query, args)
}

// placed is the files for schemas of these names.
type placed struct{ names schema.Names }

func (p placed) Open(name string) (fs.File, error) {
	f, err := files.Open(name)
	if err != nil || !strings.HasSuffix(name, ".sql") {
		return f, err
	}
	text, err := io.ReadAll(f)
	return placedFile{f, strings.NewReader(p.names.SQL(string(text)))}, err
}

type placedFile struct {
	fs.File
	text io.Reader
}

func (f placedFile) Read(p []byte) (int, error) { return f.text.Read(p) }

// makeSchemas makes the schemas that are missing. It refuses the tables of another callq.
func makeSchemas(ctx context.Context, conn *pgx.Conn, names schema.Names) error {
	var taken bool
	if err := conn.QueryRow(ctx, names.SQL(takenSQL)).Scan(&taken); err != nil {
		return fmt.Errorf("look for another callq: %w", err)
	}
	own, tables := names.Quoted()
	if taken {
		return fmt.Errorf("schema %s has a call_queue that does not belong to the callq in schema %s: set postgres.schema to the schema of "+
			"the one that it belongs to, or postgres.table_schema to another", tables, own)
	}
	for _, name := range []string{own, tables} {
		var exists bool
		if err := conn.QueryRow(ctx, schema.OnPrimary+`SELECT to_regnamespace($1) IS NOT NULL`, name).Scan(&exists); err != nil {
			return fmt.Errorf("look for schema %s: %w", name, err)
		}
		if exists {
			continue // its owner made it, and this role may be none that could
		}
		_, err := conn.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+name)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Code == "23505" || pg.Code == "42P06") {
			continue // made meanwhile
		}
		if err != nil {
			return fmt.Errorf("make schema %s: %w: let an administrator run CREATE SCHEMA %s AUTHORIZATION %s", name, err, name,
				pgx.Identifier{conn.Config().User}.Sanitize())
		}
	}
	return nil
}

const takenSQL = schema.OnPrimary + `SELECT to_regclass('public.call_queue') IS NOT NULL AND to_regclass('callq.migrations') IS NULL`

// Version is the newest step that this program knows.
func Version() int64 {
	names, _ := fs.Glob(files, "*.sql") // compiled in, and sorted
	version, _ := goose.NumericComponent(names[len(names)-1])
	return version
}

// SQL is what Up would run on an empty database, for those who apply migrations by other means.
func SQL(names schema.Names) string {
	list, _ := fs.Glob(files, "*.sql")
	var text strings.Builder
	own, tables := names.Quoted()
	fmt.Fprintf(&text, "CREATE SCHEMA IF NOT EXISTS %s;\nCREATE SCHEMA IF NOT EXISTS %s;\n\n", own, tables)
	for _, name := range list {
		data, _ := files.ReadFile(name)
		up, _, _ := strings.Cut(string(data), "-- +goose Down")
		fmt.Fprintf(&text, "-- %s\n%s\n", name, names.SQL(up))
	}
	fmt.Fprintf(&text, names.SQL(appliedSQL), Version())
	return text.String()
}

// appliedSQL records in the migrations' own table what was applied by other means, so that callq finds its schema.
const appliedSQL = `-- What is applied, as callq migrate keeps it.
CREATE TABLE IF NOT EXISTS callq.migrations (
    id         integer   PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,
    version_id bigint    NOT NULL,
    is_applied boolean   NOT NULL,
    tstamp     timestamp NOT NULL DEFAULT now()
);
INSERT INTO callq.migrations (version_id, is_applied) SELECT v, true FROM generate_series(0, %d) AS v;
`

const oldestServer = 14 // the oldest major version of Postgres that callq runs on

// SchemaError means that Postgres answers and cannot be used as it is.
type SchemaError struct {
	What, Fix string
}

func (e *SchemaError) Error() string { return e.What + ": " + e.Fix }

// Check returns nil when Postgres is new enough and has the schema of this program, and a *SchemaError when it does not.
func Check(ctx context.Context, db schema.DB) error {
	var server, version int64
	var exists bool
	sql := `SELECT current_setting('server_version_num')::bigint / 10000, to_regclass('callq.migrations') IS NOT NULL`
	if err := db.QueryRow(ctx, sql).Scan(&server, &exists); err != nil {
		return err
	}
	if server < oldestServer {
		return &SchemaError{fmt.Sprintf("Postgres is version %d", server), fmt.Sprintf("callq needs %d or newer", oldestServer)}
	}
	if exists {
		sql = `SELECT coalesce(max(version_id), 0) FROM callq.migrations WHERE is_applied`
		if err := db.QueryRow(ctx, sql).Scan(&version); err != nil {
			return fmt.Errorf("read the schema's version: %w", err)
		}
	}
	want := Version()
	what := fmt.Sprintf("the database has schema version %d, and this callq needs %d", version, want)
	switch {
	case version < want:
		return &SchemaError{what, "run `callq migrate up`"}
	case version > want:
		return &SchemaError{what, "use a newer callq, or that one's `callq migrate down`"}
	}
	return nil
}

//go:embed roles/roles.sql
var rolesSQL string

// DefaultPrefix begins the names of the roles. Roles belong to all databases of a server: those of
// several callqs that are not to share them need prefixes of their own.
const DefaultPrefix = "callq"

// Roles are the roles that RolesSQL makes.
func Roles(prefix string) []string {
	return []string{prefix + "_producer", prefix + "_enqueuer", prefix + "_daemon", prefix + "_viewer"}
}

var (
	prefixForm = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)
	roleName   = regexp.MustCompile(DefaultPrefix + `_(producer|enqueuer|daemon|viewer)`)
)

// RolesSQL makes the roles that are missing, and gives each what it needs of callq's tables.
func RolesSQL(prefix string, names schema.Names) (string, error) {
	if !prefixForm.MatchString(prefix) || strings.HasPrefix(prefix, "pg_") {
		return "", fmt.Errorf("%q cannot begin the names of roles: at most 40 of a-z, 0-9 and _, and not pg_", prefix)
	}
	return roleName.ReplaceAllString(names.SQL(rolesSQL), prefix+"_$1"), names.Check()
}

// GrantRoles runs RolesSQL's statements.
func GrantRoles(ctx context.Context, conn *pgx.ConnConfig, sql string) error {
	return onConn(ctx, conn, func(c *pgx.Conn) error {
		if _, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("grant roles: %w", err)
		}
		return nil
	})
}

func onConn(ctx context.Context, conn *pgx.ConnConfig, run func(*pgx.Conn) error) error {
	c, err := pgx.ConnectConfig(ctx, conn.Copy())
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	return run(c)
}
