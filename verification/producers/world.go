package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/verification/fakeapi"
)

// postgresAddress is Postgres at a TCP address, since not every driver takes a URL of a unix socket. It passes connections on.
type postgresAddress struct {
	admin    string // the URL of the owner of everything
	listener net.Listener
}

func startPostgresAddress(ctx context.Context, admin string) (*postgresAddress, error) {
	if admin == "" || os.Getenv("TEST_REDIS_URL") == "" {
		return nil, fmt.Errorf("TEST_DATABASE_URL and TEST_REDIS_URL are needed: run it under ./servers")
	}
	config, err := pgx.ParseConfig(admin)
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go passOn(ctx, conn, network, address)
		}
	}()
	return &postgresAddress{admin: admin, listener: listener}, nil
}

// passOn connects a client with Postgres until either hangs up.
func passOn(ctx context.Context, client net.Conn, network, address string) {
	defer client.Close()
	server, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
}

func (a *postgresAddress) close() { _ = a.listener.Close() }

// url is the address of a database for a role.
func (a *postgresAddress) url(role, database string) string {
	return fmt.Sprintf("postgresql://%s:secret@%s/%s", role, a.listener.Addr(), database)
}

// adminURL is the owner's address of a database.
func (a *postgresAddress) adminURL(database string) (string, error) {
	at, err := url.Parse(a.admin)
	if err != nil {
		return "", err
	}
	at.Path = "/" + database
	return at.String(), nil
}

// held is a limit that is paused where calls have to wait.
const held = "held"

// world is what one producer meets: its database, its API, and callq between them.
type world struct {
	postgres *postgresAddress
	database string
	callq    string
	config   string
	api      *fakeapi.API
	pool     *pgxpool.Pool
	serve    *exec.Cmd
	log      *os.File
}

// newWorld makes a database, migrates it, makes logins and starts the API and callq.
func newWorld(ctx context.Context, name, callq string, postgres *postgresAddress, temp string) (_ *world, err error) {
	w := &world{postgres: postgres, database: "producer_" + name, callq: callq}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if err := w.createDatabase(ctx); err != nil {
		return nil, fmt.Errorf("create the database: %w", err)
	}
	adminURL, err := postgres.adminURL(w.database)
	if err != nil {
		return nil, err
	}
	if w.pool, err = pgxpool.New(ctx, adminURL); err != nil {
		return nil, err
	}
	if w.api, err = fakeapi.Start(fakeapi.Config{}); err != nil {
		return nil, err
	}
	w.config = filepath.Join(temp, name+".yaml")
	text := fmt.Sprintf("postgres: {url: %q}\nredis: {url: %q}\nhttp: {listen: off}\nhttp_task: {private_hosts: [127.0.0.1], store: all}\n"+
		"limits: {%s: {concurrency: 10}}\nqueues: {payments: {}, held: {limits: [%s]}}\n", adminURL, os.Getenv("TEST_REDIS_URL"), held, held)
	if err := os.WriteFile(w.config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"migrate", "up"}, {"migrate", "roles"}} {
		if err := w.command(ctx, args...); err != nil {
			return nil, err
		}
	}
	if err := w.createLogins(ctx); err != nil {
		return nil, fmt.Errorf("create the logins: %w", err)
	}
	if w.log, err = os.Create(filepath.Join(temp, name+".log")); err != nil {
		return nil, err
	}
	w.serve = exec.Command(callq, "--config", w.config, "serve") //nolint:noctx // it is asked to stop by a signal
	w.serve.Stdout, w.serve.Stderr = w.log, w.log
	w.serve.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return w, w.serve.Start()
}

func (w *world) createDatabase(ctx context.Context) error {
	admin, err := pgx.Connect(ctx, w.postgres.admin)
	if err != nil {
		return err
	}
	defer admin.Close(ctx)
	for _, sql := range []string{"DROP DATABASE IF EXISTS ", "CREATE DATABASE "} {
		if _, err := admin.Exec(ctx, sql+w.database); err != nil {
			return err
		}
	}
	return nil
}

// The logins of a producer's program, without its name.
const (
	inserter = "inserter_"
	reader   = "reader_"
	owner    = "owner_"
)

// createLogins makes one login that only inserts, one that only reads, and one that may do anything, as that of an
// application which migrates its database itself. Only their roles' rights are granted.
func (w *world) createLogins(ctx context.Context) error {
	for role, is := range map[string]string{
		inserter: "IN ROLE callq_producer", reader: "IN ROLE callq_viewer", owner: "SUPERUSER",
	} {
		for _, sql := range []string{"DROP ROLE IF EXISTS %s", "CREATE ROLE %s LOGIN PASSWORD 'secret' " + is} {
			if _, err := w.pool.Exec(ctx, fmt.Sprintf(sql, role+w.database)); err != nil {
				return err
			}
		}
	}
	return nil
}

// environ is what the program is told.
func (w *world) environ(role string) []string {
	return []string{"DATABASE_URL=" + w.postgres.url(role+w.database, w.database), "API_URL=" + w.apiURL()}
}

func (w *world) apiURL() string { return strings.TrimSuffix(w.api.URL(), "/") }

// command runs a callq command, which must succeed.
func (w *world) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, w.callq, append([]string{"--config", w.config}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("callq %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// close stops everything and drops the database.
func (w *world) close() {
	if w.serve != nil && w.serve.Process != nil {
		_ = w.serve.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(20*time.Second, func() { _ = w.serve.Process.Kill() })
		_ = w.serve.Wait()
		kill.Stop()
	}
	if w.log != nil {
		_ = w.log.Close()
	}
	if w.api != nil {
		w.api.Close()
	}
	if w.pool != nil {
		w.pool.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	admin, err := pgx.Connect(ctx, w.postgres.admin)
	if err != nil {
		return
	}
	defer admin.Close(ctx)
	_, _ = admin.Exec(ctx, "DROP DATABASE IF EXISTS "+w.database+" WITH (FORCE)")
	for _, role := range []string{inserter, reader, owner} {
		_, _ = admin.Exec(ctx, "DROP ROLE IF EXISTS "+role+w.database)
	}
}
