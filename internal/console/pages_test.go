package console_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

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

func newSite(t *testing.T, pool *pgxpool.Pool, within time.Duration) *site {
	t.Helper()
	s := &site{t: t}
	handler, err := console.New(console.Config{
		Pool: pool, Timeout: within,
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
	style, _, _ := strings.Cut(text, "</style>")
	_, style, _ = strings.Cut(style, "<style>")
	hash := sha256.Sum256([]byte(style))
	for name, want := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'; img-src data:; " +
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
		"Content-Type":                 "text/html; charset=utf-8",
		"Content-Length":               strconv.Itoa(len(text)),
		"Cache-Control":                "no-store",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Referrer-Policy":              "no-referrer",
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
	case !strings.HasSuffix(text, "</html>\n"):
		s.t.Errorf("%s %s: cut off", method, target)
	}
	for _, tag := range regexp.MustCompile(`<\w+`).FindAllString(text, -1) {
		if !strings.Contains(" <html <head <meta <link <title <style <body <header <nav <a <main <h1 <h2 <p <ul <li <table <thead <tr <th <tbody <td "+
			"<span <progress <footer <form <input <label <button <dl <dt <dd <pre <div <b ", " "+tag+" ") {
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
		`INSERT INTO call_limits (name, version, rate, window_size, per_key, slack, send_within, queues, applied_at, applied_by, complete_since, epoch, config)
			VALUES ('api' || $1, 1, 5, '1 h', true, '1 s', '1 s', ARRAY['pay' || $1], now(), $1, now(), callq_epoch(), '{"units": 9, "window": 3600000000000}'),
				('sockets', 1, 5, '0', false, '1 s', '1 s', '{mail}', now(), 'me', now(), callq_epoch(), NULL)`,
		`INSERT INTO call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost)
			VALUES ('pay' || $1, ARRAY['api' || $1], $1, 3, '1 s', '1 m', '30 s', 'retry'), ('mail', '{sockets}', '', 3, '1 s', '1 m', '30 s', 'retry')`,
		`INSERT INTO call_queue (queue, task, key, unique_key, error_message, call_data, status, failed_at, finished_at)
			SELECT CASE WHEN i % 2 = 0 THEN 'pay' || $1 ELSE 'odd' || $1 END, 'task' || $1, 'key' || $1, CASE WHEN s = 'new' THEN i || $1 END, $1, jsonb_build_object('a' || $1, $1),
				s, CASE s WHEN 'failed' THEN now() END, CASE WHEN s IN ('done', 'failed', 'cancelled') THEN now() END
			FROM generate_series(1, 24) i, LATERAL (SELECT (ARRAY['new', 'dispatched', 'done', 'error', 'failed', 'cancelled'])[1 + i % 6] AS s) x`,
		`INSERT INTO call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, started_at, deadline, worker, epoch, pool, queue, task, key, limits, keys, costs)
			SELECT id, 1, 0, 1, 1, now(), now(), now(), CASE WHEN id % 4 = 1 THEN now() END, now(), $1, callq_epoch(), $1, $1, 'http', 'key' || $1, ARRAY['api' || $1], ARRAY['key' || $1], '{1}'
			FROM call_queue WHERE status = 'dispatched'`,
		`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, worker, error, charged, result)
			SELECT id, 1, 1, now(), now(), now(), now(), 'error', $1, 'http', $1, $1, $1, jsonb_build_array(jsonb_build_object('limit', $1::text, 'key', $1::text, 'cost', 1, 'until', now())),
				jsonb_build_object('body', $1::text) FROM call_queue WHERE status IN ('failed', 'error')`,
		`INSERT INTO call_workers VALUES ('v' || $1, 'p' || $1, ARRAY[$1], ARRAY[$1], 4, now(), now() + interval '1 h', jsonb_build_object('hosts', ARRAY[$1])),
			('u' || $1, 'p' || $1, ARRAY[$1], ARRAY[$1], 4, now(), now() + interval '1 h', '{"hosts": []}')`,
		`INSERT INTO call_workers VALUES ('w' || $1, 'p' || $1, ARRAY[$1], ARRAY[$1], 4, now(), now() + interval '1 h'), ('gone' || $1, 'p', '{}', '{}', 4, now(), now() - interval '1 h')`,
		`INSERT INTO call_policies VALUES ('in force', 1, now(), 'host/1' || $1)`,
		`INSERT INTO call_dispatchers VALUES ('a', 'host/1' || $1, 'in force', now() + interval '1 h'), ('b', 'host/2' || $1, 'another', now() + interval '1 h')`,
		`INSERT INTO call_pauses VALUES ('queue', 'pay' || $1, '', 'infinity', $1, now(), $1), ('queue', 'pay' || $1, 'key' || $1, now() + interval '1 h', $1, now(), $1),
			('limit', 'api' || $1, '', now() + interval '1 h', $1, now(), $1), ('limit', 'api' || $1, 'key' || $1, 'infinity', $1, now(), $1)`,
		`INSERT INTO call_budgets VALUES ('search' || $1, 100, '1 s', 7, 'closed', now(), $1)`,
		`INSERT INTO call_audit (by, what, name, change) VALUES ($1, 'limit', 'api' || $1, $1), ($1, 'queue', 'pay' || $1, $1)`,
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
		if _, done := read[at]; done || at == "data:," {
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

// What there is can be reached from the first page, by links alone, and is shown as it is: with plain texts and
// with hostile ones, by a viewer's rights.
func TestEverythingIsReached(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"plain": " of_mine", "hostile": hostile} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner := filled(t, text)
			pool, err := pgxpool.New(t.Context(), pgtest.NewLogins(t, owner.Config().ConnString()).Viewer)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			site := newSite(t, pool, plentiful)
			read := site.crawl()
			if site.log.Len() > 0 {
				t.Errorf("logged: %s", site.log.String())
			}
			kinds := map[string]int{}
			for at := range read {
				kind, _, _ := strings.Cut(at, "?")
				if folder, _, ok := strings.Cut(kind[1:], "/"); ok {
					kind = "/" + folder + "/"
				}
				kinds[kind]++
			}
			// Of queues, two are in force, calls wait in a third, and attempts run in a fourth.
			if kinds["/"] != 2 || kinds["/calls/"] != 24 || kinds["/limits/"] != 2 || kinds["/queues/"] != 4 || kinds["/calls"] < 8 {
				t.Errorf("reached: %v", kinds)
			}
			shown := html.EscapeString("key" + strings.NewReplacer("\u202e", "\ufffd", "\x1b", "\ufffd", "\u2066", "\ufffd").Replace(text))
			shown = strings.ReplaceAll(shown, "+", "&#43;") // as templates write it
			for at, words := range map[string][]string{
				"/": {
					"another configuration than the one in force, which host/1", "Live workers differ on http_task.hosts", "No live worker that carries the label", "paused", "stopped or dead", "which is not in force", "host/1",
					"9 per 1h", "100 per 1s",
				},
				"/calls?status=failed": {"dead letters</a>", `class="status failed"`},
				"/calls/1":             {shown, "call_data"},
				"/calls/4":             {shown, "&#34;body&#34;: &#34;", `class="status error"`},
			} {
				for _, w := range words {
					if !strings.Contains(read[at], w) {
						t.Errorf("%s lacks %q\n%s", at, w, read[at])
					}
				}
			}
		})
	}
}

// Every page, with what is asked wrongly, and with a database that has nothing, is away, is locked or is another's.
func TestAnswers(t *testing.T) {
	t.Parallel()
	full := newSite(t, filled(t, ""), plentiful)
	empty := newSite(t, pgtest.New(t), plentiful)
	silent, err := pgxpool.New(t.Context(), noPostgres)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(silent.Close)
	away := newSite(t, silent, plentiful)
	other := pgtest.New(t)
	if _, err := other.Exec(t.Context(), `DROP TABLE call_queue, call_open, call_limits, call_queues CASCADE`); err != nil {
		t.Fatal(err)
	}
	without := newSite(t, other, plentiful)
	owner := pgtest.New(t)
	producers, err := pgxpool.New(t.Context(), pgtest.NewLogins(t, owner.Config().ConnString()).Producer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(producers.Close)
	forbidden := newSite(t, producers, plentiful)

	for _, path := range []string{"/", "/calls", "/calls?status=failed&queue=a", "/calls/1", "/limits/api", "/queues/pay"} {
		for _, c := range []struct {
			name   string
			site   *site
			status int
			words  string
		}{
			{"full", full, http.StatusOK, ""},
			{"away", away, http.StatusServiceUnavailable, "Postgres cannot be reached: "},
			{"without tables", without, http.StatusServiceUnavailable, "callq doctor"},
			{"forbidden", forbidden, http.StatusInternalServerError, "callq migrate roles"},
		} {
			if status, text := c.site.ask(http.MethodGet, path); status != c.status || !strings.Contains(text, c.words) {
				t.Errorf("%s, %s: %d\n%s", path, c.name, status, text)
			}
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, "NONSENSE"} {
			if status, _ := full.ask(method, path); status != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, status)
			}
		}
		if status, _ := full.ask(http.MethodHead, path); status != http.StatusOK {
			t.Errorf("HEAD %s: %d", path, status)
		}
	}
	for _, c := range []struct {
		site   *site
		target string
		status int
		words  string
	}{
		{empty, "/", http.StatusOK, "No queue is in force"},
		{empty, "/", http.StatusOK, "No dispatcher is alive"},
		{empty, "/", http.StatusOK, "No worker is alive"},
		{empty, "/calls", http.StatusOK, "There is no such call."},
		{empty, "/calls?after=5", http.StatusOK, "There is no such call."},
		{empty, "/calls/1", http.StatusNotFound, "There is no call 1"},
		{empty, "/limits/api", http.StatusNotFound, "There is no limit"},
		{empty, "/queues/pay", http.StatusNotFound, "There is no queue"},

		{full, "/?every=5", http.StatusOK, `http-equiv="refresh" content="5"`},
		{away, "/?every=5", http.StatusServiceUnavailable, `http-equiv="refresh" content="5"`},
		{full, "/?every=1", http.StatusBadRequest, "every is"},
		{full, "/?every=x", http.StatusBadRequest, "every is"},
		{full, "/?what=1", http.StatusBadRequest, "no parameter"},
		{full, "/?%zz", http.StatusBadRequest, "not a query"},
		{full, "/calls/0", http.StatusNotFound, "not the id"},
		{full, "/calls/-1", http.StatusNotFound, "not the id"},
		{full, "/calls/99999999999999999999", http.StatusNotFound, "not the id"},
		{full, "/calls/9223372036854775807", http.StatusNotFound, "There is no call"},
		{full, "/calls/1'", http.StatusNotFound, "not the id"},
		{full, "/calls/1?x=1", http.StatusBadRequest, "no parameter"},
		{full, "/calls/1/2", http.StatusNotFound, "no such page"},
		{full, "/limits/%FF", http.StatusNotFound, "UTF-8"},
		{full, "/queues/%00", http.StatusNotFound, "UTF-8"},
		{full, "/limits/", http.StatusNotFound, "no such page"},
		{full, "/favicon.ico", http.StatusNotFound, "no such page"},
		{full, "/style.css", http.StatusNotFound, "no such page"},
		{full, "/calls?status=nonsense", http.StatusBadRequest, "is not a status"},
		{full, "/calls?status=failed,", http.StatusBadRequest, "is not a status"},
		{full, "/calls?status=<script>", http.StatusBadRequest, "&lt;script&gt;"},
		{full, "/calls?queue=%FF", http.StatusBadRequest, "UTF-8"},
		{full, "/calls?key=%00", http.StatusBadRequest, "UTF-8"},
		{full, "/calls?queue=a&queue=b", http.StatusBadRequest, "given 2 times"},
		{full, "/calls?before=0", http.StatusBadRequest, "before is"},
		{full, "/calls?after=x", http.StatusBadRequest, "after is"},
		{full, "/calls?after=99999999999999999999", http.StatusBadRequest, "after is"},
		{full, "/calls?before=3&after=1", http.StatusBadRequest, "exclude each other"},
		{full, "/calls?key=k&no_key=1", http.StatusBadRequest, "exclude each other"},
		{full, "/calls?no_key=yes", http.StatusBadRequest, "can only be 1"},
		{full, "/calls?status=&queue=&key=&task=", http.StatusOK, "/calls/24"},
		{full, "/calls?no_key=1", http.StatusOK, "There is no such call."},
		{full, "/calls?key=key&task=task&status=new,error&queue=pay", http.StatusOK, "/calls/"},
		{full, "/calls?after=9223372036854775807", http.StatusOK, "/calls/24"},
	} {
		if status, text := c.site.ask(http.MethodGet, c.target); status != c.status || !strings.Contains(text, c.words) {
			t.Errorf("%s: %d, want %d and %q\n%s", c.target, status, c.status, c.words, text)
		}
	}
	if log := full.log.String() + empty.log.String() + away.log.String() + without.log.String(); log != "" {
		t.Errorf("logged: %s", log)
	}
	if log := forbidden.log.String(); !strings.Contains(log, "permission denied") {
		t.Errorf("what only a fault in the set-up explains is not logged: %s", log)
	}
}

