//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/verification/fakeapi"
)

// callq is the built program; TestMain builds it.
var callq string //nolint:gochecknoglobals // one build for all tests of the package

// built is another build to test, such as an earlier commit's.
var built = flag.String("callq", "", "test this program instead of building callq") //nolint:gochecknoglobals // a flag

func TestMain(m *testing.M) {
	flag.Parse()
	if callq = *built; callq != "" {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "callq-e2e-")
	if err == nil {
		callq = filepath.Join(dir, "callq")
		build := exec.CommandContext(context.Background(), "go", "build", "-C", "../..", "-o", callq, "./cmd/callq")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build callq:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// stack is a whole callq of one test.
type stack struct {
	t           *testing.T
	postgres    *local.PostgresServer
	redis       *local.RedisServer
	api         *fakeapi.API
	config      string
	pool        *pgxpool.Pool
	client      *callqueue.Client
	redisClient *redis.Client
	prefix      []string // what workers are started with, as `ip netns exec`
	logs        struct{ postgres, redis logBuffer }

	// Of a stack that is struck.
	postgresDir string
	clock       string        // the file that Postgres's clock goes by
	clockOff    time.Duration // what stands in it
	loses       *atomic.Bool  // whether the network to the API loses packets
}

// newStack brings up the servers and the API, writes a config with these rules (the YAML of
// limits and queues) and migrates.
func newStack(t *testing.T, rules string, api fakeapi.Config) *stack {
	t.Helper()
	return newStackOn(t, local.Postgres{}, rules, api)
}

func newStackOn(t *testing.T, postgres local.Postgres, rules string, api fakeapi.Config) *stack {
	t.Helper()
	s := &stack{t: t}
	postgres.Log = &s.logs.postgres
	var err error
	if s.postgres, err = local.StartPostgres(t.Context(), postgres); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.postgres.Stop() })
	if s.redis, err = local.StartRedis(t.Context(), local.Redis{Log: &s.logs.redis}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.redis.Stop() })
	options, err := redis.ParseURL(s.redis.URL())
	if err != nil {
		t.Fatal(err)
	}
	s.redisClient = redis.NewClient(options)
	t.Cleanup(func() { _ = s.redisClient.Close() })
	if s.api, err = fakeapi.Start(api); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.api.Close() })

	s.config = filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf("postgres: {url: %q}\nredis: {url: %q}\nhttp: {listen: off}\nhttp_task: {private_hosts: [%s]}\nworker: {concurrency: 20, shutdown_timeout: 10s}\n%s\n",
		s.postgres.URL("postgres"), s.redis.URL(), s.apiHost(), rules)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := s.command("migrate", "up"); code != 0 {
		t.Fatalf("migrate up: exit %d\n%s", code, out)
	}
	if s.pool, err = pgxpool.New(t.Context(), s.postgres.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	if s.client, err = callqueue.New(s.pool); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stack) apiHost() string {
	s.t.Helper()
	at, err := url.Parse(s.api.URL())
	if err != nil {
		s.t.Fatal(err)
	}
	return at.Hostname()
}

// command runs a callq command to its end.
func (s *stack) command(args ...string) (string, int) {
	s.t.Helper()
	out, code, err := s.tryCommand(args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out, code
}

// tryCommand is command for any goroutine.
func (s *stack) tryCommand(args ...string) (string, int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, callq, append([]string{"--config", s.config}, args...)...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", 0, err
	}
	return string(out), cmd.ProcessState.ExitCode(), nil
}

// process is a running callq.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	log  *logBuffer
	done chan struct{}
}

// logBuffer keeps what a process logs, for when the test fails.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// spawn starts a callq process that ends with the test at the latest.
func (s *stack) spawn(args ...string) *process {
	s.t.Helper()
	p, err := s.launch(args...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			s.t.Logf("log of %s (pid %d):\n%s", p.name, p.cmd.Process.Pid, p.log)
		}
	})
	return p
}

