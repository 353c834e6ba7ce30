package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/local"
)

// Through a real pgbouncer in transaction mode, with fewer sessions than callq has connections: a call's
// whole way, and every command, without one error at Postgres.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	var log buffer
	postgres, err := local.StartPostgres(t.Context(), local.Postgres{Log: &log, Settings: map[string]string{"fsync": "off"}})
	must(t, err)
	t.Cleanup(func() { _ = postgres.Stop() })
	bouncer := startPgBouncer(t, postgres, 6)
	first, _ := newPooled(t, postgres, bouncer, "first").withRedis()

	t.Run("not told of it", func(t *testing.T) {
		w := first
		w.t, w.config = t, atAnyPort
		d := w.start("serve")
		const fix = "if so set postgres.query_mode: cache_describe"
		eventually(t, "it says what to do", func() bool { return strings.Contains(d.stderr.String(), fix) })
		if code := d.end(); code != exitDone {
			t.Errorf("exit code %d", code)
		}
		w.refuses(exitUsage, fix, "maintain", "retention")
	})
	t.Run("without a way past it", func(t *testing.T) {
		w := first
		w.t, w.config = t, "postgres: {query_mode: cache_describe}"
		for _, command := range []string{"migrate up", "serve", "dispatch"} {
			w.refuses(exitUsage, "set postgres.direct_url", strings.Fields(command)...)
		}
	})
	second, _ := newPooled(t, postgres, bouncer, "second").withRedis()
	pooled(t, second)
	third := newPooled(t, postgres, bouncer, "third") // its sessions begin with what the role has by then
	third.postgres += "&default_query_exec_mode=simple_protocol"
	_, rest, _ := strings.Cut(string(readRepo(t, "docs/operating.md")), "```sql pooler\n")
	sql, _, _ := strings.Cut(rest, "```")
	world{t: t, postgres: postgres.URL("postgres")}.exec(strings.ReplaceAll(sql, " callq ", " postgres "))
	for name, want := range ledger.Settings() {
		if got := one[string](third, `SELECT current_setting($1)`, name); got != want && len(pooledSettings()[name]) == 0 {
			t.Errorf("as docs/operating.md sets it on the role, %s is %s, want %s", name, got, want)
		}
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "could not serialize access") || strings.Contains(line, "due to lock timeout") {
			continue // of two that open a limit at once one asks again, and who has waited 100 ms for a row goes on without it
		}
		if strings.Contains(line, "ERROR:") || strings.Contains(line, "WARNING:") {
			t.Errorf("Postgres says: %s", line)
		}
	}
}

// newPooled is a world behind the pgbouncer, with a database of its own and its direct_url.
func newPooled(t *testing.T, postgres *local.PostgresServer, bouncer func(database string) string, database string) world {
	t.Helper()
	root := world{t: t, postgres: postgres.URL("postgres")}
	root.exec("CREATE DATABASE " + database)
	return world{t: t, postgres: bouncer(database), config: atAnyPort + fmt.Sprintf(`
postgres: {query_mode: cache_describe, direct_url: %q}
limits: {api: {rate: 100_000/1m}, lanes: {concurrency: 20, per: key}}
queues: {pay: {limits: [api, lanes]}}
`, postgres.URL(database))}
}

// pooled runs a call's whole way, and every command.
func pooled(t *testing.T, w world) {
	t.Helper()
	w.do("migrate", "up")
	w.do("migrate", "status")
	served := make(chan struct{}, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served <- struct{}{} }))
	t.Cleanup(server.Close)
	d := w.start("serve")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("serve:\n%s", &d.stderr)
		}
	})
	awaitReady(t, addressIn(t, &d.stderr))
	other := w.startReady("work")

	const calls = 120
	var lines strings.Builder
	for i := range calls {
		fmt.Fprintf(&lines, `{"queue": "pay", "key": "k%d", "call_data": {"url": %q}}`+"\n", i%7, server.URL)
	}
	w.stdin = lines.String()
	w.do("enqueue", "--from", "-")
	for range 10 {
		w.do("enqueue", "--queue", "pay", "--data", fmt.Sprintf(`{"url": %q}`, server.URL), "--unique", "one")
	}
	later := strings.TrimSpace(w.do("enqueue", "--in", "1h", "--data", `{"url": "http://x"}`))
	w.do("calls", "cancel", later)
	w.do("limits", "set", "api", "90_000/1m")
	w.do("limits", "pause", "api")
	w.do("limits", "resume", "api")
	w.do("limits", "reset", "api")
	w.do("queues", "pause", "pay", "--key", "k1")
	w.do("queues", "resume", "pay", "--key", "k1")
	for range calls + 1 {
		receive(t, served, "a call arrives")
	}
	eventually(t, "all are done", func() bool {
		return len(decode[[]callqueue.Record](t, w.do("calls", "list", "--status", "done", "--limit", "1000", "-o", "json"))) >= calls+1
	})
	for _, command := range []string{
		"status", "limits list", "limits get api", "queues list", "calls list --status cancelled", "verify", "maintain retention", "maintain vacuum",
		"dispatch --once", "config check",
	} {
		w.do(strings.Fields(command)...)
	}
	for _, daemon := range []*daemon{d, other} {
		if code := daemon.end(); code != exitDone {
			t.Errorf("exit code %d", code)
		}
		for line := range strings.Lines(daemon.stderr.String()) {
			slow := strings.Contains(line, "context deadline exceeded") // the machine, whatever the pooler does
			if !slow && strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
				t.Errorf("in the log: %s", line)
			}
		}
	}
}

// startPgBouncer starts a pgbouncer in transaction mode before a Postgres, as the user that Postgres runs as.
// It returns the URL of a database through it. It ends with the test.
func startPgBouncer(t *testing.T, postgres *local.PostgresServer, poolSize int) func(database string) string {
	t.Helper()
	program, err := local.Find("pgbouncer", []string{"pgbouncer"})
	if err != nil {
		t.Fatalf("%v: run `make deps`", err)
	}
	server, err := url.Parse(postgres.URL("postgres"))
	must(t, err)
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
	must(t, os.Chown(dir, int(owner.Uid), int(owner.Gid)))

	cmd := program.Command(t.Context(), "pgbouncer", ini)
	cmd.Dir = dir
	var log buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	}
	must(t, cmd.Start())
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
	must(t, err)
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("%s has no owner", path)
	}
	return &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
}

// writeAs writes a file that its owner alone may read.
func writeAs(t *testing.T, owner *syscall.Credential, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
	must(t, os.Chown(path, int(owner.Uid), int(owner.Gid)))
}
