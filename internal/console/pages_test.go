package console_test

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/access"
	"github.com/callq/callq/internal/pgtest"
)

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
			site := newSite(t, pool, plentiful, access.Viewer)
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
			if kinds["/"] != 1 || kinds["/calls/"] != 24 || kinds["/limits/"] < 2 || kinds["/queues/"] != 4 || kinds["/calls"] < 8 || kinds["/keys/"] != 1 {
				t.Errorf("reached: %v", kinds)
			}
			shown := html.EscapeString("key" + strings.NewReplacer("\u202e", "\ufffd", "\x1b", "\ufffd", "\u2066", "\ufffd").Replace(text))
			shown = strings.ReplaceAll(shown, "+", "&#43;") // as templates write it
			for at, words := range map[string][]string{
				"/": {
					"another configuration than the one in force, which host/1", "live workers differ on http_task.hosts", "no live worker that carries the label", "paused", "which is not in force", "host/1",
					"9 per 1h",
				},
				"/calls?q=status%3Afailed": {`aria-current="page">Dead letters</a>`, `class="status failed"`, "Why they failed"},
				"/audit":                   {"limit", "queue"},
				"/tasks":                   {"task" + html.EscapeString(text[:8])},
				"/budgets":                 {"100 per 1s"},
				"/workers":                 {"stopped or dead"},
				"/calls/1":                 {shown, "call_data"},
				"/limits/sockets":          {"the API says: 12 of 100 remain"},
				"/calls/4":                 {shown, "&#34;body&#34;: &#34;", `class="status error"`},
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
	full := newSite(t, filled(t, ""), plentiful, access.Viewer)
	viewed := newSite(t, pgtest.New(t), plentiful, access.Viewer)
	empty := newSite(t, pgtest.New(t), plentiful, access.Viewer)
	silent, err := pgxpool.New(t.Context(), noPostgres)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(silent.Close)
	away := newSite(t, silent, plentiful, access.Viewer)
	other := pgtest.New(t)
	if _, err := other.Exec(t.Context(), `DROP TABLE call_queue, callq.call_open, callq.call_limits, callq.call_queues, callq.call_workers, callq.call_budgets, callq.call_pauses, callq.call_flows, callq.call_audit CASCADE`); err != nil {
		t.Fatal(err)
	}
	without := newSite(t, other, plentiful, access.Viewer)
	owner := pgtest.New(t)
	producers, err := pgxpool.New(t.Context(), pgtest.NewLogins(t, owner.Config().ConnString()).Producer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(producers.Close)
	forbidden := newSite(t, producers, plentiful, access.Viewer)

	for _, path := range []string{"/", "/calls", "/calls?q=status:failed+queue:a", "/calls/1", "/limits", "/limits/api", "/queues", "/queues/pay", "/keys", "/keys/key", "/tasks", "/tasks/task", "/workers", "/workers/w", "/budgets", "/budgets/search", "/audit"} {
		for _, c := range []struct {
			name   string
			site   *site
			status int
			words  string
		}{
			{"full", full, http.StatusOK, ""},
			{"away", away, http.StatusServiceUnavailable, "Postgres cannot be reached: "},
			{"without tables", without, http.StatusInternalServerError, "callq doctor"},
			{"forbidden", forbidden, http.StatusInternalServerError, "callq doctor"},
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
		{empty, "/", http.StatusOK, "no dispatcher is alive"},
		{empty, "/", http.StatusOK, "no worker is alive"},
		{empty, "/calls", http.StatusOK, "There is no such call."},
		{empty, "/calls/1", http.StatusNotFound, "There is no call 1"},
		{empty, "/limits/api", http.StatusNotFound, "There is no limit"},
		{empty, "/queues/pay", http.StatusNotFound, "There is no queue"},

		{empty, "/keys", http.StatusOK, "No call with a key waits"},
		{empty, "/keys/any", http.StatusOK, "0 calls are due"},
		{empty, "/tasks/any", http.StatusNotFound, "There is no task of this name"},
		{empty, "/workers/any", http.StatusNotFound, "No worker of this ID"},
		{empty, "/budgets/any", http.StatusNotFound, "There is no budget"},
		{empty, "/tasks", http.StatusOK, "No worker runs, and no call waits"},
		{empty, "/workers", http.StatusOK, "No worker has run of late"},
		{empty, "/budgets", http.StatusOK, "No budget is in force"},
		{empty, "/audit", http.StatusOK, "Nobody has changed anything yet"},
		{full, "/calls/0", http.StatusNotFound, "There is no call"},
		{full, "/calls/-1", http.StatusNotFound, "There is no call"},
		{full, "/calls/99999999999999999999", http.StatusNotFound, "There is no call"},
		{full, "/calls/9223372036854775807", http.StatusNotFound, "There is no call"},
		{full, "/calls/1'", http.StatusNotFound, "There is no call 1&#39;"},
		{full, "/calls/<script>", http.StatusNotFound, "There is no call &lt;script&gt;"},
		{full, "/calls/1/2", http.StatusNotFound, ""},
		{full, "/limits/%FF", http.StatusNotFound, "nothing of this name"},
		{full, "/queues/%00", http.StatusNotFound, "There is no queue"},
		{full, "/limits/", http.StatusNotFound, ""},
		{full, "/favicon.ico", http.StatusNotFound, ""},
		{full, "/status.html", http.StatusNotFound, ""},
		{full, "/style.css", http.StatusOK, "color-scheme"},
		{full, "/calls?q=status:nonsense", http.StatusBadRequest, "status:nonsense is none"},
		{full, "/calls?q=<script>", http.StatusBadRequest, "say what it is: key:&lt;script&gt;"},
		{full, "/calls?q=queue:%FF", http.StatusNotFound, "nothing of this name"},
		{full, "/calls?q=key:%00", http.StatusNotFound, "nothing of this name"},
		{full, "/?every=x&%zz&what=1", http.StatusOK, "Limits"},
		{full, "/calls?q=", http.StatusOK, "exactly 24 calls fit"},
		{full, "/calls?q=7", http.StatusOK, "<h1>Call 7"},
		{full, "/calls?q=key:key+task:task+status:new,error+queue:pay", http.StatusOK, "/calls/"},
		{viewed, "/do/queues/pause?queue=pay", http.StatusForbidden, "Nobody acts here without a login"},
		{viewed, "/do/queues/nonsense", http.StatusNotFound, "There is no such action"},
		{full, "/live.js", http.StatusOK, "EventSource"},
	} {
		if status, text := c.site.ask(http.MethodGet, c.target); status != c.status || !strings.Contains(text, c.words) {
			t.Errorf("%s: %d, want %d and %q\n%s", c.target, status, c.status, c.words, text)
		}
	}
	if log := full.log.String() + empty.log.String() + away.log.String(); log != "" {
		t.Errorf("logged: %s", log)
	}
	if log := forbidden.log.String() + without.log.String(); !strings.Contains(log, "permission denied") || !strings.Contains(log, "does not exist") {
		t.Errorf("what only a fault in the set-up explains is not logged: %s", log)
	}
}

// A page that does not come says so in time. A reader who has gone is no fault that is logged.
func TestTimeout(t *testing.T) {
	t.Parallel()
	pool := filled(t, "")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `LOCK call_queue, callq.call_limits`); err != nil {
		t.Fatal(err)
	}
	slow := newSite(t, pool, 100*time.Millisecond, access.Viewer)
	for _, path := range []string{"/", "/calls", "/calls/1", "/limits/api", "/queues/pay"} {
		if status, text := slow.ask(http.MethodGet, path); status != http.StatusServiceUnavailable || !strings.Contains(text, "within 100ms") {
			t.Errorf("%s: %d\n%s", path, status, text)
		}
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	slow.handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, http.MethodGet, "http://localhost/", nil))
	if slow.log.Len() > 0 {
		t.Errorf("logged: %s", slow.log.String())
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
	site := newSite(t, pool, plentiful, access.Viewer)
	for path, cuts := range map[string]int{"/calls": 0, "/calls?status=failed": 0, "/calls/1": 5} {
		status, text := site.ask(http.MethodGet, path)
		if n := strings.Count(text, "cut here"); status != http.StatusOK || n != cuts || len(text) > 1<<20 {
			t.Errorf("%s: %d, %d cuts, %d bytes", path, status, n, len(text))
		}
	}
}

// A path that is not clean leads to the clean one, here.
func TestRedirects(t *testing.T) {
	t.Parallel()
	site := newSite(t, pgtest.New(t), plentiful, access.Viewer)
	for path, want := range map[string]string{"//evil.example": "/evil.example", "/calls/../": "/", "//": "/"} {
		if status, location := site.ask(http.MethodGet, path); status/100 != 3 || location != want {
			t.Errorf("%s: %d %s", path, status, fmt.Sprint(location))
		}
	}
}

// The list goes to its end, 100 calls a page, as links say.
func TestPaging(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO call_queue (queue) SELECT 'q' || i % 2 FROM generate_series(1, 500) i`); err != nil {
		t.Fatal(err)
	}
	site := newSite(t, pool, plentiful, access.Viewer)
	for filter, step := range map[string]int{"": 1, "?q=queue:q1": 2} { // each call, or those with odd ids
		var ids []string
		pages := 0
		for at := "/calls" + filter; at != ""; pages++ {
			_, text := site.ask(http.MethodGet, at)
			for _, call := range regexp.MustCompile(`href="/calls/(\d+)"`).FindAllStringSubmatch(text, -1) {
				ids = append(ids, call[1])
			}
			at = ""
			if next := regexp.MustCompile(`href="([^"]*)" rel="next"`).FindStringSubmatch(text); next != nil {
				at = html.UnescapeString(next[1])
			}
		}
		var want []string
		for id := 501 - step; id > 0; id -= step {
			want = append(want, strconv.Itoa(id))
		}
		if !slices.Equal(ids, want) || pages != (len(want)+99)/100 {
			t.Errorf("calls%s: on %d pages %v", filter, pages, ids)
		}
	}
}
