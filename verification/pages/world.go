package main

import (
	"bufio"
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
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// world is a database, an API, and a `callq serve` between them.
type world struct {
	pool  *pgxpool.Pool
	api   *httptest.Server
	serve *exec.Cmd
	site  string // its address: http://127.0.0.1:1234
}

const database = "pages"

// newWorld builds and starts callq. Its log goes to stderr where it warns.
func newWorld(ctx context.Context, temp string) (_ *world, err error) {
	w := &world{}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	callq := filepath.Join(temp, "callq")
	if text, err := exec.CommandContext(ctx, "go", "build", "-C", "..", "-o", callq, "./cmd/callq").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build callq: %w\n%s", err, text)
	}
	at, err := createDatabase(ctx, os.Getenv("TEST_DATABASE_URL"))
	if err != nil {
		return nil, fmt.Errorf("create the database: %w", err)
	}
	if w.pool, err = pgxpool.New(ctx, at); err != nil {
		return nil, err
	}
	w.api = httptest.NewServer(http.HandlerFunc(serveAPI))
	config := filepath.Join(temp, "callq.yaml")
	text := fmt.Sprintf("postgres: {url: %q}\nredis: {url: %q}\n", at, os.Getenv("TEST_REDIS_URL")) + rules()
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	if text, err := exec.CommandContext(ctx, callq, "--config", config, "migrate", "up").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("callq migrate up: %w\n%s", err, text)
	}
	return w, w.start(callq, config)
}

// start starts callq, and waits until its pages answer.
func (w *world) start(callq, config string) error {
	w.serve = exec.Command(callq, "--config", config, "serve") //nolint:noctx // it is asked to stop by a signal
	w.serve.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := w.serve.StderrPipe()
	if err != nil {
		return err
	}
	if err := w.serve.Start(); err != nil {
		return err
	}
	address := make(chan string, 1)
	go readLog(log, address)
	select {
	case at := <-address:
		w.site = "http://" + at
		return nil
	case <-time.After(30 * time.Second):
		return errors.New("callq serve did not begin to serve http")
	}
}

// readLog sends the address that callq serves at, and passes on what callq warns of.
func readLog(log io.Reader, address chan<- string) {
	served := regexp.MustCompile(`msg="http served" address=(\S+)`)
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		line := lines.Text()
		if at := served.FindStringSubmatch(line); at != nil {
			address <- at[1]
		}
		if !strings.Contains(line, "level=INFO") {
			fmt.Fprintln(os.Stderr, line)
		}
	}
}

// serveAPI is the API that calls go to: /busy is closed for an hour.
func serveAPI(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/busy") {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"ok": true}`)
}

// createDatabase makes the suite's database anew, and returns its address.
func createDatabase(ctx context.Context, at string) (string, error) {
	conn, err := pgx.Connect(ctx, at)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + database + " WITH (FORCE)", "CREATE DATABASE " + database} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", err
		}
	}
	u, err := url.Parse(at)
	if err != nil {
		return "", err
	}
	u.Path = "/" + database
	return u.String(), nil
}

// close stops callq. The database goes with its server.
func (w *world) close() {
	if w.serve != nil && w.serve.Process != nil {
		_ = w.serve.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(20*time.Second, func() { _ = w.serve.Process.Kill() })
		_ = w.serve.Wait()
		kill.Stop()
	}
	if w.api != nil {
		w.api.Close()
	}
	if w.pool != nil {
		w.pool.Close()
	}
}

// holds waits until a statement's one value is true.
func (w *world) holds(ctx context.Context, within time.Duration, sql string, args ...any) (held bool, err error) {
	for until := time.Now().Add(within); !held && time.Now().Before(until); {
		if err := w.pool.QueryRow(ctx, sql, args...).Scan(&held); err != nil {
			return false, fmt.Errorf("%w\n%s", err, sql)
		}
		if !held {
			time.Sleep(50 * time.Millisecond)
		}
	}
	return held, nil
}

// one reads a statement's one value.
func one[T any](ctx context.Context, w *world, sql string, args ...any) (value T, err error) {
	if err := w.pool.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		return value, fmt.Errorf("%w\n%s", err, sql)
	}
	return value, nil
}
