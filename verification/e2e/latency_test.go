//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/tasks"
	"github.com/callq/callq/verification/fakeapi"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// TestIdlePickUp measures, on an idle system whose limit is free, the time from before an insert to
// the handler's start: by the Go client, and by plain SQL, which tells nobody. It prints the
// figures and asserts only that each call is picked up.
func TestIdlePickUp(t *testing.T) {
	s := newStack(t, "", fakeapi.Config{})
	started := make(chan time.Time, 1)
	s.inProcess(func(context.Context, *tasks.Call) error {
		started <- time.Now()
		return nil
	})
	byClient := s.pickUps(t, 50**figures, started, func(ctx context.Context) error {
		_, err := s.client.Insert(ctx, callqueue.Call{Task: "touch"})
		return err
	})
	bySQL := s.pickUps(t, 10**figures, started, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `INSERT INTO call_queue (task) VALUES ('touch')`)
		return err
	})
	t.Logf("insert to handler started, idle: Go client p50 %s p99 %s (%d samples); plain SQL p50 %s, most %s (%d samples)",
		at(byClient, .5), at(byClient, .99), len(byClient), at(bySQL, .5), at(bySQL, 1), len(bySQL))
}

// TestFreedSlot measures how long after a call ends the next one starts that waits for its slot of a concurrency: a fresh call, a
// scheduled one that is due, and a retry.
func TestFreedSlot(t *testing.T) {
	s := newStack(t, "", fakeapi.Config{})
	type event struct{ began, ended time.Time }
	events := make(chan event, 1)
	s.inProcess(func(context.Context, *tasks.Call) error {
		began := time.Now()
		time.Sleep(50 * time.Millisecond) // the call's work
		events <- event{began, time.Now()}
		return nil
	})
	s.exec(`UPDATE callq.call_limits SET rate = 1, window_size = '0'`)
	for kind, values := range map[string]string{
		"fresh":     `SELECT 'touch', 'new', 0, now()`,
		"scheduled": `SELECT 'touch', 'new', 0, now() + interval '1 s'`,
		"retried":   `SELECT 'touch', 'error', 1, now() + interval '1 s'`,
	} {
		n := 20 * *figures
		s.exec(fmt.Sprintf(`INSERT INTO call_queue (task, status, failed_count, run_at) %s FROM generate_series(1, %d)`, values, n))
		var gaps []time.Duration
		var last time.Time
		for range n {
			select {
			case e := <-events:
				if !last.IsZero() {
					gaps = append(gaps, e.began.Sub(last))
				}
				last = e.ended
			case <-time.After(time.Minute):
				t.Fatalf("a %s call did not start within a minute", kind)
			}
		}
		slices.Sort(gaps)
		t.Logf("the end of a call to the start of the next, %s: p50 %s p99 %s (%d samples)", kind, at(gaps, .5), at(gaps, .99), len(gaps))
	}
}

// inProcess runs a dispatcher and a worker here, so that the handler's start can be timed.
func (s *stack) inProcess(handler tasks.Handler) {
	s.t.Helper()
	config, err := pgxpool.ParseConfig(s.postgres.URL("postgres"))
	if err != nil {
		s.t.Fatal(err)
	}
	for name, value := range ledger.Settings() {
		config.ConnConfig.RuntimeParams[name] = value
	}
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(s.t.Context(), config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	options, err := redis.ParseURL(s.redis.URL())
	if err != nil {
		s.t.Fatal(err)
	}
	client := redis.NewClient(options)
	s.t.Cleanup(func() { _ = client.Close() })
	d, err := dispatcher.New(dispatcher.Config{Pool: pool, Redis: client, Policy: policy.Policy{
		Limits: []policy.Limit{{Name: "api", Rate: limit.Rate{Units: 1000, Window: time.Second}}},
		Queues: []policy.Queue{{
			Name: "default", Limits: []string{"api"}, MaxAttempts: 1, BackoffMin: time.Second, BackoffMax: time.Second,
			Timeout: time.Second, OnLost: "fail",
		}},
	}})
	if err != nil {
		s.t.Fatal(err)
	}
	w, err := tasks.New(tasks.Config{Pool: pool, Redis: client, Concurrency: 20})
	if err != nil {
		s.t.Fatal(err)
	}
	w.Handle("touch", handler)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- d.Run(ctx) }()
	go func() { ended <- w.Run(ctx) }()
	s.t.Cleanup(func() {
		stop()
		for range 2 {
			if err := <-ended; err != nil {
				s.t.Error(err)
			}
		}
	})
	s.await(time.Minute, `SELECT count(*) = 1 FROM callq.call_workers`)
}

// pickUps inserts n calls, one at a time with random pauses, and returns how long each took to its
// start, sorted.
func (s *stack) pickUps(t *testing.T, n int, started <-chan time.Time, insert func(context.Context) error) []time.Duration {
	t.Helper()
	var took []time.Duration
	for range n {
		time.Sleep(120*time.Millisecond + rand.N(80*time.Millisecond)) // the system must be idle again
		before := time.Now()
		if err := insert(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case at := <-started:
			took = append(took, at.Sub(before))
		case <-time.After(time.Minute):
			t.Fatal("a call was not picked up in a minute")
		}
	}
	slices.Sort(took)
	return took
}

func at(sorted []time.Duration, p float64) time.Duration {
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)].Round(100 * time.Microsecond)
}