// launch starts a callq process that the caller ends. It may be called from any goroutine.
func (s *stack) launch(args ...string) (*process, error) {
	p := &process{t: s.t, name: strings.Join(args, " "), log: &logBuffer{}, done: make(chan struct{})}
	line := append([]string{callq, "--config", s.config}, args...)
	if args[0] == "work" {
		line = slices.Concat(s.prefix, line)
	}
	p.cmd = exec.Command(line[0], line[1:]...) //nolint:noctx // ended by signals
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	return p, nil
}

// kill ends the process with SIGKILL and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// says waits until the process has logged this text.
func (p *process) says(text string) error {
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(p.log.String(), text) {
		select {
		case <-tick.C:
		case <-p.done:
			return fmt.Errorf("%s has ended", p.name)
		case <-deadline.C:
			return fmt.Errorf("%s had not said %q after a minute", p.name, text)
		}
	}
	return nil
}

// terminate asks the process to drain, waits for its end and returns its exit code.
func (p *process) terminate() int {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		p.t.Errorf("%s had not ended a minute after SIGTERM", p.name)
		p.kill()
	}
	return p.cmd.ProcessState.ExitCode()
}

// start runs n dispatchers and m workers.
func (s *stack) start(dispatchers, workers int) {
	for range dispatchers {
		s.spawn("dispatch")
	}
	for range workers {
		s.spawn("work")
	}
}

// insert queues n calls to the API and returns their ids.
func (s *stack) insert(queue string, n int) []int64 {
	s.t.Helper()
	calls := make([]callqueue.Call, n)
	for i := range calls {
		calls[i] = callqueue.Call{Queue: queue, Data: map[string]any{"url": s.api.URL()}}
	}
	ids, err := s.client.InsertMany(context.Background(), calls)
	if err != nil {
		s.t.Fatal(err)
	}
	return ids
}

// await waits until a query answers true. While Postgres is away it keeps asking.
func (s *stack) await(within time.Duration, sql string, args ...any) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var lastErr error
	for {
		var ok bool
		if lastErr = s.pool.QueryRow(ctx, sql, args...).Scan(&ok); ok {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			out, _ := s.command("status")
			s.t.Fatalf("after %s still not so (%v): %s\n%s", within, lastErr, sql, out)
		}
	}
}

// awaitDone waits until n calls are done.
func (s *stack) awaitDone(within time.Duration, n int) {
	s.t.Helper()
	s.await(within, `SELECT count(*) = $1 FROM call_queue WHERE status = 'done'`, n)
}

// exact checks what must hold after every scenario, whatever happened in it: the API never saw
// more than the rate in any window nor answered 429, no attempt arrived twice, the requests are
// as many as expected, and verify finds nothing.
func (s *stack) exact(rate int, window time.Duration, requests int) {
	s.t.Helper()
	if most := s.api.MaxInWindow(window); most > rate {
		s.t.Errorf("the API saw %d requests in a window of %s; %d are allowed", most, window, rate)
	}
	if n := s.api.Count429(); n > 0 {
		s.t.Errorf("the API answered 429 %d times", n)
	}
	s.nothingTwice()
	if n := len(s.api.Requests()); requests > 0 && n != requests {
		s.t.Errorf("the API saw %d requests, want %d", n, requests)
	}
	s.verify()
}

// nothingTwice checks that the API saw no attempt more than once.
func (s *stack) nothingTwice() {
	s.t.Helper()
	if twice := s.api.Duplicates(); len(twice) > 0 {
		s.t.Errorf("attempts that arrived more than once: %v", twice)
	}
}

// verify runs callq verify, which must find nothing.
func (s *stack) verify() {
	s.t.Helper()
	if out, got := s.command("verify"); got != 0 {
		s.t.Errorf("verify: exit %d\n%s", got, out)
	}
}

// exec runs a statement; a Postgres that is being restarted may refuse it.
func (s *stack) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.pool.Exec(context.Background(), sql, args...)
	pg, refused := errors.AsType[*pgconn.PgError](err)
	if refused && !slices.Contains([]string{"08", "40", "53", "57", "58"}, pg.Code[:2]) {
		s.t.Fatal(err)
	}
}
