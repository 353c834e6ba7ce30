package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/callqueue"
)

const secretCanary = "sk_live_canary4711" // a secret that must be found at the API and nowhere else

// leaky is an API that repeats what it is sent in every way, under paths that say which.
func leaky(t *testing.T) (url string, received *atomic.Int32) {
	t.Helper()
	received = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth := r.Header.Get("Authorization")
		if auth == "Bearer "+secretCanary {
			received.Add(1)
		}
		w.Header().Set("X-Echo", auth)
		switch r.URL.Path {
		case "/error":
			http.Error(w, auth, http.StatusInternalServerError)
		case "/gone":
			http.Error(w, auth, http.StatusNotFound)
		case "/limit":
			w.Header().Set("Retry-After", "1")
			http.Error(w, auth, http.StatusTooManyRequests)
		case "/redirect":
			http.Redirect(w, r, "/echo?k="+auth, http.StatusFound)
		case "/hangup":
			panic(http.ErrAbortHandler)
		case "/garbled", "/surplus": // words that net/http shows in an error, and on the standard logger
			conn, to, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if r.URL.Path == "/surplus" {
				_, _ = to.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
			_, _ = to.WriteString(auth + "\r\n\r\n")
			_ = to.Flush()
			_, _ = io.Copy(io.Discard, conn) // until the client goes
		default:
			_ = json.NewEncoder(w).Encode(r.Header)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, received
}

// Through answers, errors, hang-ups, refusals, logs at level debug, tables and Redis: the secret is at the
// API, and nowhere else.
func TestSecretStaysSecret(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	api, received := leaky(t)
	broken := httptest.NewTLSServer(http.NotFoundHandler()) // its certificate is nobody's
	t.Cleanup(broken.Close)
	file := filepath.Join(t.TempDir(), "key")
	must(t, os.WriteFile(file, []byte(secretCanary+"\n"), 0o600))
	w.config = fmt.Sprintf(`
http: {listen: 127.0.0.1:0}
log: {level: debug}
queues: {default: {max_attempts: 1, on_refused: retry}}
http_task:
  private_hosts: [127.0.0.1]
  store: all
  secrets:
    KEY: {env: KEY, hosts: [127.0.0.1]}
    FILE: {file: %q, hosts: [127.0.0.1]}
    ELSEWHERE: {env: KEY, hosts: [api.example.com]}
`, file)
	seen := monitor(t, w.redis)

	p := w.command("serve") // a process of its own: the standard logger is one for all
	p.cmd.Env = append(p.cmd.Env, "KEY="+secretCanary)
	p.start().ready()
	type call struct{ id, secret, url, status, words string }
	calls := []call{
		{"", "KEY", api + "/echo", "done", "***"},
		{"", "FILE", api + "/echo", "done", "***"},
		{"", "KEY", api + "/error", "failed", "500 Internal Server Error"},
		{"", "KEY", api + "/limit", "failed", "429 Too Many Requests"},
		{"", "KEY", api + "/redirect", "failed", "302 Found"},
		{"", "KEY", api + "/hangup", "failed", "EOF"},
		{"", "KEY", api + "/garbled", "failed", "malformed HTTP"},
		{"", "KEY", api + "/surplus", "done", ""},
		{"", "KEY", broken.URL, "failed", "certificate"},
		{"", "NOPE", api + "/unknown", "failed", `\"NOPE\" is not one of this worker's http_task.secrets`},
		{"", "ELSEWHERE", api + "/notallowed", "failed", "it is not among its hosts"},
	}
	for i, c := range calls {
		calls[i].id = strings.TrimSpace(w.do("enqueue", "--data",
			fmt.Sprintf(`{"url": %q, "headers": {"Authorization": {"secret": %q, "prefix": "Bearer "}}}`, c.url, c.secret)))
	}
	var shown strings.Builder
	for _, c := range calls {
		var got string
		eventually(t, c.url+" has ended", func() bool {
			got = w.do("calls", "get", c.id, "-o", "json")
			status := decode[callqueue.Record](t, got).Status
			return status == callqueue.StatusDone || status == callqueue.StatusFailed
		})
		shown.WriteString(got)
		if flat := strings.Join(strings.Fields(got), " "); !strings.Contains(flat, `"status": "`+c.status+`"`) || !strings.Contains(got, c.words) {
			t.Errorf("%s: want %s with %s\n%s", c.url, c.status, c.words, got)
		}
	}
	shown.WriteString(w.run("status").stdout + w.run("limits", "list").stdout + w.run("config", "check").stdout)
	p.kill()

	if n := received.Load(); n != 8 {
		t.Errorf("the API had the secret %d times, want 8", n)
	}
	for place, text := range map[string]string{
		"what commands show": shown.String(), "the log": p.log.String(), "what Redis was told": seen(),
		"the tables": everyRow(t, w.postgres), "Redis": everyKey(t, w.redis),
	} {
		if text == "" || strings.Contains(text, "canary") || strings.Contains(text, "sk_live") {
			t.Errorf("in %s:\n%.3000s", place, text)
		}
	}
	if !strings.Contains(shown.String(), "***") {
		t.Error("no answer repeated the secret: this shows nothing")
	}
}

// monitor returns what a Redis is told from now on.
func monitor(t *testing.T, url string) (seen func() string) {
	t.Helper()
	options, err := redis.ParseURL(url)
	must(t, err)
	conn, err := redis.NewDialer(options)(t.Context(), options.Network, options.Addr)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all strings.Builder
	go func() {
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			mu.Lock()
			all.WriteString(lines.Text() + "\n")
			mu.Unlock()
		}
	}()
	return func() string { mu.Lock(); defer mu.Unlock(); return all.String() }
}

// everyRow is all that stands in a database's tables.
func everyRow(t *testing.T, url string) string {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, url)
	must(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	read := func(sql string) []string {
		rows, err := conn.Query(ctx, sql)
		must(t, err)
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return list
	}
	var all strings.Builder
	for _, table := range read("SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')") {
		all.WriteString(strings.Join(read("SELECT t::text FROM "+table+" AS t"), "\n"))
	}
	if !strings.Contains(all.String(), "secret") {
		t.Error("the calls themselves are not among the rows")
	}
	return all.String()
}

// everyKey is all that a Redis holds, with the names.
func everyKey(t *testing.T, url string) string {
	t.Helper()
	options, err := redis.ParseURL(url)
	must(t, err)
	client := redis.NewClient(options)
	defer client.Close()
	all := fmt.Sprint(time.Now())
	for keys := client.Scan(t.Context(), 0, "*", 1000).Iterator(); keys.Next(t.Context()); {
		all += "\n" + keys.Val()
		for _, ask := range [][]any{{"GET", keys.Val()}, {"LRANGE", keys.Val(), 0, -1}, {"HGETALL", keys.Val()}, {"SMEMBERS", keys.Val()}, {"ZRANGE", keys.Val(), 0, -1}, {"XRANGE", keys.Val(), "-", "+"}} {
			if value, err := client.Do(t.Context(), ask...).Result(); err == nil { // the others are of another type
				all += fmt.Sprint(value)
			}
		}
	}
	return all
}
