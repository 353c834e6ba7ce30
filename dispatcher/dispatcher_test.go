package dispatcher_test

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/tasks"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// system is a database and a Redis of one test, and what runs on them.
type system struct {
	t     *testing.T
	owner *pgxpool.Pool // the test's, which may do anything
	pool  *pgxpool.Pool // what runs has this: it may do what callq's daemons may
	redis *redis.Client
	log   *slog.Logger
}

func newSystem(t *testing.T) *system {
	t.Helper()
	settings := ledger.Settings()
	settings["idle_in_transaction_session_timeout"] = "0" // tests hold locks for as long as they need
	owner := pgtest.NewWith(t, settings)
	client, err := redisDatabase()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	s := &system{t, owner, pgtest.AsDaemon(t, owner), client, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))}
	s.exec(patientSQL)
	return s
}

// One Redis serves all tests: each has a database of it.
var (
	redisServer = sync.OnceValues(func() (*local.RedisServer, error) {
		return local.StartRedis(context.Background(), local.Redis{Settings: map[string]string{"databases": "10000"}})
	})
	redisDatabases atomic.Int64
)

func TestMain(m *testing.M) {
	code := m.Run()
	if redisDatabases.Load() > 0 {
		if server, err := redisServer(); err == nil {
			_ = server.Stop()
		}
	}
	os.Exit(code)
}

func redisDatabase() (*redis.Client, error) {
	n := redisDatabases.Add(1)
	server, err := redisServer()
	if err != nil {
		return nil, err
	}
	options, err := redis.ParseURL(server.URL())
	if err != nil {
		return nil, err
	}
	options.DB = int(n)
	return redis.NewClient(options), nil
}

// What is claimed may be started for an hour more, however slow the machine is.
const patientSQL = `
CREATE FUNCTION patient() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.start_by := NEW.start_by + interval ''1 hour''; RETURN NEW; END';
CREATE TRIGGER patient BEFORE INSERT ON callq.call_open FOR EACH ROW EXECUTE FUNCTION patient()`

func rules(limits ...policy.Limit) policy.Policy {
	r := policy.Policy{Limits: limits}
	q := policy.Queue{
		Name: "default", MaxAttempts: 3, BackoffMin: 50 * time.Millisecond, BackoffMax: time.Second,
		Timeout: 5 * time.Second, OnLost: "retry",
	}
	for _, l := range limits {
		q.Limits = append(q.Limits, l.Name)
	}
	r.Queues = append(r.Queues, q)
	return r
}

func sliding(name string, units int64, window time.Duration) policy.Limit {
	return policy.Limit{Name: name, Rate: limit.Rate{Units: units, Window: window}}
}

// dispatcher is a dispatcher under these rules.
func (s *system) dispatcher(r policy.Policy, changes ...func(*dispatcher.Config)) *dispatcher.Dispatcher {
	s.t.Helper()
	config := dispatcher.Config{Pool: s.pool, Redis: s.redis, Policy: r, Failover: policy.Strict, Logger: s.log}
	for _, change := range changes {
		change(&config)
	}
	d, err := dispatcher.New(config)
	if err != nil {
		s.t.Fatal(err)
	}
	return d.Patient()
}

// tasks is a worker with so many slots.
func (s *system) tasks(slots int, http *tasks.HTTPConfig) *tasks.Worker {
	s.t.Helper()
	w, err := tasks.New(tasks.Config{Pool: s.pool, Redis: s.redis, Concurrency: slots, HTTP: http, Logger: s.log})
	if err != nil {
		s.t.Fatal(err)
	}
	return w
}

// seldom has a dispatcher tick once, when it starts.
func seldom(c *dispatcher.Config) { c.Schedule.Dispatch = "@every 1h" }

// run runs something until the test ends, and waits for its end.
func (s *system) run(run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := run(ctx); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(func() { stop(); wg.Wait() })
}

func (s *system) verify() {
	s.t.Helper()
	report, err := verify.Run(context.Background(), s.pool, verify.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, v := range report.Findings {
		s.t.Errorf("verify: %+v", v)
	}
}

// verifyLongAgo is verify, where the test has moved starts or claims back in time: so they are in the other rows, too.
func (s *system) verifyLongAgo() {
	s.t.Helper()
	for _, sql := range []string{
		`DELETE FROM callq.call_audit`,
		`UPDATE callq.call_limit_versions SET effective_from = effective_from - interval '1 day' WHERE version = 1`,
		`UPDATE callq.call_open SET claimed_at = least(claimed_at, started_at)`,
		`UPDATE call_attempts SET claimed_at = least(claimed_at, started_at)`,
		`UPDATE call_queue SET dispatched_at = claimed_at
			FROM (SELECT call_id, attempt, claimed_at FROM call_attempts UNION ALL SELECT call_id, attempt, claimed_at FROM callq.call_open) a
			WHERE call_id = id AND attempt = attempts`,
	} {
		s.exec(sql)
	}
	s.verify()
}

// eventually waits until a query answers true.
func (s *system) eventually(sql string, args ...any) {
	s.t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var ok bool
		if err := s.owner.QueryRow(context.Background(), sql, args...).Scan(&ok); err != nil {
			s.t.Fatal(err)
		}
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			s.t.Fatalf("after a minute still not so: %s", sql)
		}
	}
}
