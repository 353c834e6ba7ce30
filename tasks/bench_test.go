package tasks_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/redistest"
	"github.com/callq/callq/tasks"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		if err := parallel.Value.Set("6"); err != nil { // these tests wait far more than they compute
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// bench is a database, a Redis, a dispatcher and a worker of one test.
type bench struct {
	t      *testing.T
	pool   *pgxpool.Pool
	redis  *redis.Client
	worker *tasks.Worker
	client *callqueue.Client
	drain  func() // ends the worker, and waits for that
}

// newBench runs a dispatcher, and a worker with these handlers.
func newBench(t *testing.T, handlers map[string]tasks.Handler) *bench {
	t.Helper()
	return newBenchWith(t, dispatcher.Config{}, limit.Rate{Units: 1000, Window: time.Hour}, handlers)
}

func newBenchWith(t *testing.T, cfg dispatcher.Config, rate limit.Rate, handlers map[string]tasks.Handler) *bench {
	t.Helper()
	pool := pgtest.NewWith(t, ledger.Settings())
	b := &bench{t: t, pool: pool, redis: redistest.New(t)}
	var err error
	if b.client, err = callqueue.New(pool); err != nil {
		t.Fatal(err)
	}
	cfg.Pool, cfg.Redis = pgtest.AsDaemon(t, pool), b.redis
	cfg.Policy = policy.Policy{
		Limits: []policy.Limit{{Name: "api", Rate: rate}},
		Queues: []policy.Queue{queue("default", time.Minute), queue("short", 500*time.Millisecond)},
	}
	d, err := dispatcher.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.run(d.Run)
	if b.worker, err = tasks.New(tasks.Config{
		Pool: cfg.Pool, Redis: b.redis, Concurrency: 4, ShutdownTimeout: time.Minute, HTTP: &tasks.HTTPConfig{AllowPrivate: true},
		Logger: cfg.Logger, Metrics: cfg.Metrics,
	}); err != nil {
		t.Fatal(err)
	}
	for name, handler := range handlers {
		b.worker.Handle(name, handler)
	}
	b.drain = b.run(b.worker.Run)
	return b
}

func queue(name string, timeout time.Duration) policy.Queue {
	return policy.Queue{
		Name: name, Limits: []string{"api"}, MaxAttempts: 2, BackoffMin: 20 * time.Millisecond,
		BackoffMax: 20 * time.Millisecond, Timeout: timeout, OnLost: "retry",
	}
}

// run runs a part until the test ends or the returned function is called.
func (b *bench) run(part func(context.Context) error) func() {
	ctx, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := part(ctx); err != nil {
			b.t.Error(err)
		}
	})
	end := func() { stop(); ended.Wait() }
	b.t.Cleanup(end)
	return end
}

func (b *bench) insert(task string) int64 {
	b.t.Helper()
	return b.insertCall(callqueue.Call{Task: task})
}

func (b *bench) insertCall(call callqueue.Call) int64 {
	b.t.Helper()
	id, err := b.client.Insert(b.t.Context(), call)
	if err != nil {
		b.t.Fatal(err)
	}
	return id
}

// exec runs a statement.
func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// serve serves an API for as long as the test runs.
func serve(t *testing.T, api http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	return server
}

// send sends a message that no dispatcher made, once the worker lives: messages of no live worker's are tidied away.
func (b *bench) send(task string, refs []handoff.Ref) {
	b.t.Helper()
	b.await(`SELECT EXISTS (SELECT FROM callq.call_workers)`)
	m := handoff.Message{Pool: b.workerPool(), ID: fmt.Sprintf("by hand %d", sent.Add(1)), Task: task, Attempts: refs}
	if err := b.broker().Send(b.t.Context(), m); err != nil {
		b.t.Fatal(err)
	}
}

var sent atomic.Int64 //nolint:gochecknoglobals // an id for each message

func (b *bench) broker() *handoff.Broker {
	b.t.Helper()
	broker := handoff.New(b.redis, b.pool, slog.New(slog.DiscardHandler))
	if err := broker.Open(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	return broker
}

func (b *bench) workerPool() string { return handoff.Pool(b.worker.Tasks(), nil) }

// await waits until a query answers true.
func (b *bench) await(sql string, args ...any) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var ok *bool
		if err := b.pool.QueryRow(ctx, sql, args...).Scan(&ok); err != nil && !errors.Is(err, pgx.ErrNoRows) && ctx.Err() == nil {
			b.t.Fatal(err)
		}
		if ok != nil && *ok {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.t.Fatalf("still not so: %s", sql)
		}
	}
}

// ended returns what is recorded of the call's newest attempt, once the call has the status.
func (b *bench) ended(id int64, status callqueue.Status) (outcome, message string, charges int) {
	b.t.Helper()
	b.await(`SELECT status = $2 FROM call_queue WHERE id = $1`, id, string(status))
	err := b.pool.QueryRow(context.Background(), `SELECT outcome, coalesce(error, ''), jsonb_array_length(charged)
		FROM call_attempts WHERE call_id = $1 ORDER BY attempt DESC LIMIT 1`, id).Scan(&outcome, &message, &charges)
	if err != nil {
		b.t.Fatal(err)
	}
	return outcome, message, charges
}

// claimByHand makes a call, and an attempt of it that no dispatcher hands over or gives back.
func (b *bench) claimByHand() (id int64) {
	b.t.Helper()
	if err := b.pool.QueryRow(b.t.Context(), claimByHandSQL).Scan(&id); err != nil {
		b.t.Fatal(err)
	}
	return id
}

const claimByHandSQL = `
WITH call AS (
    INSERT INTO call_queue (task, status, attempts) VALUES ('count', 'dispatched', 1) RETURNING id
)
INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key,
    limits, keys, costs)
SELECT id, 1, 0, 1, 1, clock_timestamp(), clock_timestamp() + interval '1 hour', clock_timestamp() + interval '1 hour', callq.epoch(),
    'p', 'default', 'count', '', '{api}', '{""}', '{1}'
FROM call
RETURNING call_id`

// verify fails the test for every rule that the ledger breaks.
func (b *bench) verify() {
	b.t.Helper()
	report, err := verify.Run(context.Background(), b.pool, verify.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, v := range report.Findings {
		b.t.Errorf("found %+v", v)
	}
}
