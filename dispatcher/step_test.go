package dispatcher

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// withoutServers is a dispatcher that reaches neither Postgres nor Redis, and what it logs.
func withoutServers(t *testing.T, now func() time.Time) (*Dispatcher, *bytes.Buffer) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = client.Close() })
	log := &bytes.Buffer{}
	d, err := New(Config{Pool: pool, Redis: client, Logger: slog.New(slog.NewTextHandler(log, nil)), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return d, log
}

// While Postgres is away every tick fails, and the log says so once.
func TestFailingTicksAreSaidOnce(t *testing.T) {
	t.Parallel()
	d, log := withoutServers(t, nil)
	for range 3 {
		_, _ = d.observe(t.Context(), true)
	}
	if n := strings.Count(log.String(), "tick cut short"); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, log.String())
	}
}

// A panic within a step is said, with its stack, and the next step comes all the same: in serve, workers run beside it.
func TestPanickingStepIsCutShort(t *testing.T) {
	t.Parallel()
	d, log := withoutServers(t, func() time.Time { panic("no clock") })
	if next, err := d.observe(t.Context(), true); next != retryIn || err == nil {
		t.Errorf("the next step is in %s after %v, want %s after the panic", next, err, retryIn)
	}
	for _, said := range []string{"tick cut short", "no clock", "clock.go"} {
		if !strings.Contains(log.String(), said) {
			t.Errorf("the log lacks %q:\n%s", said, log.String())
		}
	}
}

// A turn in hand outlives the context by what a claim and its hand-over take, and no turn lasts longer than
// tickTimeout.
func TestTurnInHandIsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		stopped, bound time.Duration // after its begin
	}{
		{"told to stop before it began", 0, stopWithin},
		{"told to stop within it", time.Second, time.Second + stopWithin},
		{"told to stop near its end", tickTimeout - time.Second, tickTimeout},
		{"not told to stop", time.Hour, tickTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(c.stopped, cancel)
				synctest.Wait()
				bounded, end := new(Dispatcher).inHand(ctx)
				defer end()
				<-bounded.Done()
				if took := time.Since(begun); took != c.bound {
					t.Errorf("it was ended after %s, want %s", took, c.bound)
				}
				cancel()
			})
		})
	}
}
