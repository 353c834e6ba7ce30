package recovery

import (
	"context"
	"log/slog"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/redistest"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The copy of a server's files has the id of the original's database, so both use the same Asynq queues. A restart is no copy.
func TestCopyBeside(t *testing.T) {
	t.Parallel()
	start := func(dir string) (*local.PostgresServer, *pgxpool.Pool) {
		server, err := local.StartPostgres(t.Context(), local.Postgres{Dir: dir, Settings: map[string]string{"fsync": "off"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Stop() })
		pool, err := pgxpool.New(t.Context(), server.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return server, pool
	}
	dir, copied, client, now := t.TempDir(), t.TempDir(), redistest.New(t), time.Now()
	recoverer := func(pool *pgxpool.Pool) *Recoverer {
		log := slog.New(slog.DiscardHandler)
		return New(Config{Pool: pool, Sender: handoff.New(client, pool, log), Log: log, Now: func() time.Time { return now }, Random: func(int64) int64 { return 0 }})
	}
	server, pool := start(dir)
	if _, err := migrations.Up(t.Context(), pool.Config().ConnConfig, schema.Names{}); err != nil {
		t.Fatal(err)
	}
	original := recoverer(pool)
	cleans := func(what string, r *Recoverer, want int) {
		t.Helper()
		now = now.Add(cleanEvery)
		if _, err := r.clean(t.Context(), View{}); err != nil {
			t.Fatal(err)
		}
		var noted int
		if err := r.Pool.QueryRow(t.Context(), `SELECT count(*) FROM callq.call_meta WHERE name = 'beside'`).Scan(&noted); err != nil || noted != want {
			t.Errorf("%s: noted %d times (%v), want %d", what, noted, err, want)
		}
	}
	cleans("the first", original, 0)
	cleans("the second", original, 0)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", filepath.Join(dir, "data"), copied).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	if err := server.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	pool.Reset() // its connections are broken
	cleans("after a restart", original, 0)
	_, other := start(copied)
	beside := recoverer(other)
	cleans("the copy's first", beside, 0)
	cleans("the original beside it", original, 1)
	cleans("the copy beside it", beside, 1)
}
