package dispatcher

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// While Postgres is away every tick fails, and the log says so once.
func TestFailingTicksAreSaidOnce(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	var log bytes.Buffer
	d, err := New(Config{Pool: pool, Redis: client, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		d.observe(t.Context(), true)
	}
	if n := strings.Count(log.String(), "ticks cut short"); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, log.String())
	}
}
