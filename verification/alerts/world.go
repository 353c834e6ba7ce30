package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/tasks"
)

// world is a callq of one fault: a database, a Redis, an API, and processes by their role.
type world struct {
	callq, config string
	server        string // the address of its Postgres's own database
	database      string
	clock         string // the file that Postgres's clock goes by, if it is faked
	pool          *pgxpool.Pool
	redis, other  *local.RedisServer // of Asynq; of budgets
	api           *httptest.Server
	processes     map[string]*process
	beside        sync.WaitGroup
	ends          []func() error
}

// stage stages a fault, and scrapes twice before it and twice in it.
func (s *suite) stage(ctx context.Context, i int, f fault) (of scrapes, err error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &world{callq: s.callq, database: fmt.Sprintf("alerts_%d", i), processes: map[string]*process{}}
	defer func() {
		cancel()
		w.beside.Wait()
		for len(w.ends) > 0 {
			last := len(w.ends) - 1
			err, w.ends = errors.Join(err, w.ends[last]()), w.ends[:last]
		}
	}()
	dir := filepath.Join(s.temp, w.database)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return of, err
	}
	if err := w.open(ctx, dir, f); err != nil {
		return of, err
	}
	for n := range of {
		if n == 2 {
			for _, does := range f.does {
				if err := does(ctx, w); err != nil {
					return of, errors.Join(err, w.logs())
				}
			}
		}
		time.Sleep(2500 * time.Millisecond) // two ticks; and scrapes within a second share a reading
		if of[n], err = w.scrape(ctx); err != nil {
			return of, err
		}
	}
	return of, nil
}

// open starts the servers and the processes.
func (w *world) open(ctx context.Context, dir string, f fault) (err error) {
	w.server = os.Getenv("TEST_DATABASE_URL")
	if f.alert == "CallqClockOff" {
		if err := w.fakeClock(ctx, dir); err != nil {
			return err
		}
	}
	for _, r := range []**local.RedisServer{&w.redis, &w.other} {
		if *r, err = local.StartRedis(ctx, local.Redis{}); err != nil {
			return err
		}
		w.ends = append(w.ends, (*r).Stop)
	}
	w.api = httptest.NewServer(http.HandlerFunc(serveAPI))
	w.ends = append(w.ends, func() error { w.api.CloseClientConnections(); w.api.Close(); return nil })
	if err := w.admin(ctx, "CREATE DATABASE "+w.database); err != nil {
		return err
	}
	at, err := url.Parse(w.server)
	if err != nil {
		return err
	}
	at.Path = "/" + w.database
	w.config = filepath.Join(dir, "callq.yaml")
	text := fmt.Sprintf("postgres: {url: %q}\nredis: {url: %q, budgets_url: %q}\nhttp: {listen: '127.0.0.1:0'}\nhttp_task: {allow_private: true}\n",
		at, w.redis.URL(), w.other.URL()) + f.rules
	if err := os.WriteFile(w.config, []byte(text), 0o600); err != nil {
		return err
	}
	if err := w.run(ctx, "migrate", "up"); err != nil {
		return err
	}
	if w.pool, err = pgxpool.New(ctx, at.String()); err != nil {
		return err
	}
	w.ends = append(w.ends, func() error { w.pool.Close(); return nil })
	if len(f.roles) == 0 {
		f.roles = []string{"serve"}
	}
	for _, role := range f.roles {
		if err := w.start(ctx, role); err != nil {
			return fmt.Errorf("start %s: %w", role, err)
		}
	}
	return nil
}

// fakeClock gives the world a Postgres of its own, whose clock can be set.
func (w *world) fakeClock(ctx context.Context, dir string) error {
	found, err := local.Find("faketime", []string{"faketime"})
	if err != nil {
		return fmt.Errorf("%w: run `make deps`", err)
	}
	libraries, _ := filepath.Glob(filepath.Join(found.Dir, "../lib*/*/faketime/libfaketime.so.1")) // fails for a bad pattern only
	if len(libraries) == 0 {
		return fmt.Errorf("there is no libfaketime.so.1 beside %s", found.Dir)
	}
	w.clock = filepath.Join(dir, "clock")
	err = setClock("+0")(ctx, w)
	for _, read := range []string{filepath.Dir(dir), dir, w.clock} {
		err = errors.Join(err, os.Chmod(read, 0o755)) //nolint:gosec // Postgres may be another user
	}
	if err != nil {
		return err
	}
	postgres, err := local.StartPostgres(ctx, local.Postgres{
		Settings: map[string]string{"fsync": "off"},
		Env: []string{
			"LD_PRELOAD=" + libraries[0], "FAKETIME_TIMESTAMP_FILE=" + w.clock, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
		},
	})
	if err != nil {
		return err
	}
	w.ends = append(w.ends, postgres.Stop)
	w.server = postgres.URL("postgres")
	return nil
}