// A page that does not come says so in time, and so does one whose reader has gone: nothing is written.
func TestTimeout(t *testing.T) {
	t.Parallel()
	pool := filled(t, "")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `LOCK call_queue, call_limits`); err != nil {
		t.Fatal(err)
	}
	slow := newSite(t, pool, 100*time.Millisecond)
	for _, path := range []string{"/", "/calls", "/calls/1", "/limits/api", "/queues/pay"} {
		if status, text := slow.ask(http.MethodGet, path); status != http.StatusServiceUnavailable || !strings.Contains(text, "within 100ms") {
			t.Errorf("%s: %d\n%s", path, status, text)
		}
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	answer := httptest.NewRecorder()
	slow.handler.ServeHTTP(answer, httptest.NewRequestWithContext(gone, http.MethodGet, "http://localhost/", nil))
	if answer.Body.Len() > 0 {
		t.Errorf("for a reader that has gone: %s", answer.Body)
	}
}

// What is large is cut, and the page says so.
func TestLargeIsCut(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	large := strings.Repeat("ä<b>", 1<<18)
	if _, err := pool.Exec(t.Context(), `ALTER TABLE call_queue DISABLE TRIGGER USER`); err != nil { // as before names were bounded
		t.Fatal(err)
	}
	for _, sql := range []string{
		`INSERT INTO call_queue (status, error_message, call_data, failed_at, finished_at, key, queue, task)
			VALUES ('failed', $1::text, jsonb_build_object('a', $1::text), now(), now(), left($1::text, 600), left($1::text, 601), left($1::text, 602))`,
		`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, error, charged, result)
			VALUES (1, 1, 1, now(), now(), 'error', 'q', 'http', '', $1::text, '[]', jsonb_build_object('a', $1::text))`,
	} {
		if _, err := pool.Exec(t.Context(), sql, large); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pool.Exec(t.Context(), `ALTER TABLE call_queue ENABLE TRIGGER USER`); err != nil {
		t.Fatal(err)
	}
	site := newSite(t, pool, plentiful)
	for path, cuts := range map[string]int{"/calls": 0, "/calls?status=failed": 0, "/calls/1": 5} {
		status, text := site.ask(http.MethodGet, path)
		if n := strings.Count(text, "cut here"); status != http.StatusOK || n != cuts || len(text) > 1<<20 {
			t.Errorf("%s: %d, %d cuts, %d bytes", path, status, n, len(text))
		}
	}
	many := `INSERT INTO call_queue (queue) SELECT 'q' || i FROM generate_series(1, 1000) i`
	if _, err := pool.Exec(t.Context(), many); err != nil {
		t.Fatal(err)
	}
	if _, text := site.ask(http.MethodGet, "/"); !strings.Contains(text, "And 900 pairs more of a queue that is not in the configuration") {
		t.Errorf("of a thousand queues: %d bytes", len(text))
	}
}

// A path that is not clean leads to the clean one, here.
func TestRedirects(t *testing.T) {
	t.Parallel()
	site := newSite(t, pgtest.New(t), plentiful)
	for path, want := range map[string]string{"//evil.example": "/evil.example", "/calls/../": "/", "//": "/"} {
		if status, location := site.ask(http.MethodGet, path); status/100 != 3 || location != want {
			t.Errorf("%s: %d %s", path, status, fmt.Sprint(location))
		}
	}
}

// The list goes to its end and back, 100 calls a page, as links say.
func TestPaging(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO call_queue (queue) SELECT 'q' || i % 2 FROM generate_series(1, 500) i`); err != nil {
		t.Fatal(err)
	}
	site := newSite(t, pool, plentiful)
	for filter, all := range map[string]int{"": 500, "?queue=q1": 250} {
		var down []string // the ids of each page
		seen, last := 0, ""
		for at := "/calls" + filter; at != ""; {
			_, text := site.ask(http.MethodGet, at)
			ids := idsIn(text)
			if len(ids) > 100 {
				t.Errorf("%s: %d calls", at, len(ids))
			}
			seen, down, last = seen+len(ids), append(down, strings.Join(ids, " ")), at
			at = link(text, "next")
		}
		if seen != all || len(down) != (all+99)/100 {
			t.Errorf("calls%s: %d calls on %d pages, want %d", filter, seen, len(down), all)
		}
		for page := len(down) - 1; page >= 0; page-- {
			_, text := site.ask(http.MethodGet, last)
			if got := strings.Join(idsIn(text), " "); got != down[page] {
				t.Errorf("back on page %d of calls%s: %s, want %s", page, filter, got, down[page])
			}
			last = link(text, "prev")
		}
		if last != "" {
			t.Errorf("calls%s: %s is newer than the newest", filter, last)
		}
	}
}

func idsIn(text string) []string {
	var ids []string
	for _, found := range regexp.MustCompile(`href="/calls/(\d+)"`).FindAllStringSubmatch(text, -1) {
		ids = append(ids, found[1])
	}
	return ids
}

// link is where the link of this kind leads; empty: there is none.
func link(text, rel string) string {
	found := regexp.MustCompile(`href="([^"]*)" rel="` + rel + `"`).FindStringSubmatch(text)
	if found == nil {
		return ""
	}
	return html.UnescapeString(found[1])
}
