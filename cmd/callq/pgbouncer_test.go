package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/local"
)

// startPgBouncer starts a pgbouncer in transaction mode before a Postgres, as the user that Postgres runs as.
// It returns the URL of a database through it. It ends with the test.
func startPgBouncer(t *testing.T, postgres *local.PostgresServer, poolSize int) func(database string) string {
	t.Helper()
	program, err := local.Find("pgbouncer", []string{"pgbouncer"})
	if err != nil {
		t.Fatalf("%v: run `make deps`", err)
	}
	server, err := url.Parse(postgres.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	socket := server.Query().Get("host")
	owner := ownerOf(t, socket)
	dir := devFolders(t) // a short name, which other users may pass through
	users, ini := filepath.Join(dir, "users"), filepath.Join(dir, "pgbouncer.ini")
	writeAs(t, owner, users, `"postgres" ""`)
	writeAs(t, owner, ini, fmt.Sprintf(`
[databases]
* = host='%s' port=%s
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = %s
unix_socket_mode = 0700
auth_type = trust
auth_file = %s
pool_mode = transaction
max_client_conn = 500
default_pool_size = %d
`, socket, server.Query().Get("port"), dir, users, poolSize))
	if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
		t.Fatal(err)
	}

	cmd := program.Command(t.Context(), "pgbouncer", ini)
	cmd.Dir = dir
	var log buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	through := func(database string) string {
		return fmt.Sprintf("postgres://postgres@/%s?host=%s&port=6432", database, url.QueryEscape(dir))
	}
	eventually(t, "pgbouncer answers", func() bool {
		conn, err := pgx.Connect(t.Context(), through("postgres"))
		if err != nil {
			return false
		}
		defer conn.Close(context.WithoutCancel(t.Context()))
		return conn.Ping(t.Context()) == nil
	})
	return through
}

func ownerOf(t *testing.T, path string) *syscall.Credential {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("%s has no owner", path)
	}
	return &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
}

// writeAs writes a file that its owner alone may read.
func writeAs(t *testing.T, owner *syscall.Credential, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, int(owner.Uid), int(owner.Gid)); err != nil {
		t.Fatal(err)
	}
}
