package pages_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/dispatcher/pages"
	"github.com/callq/callq/internal/pgtest"
)

func Example() {
	var pool *pgxpool.Pool
	handler, err := pages.New(pages.Config{
		Pool: pool, Prefix: "/ops/callq",
		Who: func(r *http.Request) (string, pages.Role) {
			user, ok := sessionUser(r)
			if !ok {
				return "", pages.Nobody
			}
			return user, pages.Operator
		},
	})
	if err != nil {
		panic(err)
	}
	http.Handle("/ops/callq/", handler)
}

func sessionUser(*http.Request) (string, bool) { return os.Getenv("USER"), true }

// Under a prefix every link stays there, and whom the application lets in acts under that name.
func TestMounted(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, sql := range []string{
		`INSERT INTO callq.call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost) VALUES ('pay', '{}', '', 3, '1 s', '1 m', '30 s', 'retry')`,
		`INSERT INTO call_queue (queue, key) VALUES ('pay', 'k')`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	handler, err := pages.New(pages.Config{
		Pool: pool, Prefix: "/ops/callq", Logger: slog.New(slog.DiscardHandler),
		Who: func(r *http.Request) (string, pages.Role) {
			name, _, ok := r.BasicAuth()
			if !ok {
				return "", pages.Nobody
			}
			return name, pages.Operator
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, path, body, user string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		if user != "" {
			r.SetBasicAuth(user, "")
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for path, want := range map[string]string{
		"/ops/callq/": "Queues", "/ops/callq/queues/pay": "Pause…", "/ops/callq/calls/1": "call_data", "/ops/callq/do/queues/pause?queue=pay": "Why", "/ops/callq/style.css": "color-scheme",
	} {
		status, text := ask(http.MethodGet, path, "", "ana")
		if status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d\n%s", path, status, text)
		}
		for _, link := range regexp.MustCompile(`(?:href|action|src|data-live)="([^"]*)"`).FindAllStringSubmatch(text, -1) {
			if link[1] != "data:," && !strings.HasPrefix(link[1], "/ops/callq/") {
				t.Errorf("%s leads to %s", path, link[1])
			}
		}
		if status, _ := ask(http.MethodGet, path, "", ""); status != http.StatusUnauthorized {
			t.Errorf("%s for nobody: %d", path, status)
		}
	}
	if status, text := ask(http.MethodPost, "/ops/callq/api/queues/pause", `{"queue": "pay", "reason": "x"}`, "ana"); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := ask(http.MethodPost, "/ops/callq/api/limits/set", `{"limit": "x", "rate": "1/s"}`, "ana"); status != http.StatusForbidden {
		t.Errorf("an operator sets a limit: %d", status)
	}
	var by string
	if err := pool.QueryRow(t.Context(), `SELECT by FROM callq.call_audit`).Scan(&by); err != nil || by != "ana" {
		t.Errorf("the audit has %q, %v", by, err)
	}
	for _, cfg := range []pages.Config{{}, {Pool: pool}, {Pool: pool, Who: func(*http.Request) (string, pages.Role) { return "", 0 }, Prefix: "ops/"}} {
		if _, err := pages.New(cfg); err == nil {
			t.Errorf("taken: %+v", cfg)
		}
	}
}