// serveAPI is the API that calls go to.
func serveAPI(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case hangs:
		<-r.Context().Done()
	case closes:
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	case refuses:
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

// process is what is scraped.
type process struct {
	cmd  *exec.Cmd // nil: it is in this program
	site string    // http://127.0.0.1:1234
	log  string    // a file
}

var served = regexp.MustCompile(`msg="http served" address=(\S+)`)

// start starts a command of callq, at another Redis than the rest if its role ends in @other, or a worker with a handler that draws
// on the budget llm: callq has none itself.
func (w *world) start(ctx context.Context, role string) error {
	if role == "drawer" {
		return w.startDrawer(ctx)
	}
	command, elsewhere := strings.CutSuffix(role, "@other")
	p := &process{cmd: exec.Command(w.callq, "--config", w.config, command), log: w.config + "." + command} //nolint:noctx // it is killed
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if elsewhere {
		p.cmd.Env = append(os.Environ(), "CALLQ_REDIS_URL="+w.other.URL())
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	w.processes[command] = p
	w.ends = append(w.ends, p.kill)
	return wait("it serves http", func(ctx context.Context, _ *world) (bool, error) {
		text, err := os.ReadFile(p.log)
		at := served.FindSubmatch(text)
		if at == nil {
			return false, errors.Join(err, fmt.Errorf("its log is\n%s", text))
		}
		p.site = "http://" + string(at[1])
		_, err = get(ctx, p.site+"/readyz")
		return err == nil, err
	})(ctx, w)
}

func (w *world) startDrawer(ctx context.Context) error {
	clients := [2]*redis.Client{}
	for i, r := range []*local.RedisServer{w.redis, w.other} {
		options, err := redis.ParseURL(r.URL())
		if err != nil {
			return err
		}
		clients[i] = redis.NewClient(options)
		w.ends = append(w.ends, clients[i].Close)
	}
	registry := prometheus.NewRegistry()
	worker, err := tasks.New(tasks.Config{Pool: w.pool, Redis: clients[0], Budgets: clients[1], ShutdownTimeout: time.Second, Metrics: registry})
	if err != nil {
		return err
	}
	worker.Handle("draw", func(ctx context.Context, call *tasks.Call) error { return call.Draw(ctx, "llm", 1) })
	w.beside.Go(func() { _ = worker.Run(ctx) }) // what it fails of shows in the wait for its calls
	site := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	w.ends = append(w.ends, func() error { site.Close(); return nil })
	w.processes["drawer"] = &process{site: site.URL}
	return nil
}

// kill kills it, if it is not killed yet.
func (p *process) kill() error {
	if p.cmd.ProcessState != nil {
		return nil
	}
	err := p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it says that it was killed
	return err
}

func (p *process) metrics(ctx context.Context) (string, error) { return get(ctx, p.site+"/metrics") }

func get(ctx context.Context, at string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s\n%s", at, answer.Status, text)
	}
	return string(text), err
}

// scrape reads what the living processes export.
func (w *world) scrape(ctx context.Context) (scrape, error) {
	all := scrape{at: time.Now(), values: map[string]float64{}, counts: map[string]bool{}}
	for role, p := range w.processes {
		if p.cmd != nil && p.cmd.ProcessState != nil {
			continue
		}
		text, err := p.metrics(ctx)
		if err == nil {
			err = all.add(role, text)
		}
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// run runs a command of callq.
func (w *world) run(ctx context.Context, args ...string) error {
	if text, err := exec.CommandContext(ctx, w.callq, append([]string{"--config", w.config}, args...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("callq %s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return nil
}

func (w *world) exec(ctx context.Context, statement string, args ...any) error {
	if _, err := w.pool.Exec(ctx, statement, args...); err != nil {
		return fmt.Errorf("%w\n%s", err, statement)
	}
	return nil
}

// admin runs statements beside the world's database.
func (w *world) admin(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, w.server)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%w\n%s", err, statement)
		}
	}
	return nil
}

// logs is an error with the processes' logs.
func (w *world) logs() error {
	var all []error
	for role, p := range w.processes {
		text, _ := os.ReadFile(p.log) // the drawer has none
		all = append(all, fmt.Errorf("log of %s:\n%s", role, text))
	}
	return errors.Join(all...)
}
