package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/callq/callq/internal/local"
)

// A hot standby can be looked at by everything that only reads, and status says what it is.
func TestStandbyCanBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server, err := local.StartPostgres(t.Context(), local.Postgres{Dir: dir, Settings: map[string]string{"fsync": "off"}})
	must(t, err)
	t.Cleanup(func() { _ = server.Stop() })
	w := world{t: t, postgres: server.URL("postgres"), config: atAnyPort + "limits: {api: {rate: 5/1h}}\nqueues: {default: {limits: [api]}}\n"}
	w, _ = w.withRedis()
	w.do("migrate", "up")
	w.do("config", "apply")
	id := w.call("http://127.0.0.1:1/")
	w.do("dispatch", "--once")
	waiting := w.call("http://127.0.0.1:1/", "--in", "1h")

	server.Kill()
	must(t, os.WriteFile(filepath.Join(dir, "data", "standby.signal"), nil, 0o644))
	must(t, server.Restart(t.Context()))
	for _, args := range [][]string{
		{"status"},
		{"calls", "list"},
		{"calls", "get", id},
		{"calls", "why", id},
		{"calls", "why", waiting},
		{"queues", "list"},
		{"limits", "list"},
		{"limits", "get", "api"},
		{"limits", "forecast", "api"},
		{"verify"},
		{"maintain", "status"},
		{"config", "check"},
	} {
		a := w.run(args...)
		if a.code != 0 {
			t.Errorf("%v: exit code %d: %s%s", args, a.code, a.stdout, a.stderr)
		}
		if args[0] == "status" {
			has(t, a.stdout, "standby, replayed until 20", "nothing is claimed here")
		}
	}
}
