// Package pgtest gives each test a Postgres database of its own, with all migrations applied.
//
// A database is cloned from a template, whose name carries a hash of the migrations: so a stale one is never used. Any number of
// test processes may share a server. TEST_DATABASE_URL names it and has no default, so that a test can never meet a real server.
package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
)

const rolesPrefix = "callq_test" // of the roles that all databases of the server share, and the template's tables know

// New returns a pool on a fresh database; both go when t ends. The pool opens up to 32 connections, in time zone UTC.
// pool.Config().ConnString() is the database's URL. They are a superuser's, who may do anything: what a process of callq's
// does, AsDaemon has. They may change callq's own columns, too (callq.repair).
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return NewWith(t, map[string]string{"timezone": "UTC"})
}

// NewWith is New with settings that each connection makes.
func NewWith(t testing.TB, settings map[string]string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(NewURL(t))
	must(t, err)
	config.MaxConns = 32
	return open(t, config, settings)
}

// Another returns another pool on pool's database, with these settings too.
func Another(t testing.TB, pool *pgxpool.Pool, settings map[string]string) *pgxpool.Pool {
	t.Helper()
	return open(t, pool.Config(), settings)
}

// AsDaemon returns another pool on pool's database, alike but that it may do no more than callq's daemons.
func AsDaemon(t testing.TB, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	return Another(t, pool, map[string]string{"role": rolesPrefix + "_daemon", "callq.repair": "off"})
}

func open(t testing.TB, config *pgxpool.Config, settings map[string]string) *pgxpool.Pool {
	t.Helper()
	config.ConnConfig.RuntimeParams["callq.repair"] = "on" // tests make what callq does not
	maps.Copy(config.ConnConfig.RuntimeParams, settings)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// NewURL returns the URL of a fresh database, which is dropped when t ends, with its connections.
func NewURL(t testing.TB) string {
	t.Helper()
	server := os.Getenv("TEST_DATABASE_URL")
	if server == "" {
		t.Fatal("TEST_DATABASE_URL is empty: run `make test`, or `go run -C verification ./servers -C .. go test ./...`")
	}
	ctx := context.WithoutCancel(t.Context()) // the database is dropped when t has ended
	conn, err := pgx.Connect(ctx, server)
	must(t, err)
	t.Cleanup(func() { must(t, conn.Close(ctx)) })
	name := "callq_test_" + strings.ToLower(rand.Text())[:16]
	strategy := ""
	if conn.PgConn().ParameterStatus("server_version") >= "15" { // before, there was no other
		strategy = "STRATEGY file_copy" // it takes a fraction of what the default takes, and an eighth off all tests
	}
	execOn(t, conn, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s %s", name, template(t, conn, server), strategy))
	t.Cleanup(func() { execOn(t, conn, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name)) })
	return onDatabase(t, server, name)
}

func onDatabase(t testing.TB, server, name string) string {
	t.Helper()
	u, err := url.Parse(server)
	must(t, err)
	u.Path = "/" + name
	return u.String()
}

// template returns the name of the template, which it makes first if it is missing. Test processes do that one at a time.
func template(t testing.TB, conn *pgx.Conn, server string) string {
	t.Helper()
	tables := migrations.SQL(schema.Names{})
	roles, err := migrations.RolesSQL(rolesPrefix, schema.Names{})
	must(t, err)
	name := fmt.Sprintf("callq_template_%x", sha256.Sum256([]byte(tables+roles)))[:31]
	execOn(t, conn, fmt.Sprintf("SELECT pg_advisory_lock(hashtextextended('%s', 0))", name))
	defer execOn(t, conn, "SELECT pg_advisory_unlock_all()")
	var ready bool
	must(t, conn.QueryRow(t.Context(), readySQL, name).Scan(&ready))
	if !ready {
		execOn(t, conn, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		execOn(t, conn, "CREATE DATABASE "+name+" TEMPLATE template0")
		exec(t, onDatabase(t, server, name), tables+roles)
		execOn(t, conn, "ALTER DATABASE "+name+" WITH IS_TEMPLATE true ALLOW_CONNECTIONS false")
	}
	return name
}

// A template is marked as one only when its migrations are applied: half made, it is made anew.
const readySQL = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)`

// Logins are URLs of one database, each of a login that holds one of callq's roles and no other.
type Logins struct {
	Prefix                             string // of the roles' names
	Producer, Enqueuer, Daemon, Viewer string
}

// NewLogins makes callq's roles, and a login in each, for the database of NewURL. Roles belong to the whole server: these have
// names of their own, and go when t ends.
func NewLogins(t testing.TB, database string) Logins {
	t.Helper()
	l := Logins{Prefix: NewPrefix(t, database)}
	sql, err := migrations.RolesSQL(l.Prefix, schema.Names{})
	must(t, err)
	exec(t, database, sql)
	for i, login := range []*string{&l.Producer, &l.Enqueuer, &l.Daemon, &l.Viewer} {
		*login = NewLogin(t, database, migrations.Roles(l.Prefix)[i])
	}
	return l
}

// NewPrefix is what the names of roles may begin with that the test makes in these databases. When t ends, the roles go, with
// what they own and may do there.
func NewPrefix(t testing.TB, databases ...string) string {
	t.Helper()
	prefix := "callq_t" + strings.ToLower(rand.Text())[:12]
	t.Cleanup(func() {
		for _, database := range databases {
			exec(t, database, fmt.Sprintf(eachRoleSQL, prefix, "DROP OWNED BY %I CASCADE"))
		}
		exec(t, databases[0], fmt.Sprintf(eachRoleSQL, prefix, "DROP ROLE %I"))
	})
	return prefix
}

const eachRoleSQL = `
DO $$
DECLARE r name;
BEGIN
    FOR r IN SELECT rolname FROM pg_roles WHERE starts_with(rolname, '%s_') LOOP EXECUTE format('%s', r); END LOOP;
END $$`

// NewLogin makes a login that holds a role, and returns the database's URL for it. The role's name begins the login's.
func NewLogin(t testing.TB, database, role string) string {
	t.Helper()
	name := role + "_login"
	exec(t, database, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%[1]s' IN ROLE %s", name, role))
	u, err := url.Parse(database)
	must(t, err)
	u.User = url.UserPassword(name, name)
	return u.String()
}

// exec runs SQL on a connection of its own, also when t has ended.
func exec(t testing.TB, database, sql string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, database)
	must(t, err)
	defer conn.Close(ctx)
	execOn(t, conn, sql)
}

func execOn(t testing.TB, conn *pgx.Conn, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
