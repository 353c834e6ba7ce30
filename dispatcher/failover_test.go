package dispatcher_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/redistest"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
	"github.com/callq/callq/tasks"
	"github.com/jackc/pgx/v5/pgxpool"
)

// server is a Postgres of the test's own that can fail over, with what runs on it.
type server struct {
	*system
	*local.PostgresServer
	dir     string
	started chan int64 // calls whose handlers begin
	goOn    chan struct{}
}

func witnessed(c *dispatcher.Config) { c.Failover = policy.Witnessed }

// newServer starts a Postgres. A handler waits for goOn.
func newServer(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	postgres, err := local.StartPostgres(t.Context(), local.Postgres{Dir: dir, Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = postgres.Stop() })
	s := &server{
		&system{t: t, redis: redistest.New(t), log: slog.New(slog.DiscardHandler)},
		postgres, filepath.Join(dir, "data"), make(chan int64, 100), make(chan struct{}, 100),
	}
	s.pool = s.open()
	s.owner = s.open()
	if _, err := migrations.Up(t.Context(), s.pool.Config().ConnConfig, schema.Names{}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *server) open() *pgxpool.Pool {
	s.t.Helper()
	config, err := pgxpool.ParseConfig(s.URL("postgres"))
	if err != nil {
		s.t.Fatal(err)
	}
	for name, value := range ledger.Settings() {
		config.ConnConfig.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(s.t.Context(), config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	return pool
}

// serve runs a dispatcher and a worker until the test ends. It returns once both have begun.
func (s *server) serve(r policy.Policy) {
	s.t.Helper()
	s.run(s.dispatcher(r, witnessed).Run)
	w, err := tasks.New(tasks.Config{Pool: s.pool, Redis: s.redis, Concurrency: 10, Logger: s.log})
	if err != nil {
		s.t.Fatal(err)
	}
	w.Handle("own", func(ctx context.Context, call *tasks.Call) error {
		s.started <- call.ID
		<-s.goOn
		return nil
	})
	s.run(w.Run)
	s.eventually(`SELECT (SELECT count(*) FROM callq.call_workers) = 1 AND (SELECT count(*) FROM callq.call_limits) = 1`)
}

func (s *server) call(n int) {
	s.t.Helper()
	s.exec(`INSERT INTO call_queue (task) SELECT 'own' FROM generate_series(1, $1)`, n)
}

// promote has the server crash, and come back as a new timeline with these data.
func (s *server) promote(data string) {
	s.t.Helper()
	s.Kill()
	if data != s.dir {
		s.shell("rm", "-r", s.dir)
		s.shell("cp", "-a", data, s.dir)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "standby.signal"), nil, 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Restart(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.owner = s.open() // the former's connections are broken
	s.exec(`SELECT pg_promote()`)
}

func (s *server) shell(name string, args ...string) {
	s.t.Helper()
	if out, err := exec.CommandContext(s.t.Context(), name, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// A new timeline by itself loses nothing: the limits stay open, what runs goes on, and what was handed over is made once.
//
//callq:guarantee 1
func TestNewTimelineLosesNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.serve(rules(sliding("api", 50, 24*time.Hour)))
	s.call(3)
	for range 3 {
		<-s.started
	}
	s.goOn <- struct{}{}
	s.eventually(`SELECT count(*) = 1 FROM call_queue WHERE status = 'done'`)
	s.promote(s.dir)
	s.call(5)
	for range 5 {
		<-s.started
	}
	for range 7 {
		s.goOn <- struct{}{}
	}
	s.eventually(`SELECT count(*) = 8 FROM call_queue WHERE status = 'done' AND attempts = 1`)
	s.want(`SELECT missing_until IS NULL AND epoch = callq.epoch() FROM callq.call_limits`)
	s.want(`SELECT verdict = 'whole' AND why LIKE 'all workers that lived, 1, %' FROM callq.call_epochs WHERE epoch = callq.epoch()`)
	s.verify()
}

// A server that lacks what a worker was told was written may lack more: what was left of the limit counts as used. What the worker
// knows is recorded again: no call that it ran is made twice.
//
//callq:guarantee 1
func TestNewTimelineLacksTheLast(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.serve(rules(sliding("api", 50, 24*time.Hour)))
	s.call(2)
	for range 2 {
		<-s.started
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	backup := filepath.Join(t.TempDir(), "data")
	s.shell("cp", "-a", s.dir, backup)
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.owner = s.open()
	s.goOn <- struct{}{}
	s.eventually(`SELECT count(*) = 1 FROM call_queue WHERE status = 'done'`)
	s.call(1)
	<-s.started
	s.promote(backup)
	s.eventually(`SELECT count(*) = 1 FROM callq.call_epochs WHERE epoch = callq.epoch() AND verdict IS NOT NULL`)
	s.want(`SELECT verdict = 'missing' AND why LIKE 'worker % does not find %' FROM callq.call_epochs WHERE epoch = callq.epoch()`)
	s.want(`SELECT missing_until > clock_timestamp() FROM callq.call_limits`)
	for range 2 { // the third call is gone
		s.goOn <- struct{}{}
	}
	s.eventually(`SELECT count(*) = 2 FROM call_queue WHERE status = 'done'`)
	s.want(`SELECT count(*) = 2 AND bool_and(attempt = 1 AND outcome = 'done') FROM call_attempts`)
	s.verify()
}

// A worker that died with the server cannot say what it was told.
//
//callq:guarantee 1
func TestNewTimelineAndADeadWorker(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.serve(rules(sliding("api", 50, 24*time.Hour)))
	s.exec(`INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at, epoch) VALUES
		('left', 'p', '{}', '{}', 1, now(), now() - interval '1 min', callq.epoch()), ('died', 'p', '{}', '{}', 1, now(), now(), callq.epoch())`)
	s.promote(s.dir)
	s.eventually(`SELECT count(*) = 1 FROM callq.call_epochs WHERE epoch = callq.epoch() AND verdict IS NOT NULL`)
	s.want(`SELECT verdict = 'missing' AND why LIKE 'worker died has not said %' FROM callq.call_epochs WHERE epoch = callq.epoch()`)
	s.want(`SELECT missing_until > clock_timestamp() FROM callq.call_limits`)
}

// In a set-up that loses nothing, nobody is asked.
func TestLossless(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := rules(sliding("api", 9, month))
	s.charged(r)
	s.calls("default", 2)
	s.once(r)
	s.exec(`UPDATE callq.call_open SET epoch = 'older'`)
	s.exec(`UPDATE callq.call_epochs SET epoch = 'older'`)
	s.failOver()
	d := s.dispatcher(r, func(c *dispatcher.Config) { c.Failover = policy.Lossless })
	s.calls("default", 9)
	s.tick(d)
	s.want(`SELECT count(*) = 4 AND bool_and(epoch = callq.epoch()) FROM callq.call_open`)
	s.want(`SELECT missing_until IS NULL FROM callq.call_limits`)
}
