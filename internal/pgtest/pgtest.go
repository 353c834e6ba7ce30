// Package pgtest gives each test a Postgres database of its own, with all migrations applied.
//
// A database is cloned from a template, whose name carries a hash of the migrations: so a stale one is never used. Any number
// of test processes may share a server. TEST_DATABASE_URL names it and has no default, so that a test can never meet a real
// server.
package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/migrations"
)

const (
	setUpWithin   = 2 * time.Minute
	cleanUpWithin = time.Minute
	rolesPrefix   = "callq_test" // of the roles that all databases of the server share, and the template's tables know
)

// New returns a pool on a fresh database; both go when t ends. The pool opens up to 32 connections, in time zone UTC.
// pool.Config().ConnString() is the database's URL. They are a superuser's, who may do anything: what a process of callq's
// does, AsDaemon has.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return NewWith(t, map[string]string{"timezone": "UTC"})
}

// NewWith is New with settings that each connection makes.
func NewWith(t testing.TB, settings map[string]string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(NewURL(t))
	if err != nil {
		t.Fatalf("parse the test database's URL: %v", err)
	}
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
	return Another(t, pool, map[string]string{"role": rolesPrefix + "_daemon"})
}

func open(t testing.TB, config *pgxpool.Config, settings map[string]string) *pgxpool.Pool {
	t.Helper()
	maps.Copy(config.ConnConfig.RuntimeParams, settings)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("open the test database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// NewURL returns the URL of a fresh database, which is dropped, whoever is still connected, when t ends.
func NewURL(t testing.TB) string {
	t.Helper()
	server, err := url.Parse(os.Getenv("TEST_DATABASE_URL"))
	if err != nil || server.Scheme == "" {
		t.Fatal("TEST_DATABASE_URL is no URL: run `make test`, or `go run -C verification ./servers -C .. go test ./...`")
	}
	ctx, cancel := context.WithTimeout(t.Context(), setUpWithin)
	defer cancel()
	name := "callq_test_" + strings.ToLower(rand.Text())[:16]
	if err := clone(ctx, server, name); err != nil {
		t.Fatalf("make a test database: %v", err)
	}
	t.Cleanup(func() { exec(t, server.String(), fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name)) })
	return onDatabase(server, name)
}

func onDatabase(server *url.URL, name string) string {
	u := *server
	u.Path = "/" + name
	return u.String()
}

// clone makes a database from the template, which it makes first if it is missing.
func clone(ctx context.Context, server *url.URL, name string) error {
	schema, err := migrations.SQL()
	if err != nil {
		return err
	}
	roles, err := migrations.RolesSQL(rolesPrefix)
	if err != nil {
		return err
	}
	template := fmt.Sprintf("callq_template_%x", sha256.Sum256([]byte(schema+roles)))[:31]
	conn, err := pgx.Connect(ctx, server.String())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", template); err != nil {
		return err
	}
	var ready bool
	if err := conn.QueryRow(ctx, readySQL, template).Scan(&ready); err != nil {
		return err
	}
	if !ready {
		if err := makeTemplate(ctx, conn, onDatabase(server, template), template, schema+roles); err != nil {
			return fmt.Errorf("make %s: %w", template, err)
		}
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_unlock_all()"); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, template))
	return err
}

// A template is marked as one only when its migrations are applied: half made, it is made anew.
const readySQL = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)`

func makeTemplate(ctx context.Context, conn *pgx.Conn, database, template, sql string) error {
	for _, step := range []string{"DROP DATABASE IF EXISTS %s WITH (FORCE)", "CREATE DATABASE %s TEMPLATE template0"} {
		if _, err := conn.Exec(ctx, fmt.Sprintf(step, template)); err != nil {
			return err
		}
	}
	own, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	_, err = own.Exec(ctx, sql)
	if err := errors.Join(err, own.Close(ctx)); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s WITH IS_TEMPLATE true ALLOW_CONNECTIONS false", template))
	return err
}
