package console_test

import (
	"errors"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/access"
	"github.com/callq/callq/internal/actions"
	"github.com/callq/callq/internal/console"
	"github.com/callq/callq/internal/pgtest"
)

const (
	noPostgres = "postgres://nobody@127.0.0.1:1/none"
	plentiful  = 5 * time.Minute // of a page, on a slow machine
)

// site is the pages of a database.
type site struct {
	t       *testing.T
	handler http.Handler
	log     strings.Builder
}

func newSite(t *testing.T, pool *pgxpool.Pool, within time.Duration, role access.Role) *site {
	t.Helper()
	s := &site{t: t}
	client, err := callqueue.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := access.New(access.Config{Open: access.Who{Name: "loopback", Role: role}, Logger: slog.New(slog.NewTextHandler(&s.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := console.New(console.Config{
		Pool: pool, Client: client, Timeout: within, Guard: guard, Actions: &actions.Actions{Pool: pool, Client: client},
		Explain: func(err error) (bool, string) {
			_, away := errors.AsType[*pgconn.ConnectError](err)
			return away, err.Error()
		},
		Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.handler = handler
	return s
}

// ask returns a page, which holds to what all promise.
func (s *site) ask(method, target string) (int, string) {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), method, "http://localhost:7460"+target, nil)
	answer := httptest.NewRecorder()
	s.handler.ServeHTTP(answer, r)
	header, text := answer.Result().Header, answer.Body.String()
	if location := header.Get("Location"); location != "" {
		return answer.Code, location
	}
	contentType := "text/html; charset=utf-8"
	if plain := contentType != header.Get("Content-Type"); plain { // the style, or what net/http refuses
		contentType = map[bool]string{true: "text/css; charset=utf-8", false: "text/plain; charset=utf-8"}[answer.Code == http.StatusOK]
		if target == "/live.js" {
			contentType = "text/javascript; charset=utf-8"
		}
	}
	for name, want := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; " +
			"base-uri 'none'; frame-ancestors 'none'",
		"Content-Type":                 contentType,
		"Cache-Control":                "no-store",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Referrer-Policy":              "same-origin",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
	} {
		if got := header.Get(name); got != want {
			s.t.Errorf("%s %s: %s: %q, want %q", method, target, name, got, want)
		}
	}
	switch {
	case !utf8.ValidString(text):
		s.t.Errorf("%s %s: not UTF-8", method, target)
	case strings.ContainsAny(text, "\x00\x1b\u202e\u2066"):
		s.t.Errorf("%s %s: something moves the cursor, or turns the line round", method, target)
	case strings.Contains(text, "goroutine "), regexp.MustCompile(`\w\.go:\d`).MatchString(text):
		s.t.Errorf("%s %s: a stack trace\n%s", method, target, text)
	case strings.Contains(text, "ZgotmplZ"):
		s.t.Errorf("%s %s: the template refused something\n%s", method, target, text)
	case strings.HasPrefix(contentType, "text/html") && !strings.HasSuffix(text, "</html>\n"):
		s.t.Errorf("%s %s: cut off", method, target)
	}
	for _, tag := range regexp.MustCompile(`<\w+`).FindAllString(text, -1) {
		if !strings.Contains(" <html <head <meta <link <title <style <body <header <nav <a <main <h1 <h2 <p <ul <li <table <thead <tr <th <tbody <td "+
			"<script <time <rect <path <text <section <article <small <code <svg <polygon <polyline <line <span <progress <footer <form <input <select <option <label <button <dl <dt <dd <pre <div <b ", " "+tag+" ") {
			s.t.Errorf("%s %s: there is a %s", method, target, tag)
		}
	}
	return answer.Code, text
}

// hostile is what anybody may put into a name, a key or a message.
const hostile = `"'><script>alert(1)</script><img src=x onerror=alert(1)>{{.}}` + "\u202e\x1b[31m\u2066%2F/../?a=b&c#d+e "

// filled has calls of every status, rules, workers and pauses, with this text wherever a text can be.
func filled(t *testing.T, text string) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	for _, sql := range []string{
		`INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, per_key, slack, send_within, queues, applied_at, applied_by, complete_since, epoch, config)
			VALUES ('api' || $1, 1, 5, '1 h', '3.6 s', true, '1 s', '1 s', ARRAY['pay' || $1], now(), $1, now(), callq.epoch(), '{"units": 9, "window": 3600000000000}'),
				('sockets', 1, 5, '0', '1 us', false, '1 s', '1 s', '{mail}', now(), 'me', now(), callq.epoch(), NULL)`,
		`INSERT INTO callq.call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost)
			VALUES ('pay' || $1, ARRAY['api' || $1], $1, 3, '1 s', '1 m', '30 s', 'retry'), ('mail', '{sockets}', '', 3, '1 s', '1 m', '30 s', 'retry')`,
		`INSERT INTO call_queue (queue, task, key, unique_key, error_message, call_data, status, failed_at, finished_at)
			SELECT CASE WHEN i % 2 = 0 THEN 'pay' || $1 ELSE 'odd' || $1 END, 'task' || $1, 'key' || $1, CASE WHEN s = 'new' THEN i || $1 END, $1, jsonb_build_object('a' || $1, $1),
				s, CASE s WHEN 'failed' THEN now() END, CASE WHEN s IN ('done', 'failed', 'cancelled') THEN now() END
			FROM generate_series(1, 24) i, LATERAL (SELECT (ARRAY['new', 'dispatched', 'done', 'error', 'failed', 'cancelled'])[1 + i % 6] AS s) x`,
		`INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, started_at, deadline, worker, epoch, pool, queue, task, key, limits, keys, costs)
			SELECT id, 1, 0, 1, 1, now(), now(), now(), CASE WHEN id % 4 = 1 THEN now() END, now(), $1, callq.epoch(), $1, $1, 'http', 'key' || $1, ARRAY['api' || $1], ARRAY['key' || $1], '{1}'
			FROM call_queue WHERE status = 'dispatched'`,
		`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, worker, error, charged, result)
			SELECT id, 1, 1, now(), now(), now(), now(), 'error', $1, 'http', $1, $1, $1, jsonb_build_array(jsonb_build_object('limit', $1::text, 'key', $1::text, 'cost', 1, 'until', now())),
				jsonb_build_object('body', $1::text) FROM call_queue WHERE status IN ('failed', 'error')`,
		`INSERT INTO callq.call_workers VALUES ('v' || $1, 'p' || $1, ARRAY[$1], ARRAY[$1], 4, now(), now() + interval '1 h', jsonb_build_object('hosts', ARRAY[$1])),
			('u' || $1, 'p' || $1, ARRAY[$1], ARRAY[$1], 4, now(), now() + interval '1 h', '{"hosts": []}')`,
		`INSERT INTO callq.call_workers VALUES ('w' || $1, 'p' || $1, ARRAY[$1], ARRAY[$1], 4, now(), now() + interval '1 h'), ('gone' || $1, 'p', '{}', '{}', 4, now(), now() - interval '1 h')`,
		`INSERT INTO callq.call_policies VALUES ('in force', 1, now(), 'host/1' || $1)`,
		`INSERT INTO callq.call_dispatchers VALUES ('a', 'host/1' || $1, 'in force', now() + interval '1 h'), ('b', 'host/2' || $1, 'another', now() + interval '1 h')`,
		`INSERT INTO callq.call_pauses VALUES ('queue', 'pay' || $1, '', 'infinity', $1, now(), $1), ('queue', 'pay' || $1, 'key' || $1, now() + interval '1 h', $1, now(), $1),
			('limit', 'api' || $1, '', now() + interval '1 h', $1, now(), $1), ('limit', 'api' || $1, 'key' || $1, 'infinity', $1, now(), $1)`,
		`INSERT INTO callq.call_remotes (limit_name, key, most, remaining, answered_at) VALUES ('sockets', '', 100, 12, now()), ('api' || $1, 'key' || $1, 9, 8, now())`,
		`INSERT INTO callq.call_budgets VALUES ('search' || $1, 100, '1 s', 7, 'closed', now(), $1)`,
		`INSERT INTO callq.call_audit (by, what, name, change) VALUES ($1, 'limit', 'api' || $1, $1), ($1, 'queue', 'pay' || $1, $1)`,
	} {
		if !strings.Contains(sql, "$1::text") {
			sql = strings.Replace(sql, "$1", "$1::text", 1)
		}
		if _, err := pool.Exec(t.Context(), sql, text); err != nil {
			t.Fatalf("%v\n%s", err, sql)
		}
	}
	return pool
}

// crawl follows every link from the first page on, and returns what it read by where it was. All must be there.
func (s *site) crawl() map[string]string {
	s.t.Helper()
	read, next := map[string]string{}, []string{"/"}
	for len(next) > 0 {
		at := next[0]
		next = next[1:]
		if _, done := read[at]; done || at == "data:," || at == "/style.css" || strings.HasPrefix(at, "/do/") {
			continue
		}
		status, text := s.ask(http.MethodGet, at)
		if status != http.StatusOK {
			s.t.Errorf("%s: %d\n%s", at, status, text)
		}
		read[at] = text
		for _, link := range regexp.MustCompile(`(?:href|action)="([^"]*)"`).FindAllStringSubmatch(text, -1) {
			next = append(next, html.UnescapeString(link[1]))
		}
	}
	return read
}
