// Package pgtest gives each test a Postgres database of its own, with all migrations applied.
//
// A database is cloned from a template, which the first test that needs it makes, under an
// advisory lock; its name carries a hash of the migrations, so a stale one is never used. Any
// number of test processes may share a server. TEST_DATABASE_URL names it and has no default, so
// that a test can never meet a real server.
package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
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

// New returns a pool on a fresh database; both go when t ends. The pool opens up to 32
// connections, in time zone UTC. pool.Config().ConnString() is the database's URL. They are a superuser's, who may do
// anything: what a process of callq's does, AsDaemon has.
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
	maps.Copy(config.ConnConfig.RuntimeParams, settings)
	return open(t, config)
}

// AsDaemon returns another pool on pool's database, alike but that it may do no more than callq's daemons.
func AsDaemon(t testing.TB, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	config.ConnConfig.RuntimeParams["role"] = rolesPrefix + "_daemon"
	return open(t, config)
}

func open(t testing.TB, config *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("open the test database: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// NewURL returns the URL of a fresh database, which is dropped, whoever is still connected, when
// t ends.
func NewURL(t testing.TB) string {
	t.Helper()
	server := os.Getenv("TEST_DATABASE_URL")
	if server == "" {
		t.Fatal("TEST_DATABASE_URL is not set: run `make test`, or `go run -C verification ./servers -C .. go test ./...`")
	}
	ctx, cancel := context.WithTimeout(t.Context(), setUpWithin)
	defer cancel()
	name, err := clone(ctx, server)
	if err != nil {
		t.Fatalf("make a test database: %v", err)
	}
	t.Cleanup(func() { exec(t, server, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name)) })
	database, err := onDatabase(server, name)
	if err != nil {
		t.Fatal(err)
	}
	return database
}

// clone makes a database from the template, and the template where it is missing.
func clone(ctx context.Context, server string) (string, error) {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	template, err := templateName()
	if err != nil {
		return "", err
	}
	if err := makeTemplate(ctx, conn, server, template); err != nil {
		return "", fmt.Errorf("make %s: %w", template, err)
	}
	name := "callq_test_" + strings.ToLower(rand.Text())[:16]
	_, err = conn.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, template))
	return name, err
}

func templateName() (string, error) {
	text, err := migrations.SQL()
	if err != nil {
		return "", err
	}
	roles, err := migrations.RolesSQL(rolesPrefix)
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256([]byte(text + roles))
	return "callq_template_" + hex.EncodeToString(hash[:8]), nil
}

// A template is marked as one only when its migrations are applied: half made, it is made anew.
const templateReadySQL = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)`

// makeTemplate makes the template unless it is there. conn's session takes a lock, which goes
// with it.
func makeTemplate(ctx context.Context, conn *pgx.Conn, server, template string) error {
	ready := func() (done bool, err error) {
		err = conn.QueryRow(ctx, templateReadySQL, template).Scan(&done)
		return done, err
	}
	if done, err := ready(); done || err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", template); err != nil {
		return err
	}
	if done, err := ready(); done || err != nil { // another made it meanwhile
		return err
	}
	for _, sql := range []string{"DROP DATABASE IF EXISTS %s WITH (FORCE)", "CREATE DATABASE %s TEMPLATE template0"} {
		if _, err := conn.Exec(ctx, fmt.Sprintf(sql, template)); err != nil {
			return err
		}
	}
	database, err := onDatabase(server, template)
	if err != nil {
		return err
	}
	config, err := pgx.ParseConfig(database)
	if err != nil {
		return err
	}
	if _, err := migrations.Up(ctx, config); err != nil {
		return err
	}
	if err := migrations.GrantRoles(ctx, config, rolesPrefix); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s WITH IS_TEMPLATE true ALLOW_CONNECTIONS false", template))
	return err
}

// onDatabase is server's URL with another database.
func onDatabase(server, name string) (string, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme == "" {
		return "", fmt.Errorf("TEST_DATABASE_URL must be a URL: postgres://…: %w", err)
	}
	u.Path = "/" + name
	return u.String(), nil
}

// closePool closes pool, and fails t rather than wait for a connection that t never gave back.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(cleanUpWithin):
		t.Errorf("%d connections were not given back", pool.Stat().AcquiredConns())
	}
}
