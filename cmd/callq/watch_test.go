package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/callq/callq/internal/admin"
	"github.com/jackc/pgx/v5"
)

// Off a terminal, screens follow one another; Ctrl-C ends it well; and what came is in the next screen.
func TestStatusWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for output, mark := range map[string]string{"table": "WORKER", "jsonl": `"queues":`, "json": `"queues":`} {
		t.Run(output, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			var out, errs buffer
			code := make(chan int, 1)
			environ := w.environ()
			w.exec(`INSERT INTO call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at) VALUES ('w', 'p', '{t}', '{}', 1, now(), now()) ON CONFLICT DO NOTHING`)
			go func() {
				code <- runCode(ctx, []string{"status", "--watch", "--every", "100ms", "-o", output}, strings.NewReader(""), &out, &errs, environ)
			}()
			eventually(t, "three screens", func() bool { return strings.Count(out.String(), mark) >= 3 })
			interrupt()
			if got := <-code; got != 0 || errs.String() != "" || strings.Contains(out.String(), "\x1b") {
				t.Errorf("exit code %d, stderr %q:\n%s", got, errs.String(), out.String())
			}
			if output != "jsonl" {
				return
			}
			for line := range strings.Lines(out.String()) {
				decode[admin.Status](t, line)
			}
		})
	}
}

// Postgres may go away and come back: it says so once, and goes on.
func TestStatusWatchOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var out, errs buffer
	code := make(chan int, 1)
	environ := w.environ()
	go func() {
		code <- runCode(ctx, []string{"status", "--watch", "--every", "100ms", "-o", "jsonl", "--timeout", "5s"}, strings.NewReader(""), &out, &errs, environ)
	}()
	eventually(t, "a screen", func() bool { return out.String() != "" })
	database := databaseOf(t, w.postgres)
	admin := world{t: t, postgres: os.Getenv("TEST_DATABASE_URL")}
	admin.exec(`ALTER DATABASE ` + database + ` ALLOW_CONNECTIONS false`)
	admin.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '` + database + `'`)
	eventually(t, "it says that Postgres is away", func() bool { return strings.Contains(errs.String(), "cannot be reached") })
	admin.exec(`ALTER DATABASE ` + database + ` ALLOW_CONNECTIONS true`)
	had := len(out.String())
	eventually(t, "it goes on", func() bool { return len(out.String()) > had })
	interrupt()
	if got := <-code; got != 0 || strings.Count(errs.String(), "cannot be reached") != 1 {
		t.Errorf("exit code %d, stderr %q", got, errs.String())
	}
}

func databaseOf(t *testing.T, url string) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	must(t, err)
	return config.Database
}
