package web_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/callq/callq/internal/web"
)

func ask(t *testing.T, cfg web.Config, method, path string, change ...func(*http.Request)) (int, string) {
	t.Helper()
	answer := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	for _, c := range change {
		c(r)
	}
	web.New(cfg).ServeHTTP(answer, r)
	return answer.Code, strings.TrimSpace(answer.Body.String())
}

func TestReadyz(t *testing.T) {
	t.Parallel()
	well := web.Check{Name: "postgres", Run: func(context.Context) error { return nil }}
	ill := web.Check{Name: "redis", Run: func(context.Context) error { return errors.New("connection refused") }}
	stuck := web.Check{Name: "worker", Run: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
	for _, test := range []struct {
		name   string
		checks []web.Check
		status int
		body   string
	}{
		{"nothing to check", nil, http.StatusOK, "ready"},
		{"all well", []web.Check{well}, http.StatusOK, "ready"},
		{"one ill", []web.Check{well, ill}, http.StatusServiceUnavailable, "redis: connection refused"},
		{
			"one ill, one that waits",
			[]web.Check{stuck, ill},
			http.StatusServiceUnavailable,
			"worker: context deadline exceeded\nredis: connection refused",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			status, body := ask(t, web.Config{Checks: test.checks}, http.MethodGet, "/readyz")
			if status != test.status || body != test.body {
				t.Errorf("%d %s, want %d %s", status, body, test.status, test.body)
			}
		})
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "callq_test_total"}))
	asked := web.Check{Name: "postgres", Run: func(context.Context) error { t.Error("a check ran"); return nil }}
	for _, test := range []struct {
		method, path string
		status       int
		words        string
	}{
		{http.MethodGet, "/livez", http.StatusOK, "ok"},
		{http.MethodHead, "/livez", http.StatusOK, ""},
		{http.MethodPost, "/livez", http.StatusMethodNotAllowed, ""},
		{http.MethodGet, "/metrics", http.StatusOK, "callq_test_total 0"},
		{http.MethodGet, "/", http.StatusNotFound, ""},
	} {
		status, body := ask(t, web.Config{Checks: []web.Check{asked}, Metrics: registry}, test.method, test.path)
		if status != test.status || !strings.Contains(body, test.words) {
			t.Errorf("%s %s: %d %s", test.method, test.path, status, body)
		}
	}
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "page of "+r.URL.Path, http.StatusTeapot) })
	for path, want := range map[string]int{
		"/": http.StatusTeapot, "/calls/1": http.StatusTeapot, "/livez/x": http.StatusTeapot,
		"/livez": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusOK,
	} {
		if status, body := ask(t, web.Config{Metrics: registry, Pages: pages}, http.MethodGet, path); status != want {
			t.Errorf("%s beside pages: %d %s", path, status, body)
		}
	}
}

// Who listens on loopback answers to its own names alone.
func TestHosts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ip, listen string
		hosts      map[string]bool
	}{
		{"127.0.0.1", "127.0.0.1:7460", map[string]bool{
			"127.0.0.1:7460": true, "127.0.0.1": true, "localhost:7460": true, "LOCALHOST": true, "localhost.": true, "localhost:8080": true, "[::1]:7460": true,
			"[::1]": true, "127.9.9.9": true, "[::ffff:127.0.0.1]:1": true, "callq.localhost": true,
			"evil.example:7460": false, "evil.example": false, "127.0.0.1.evil.example": false, "localhost.evil.example": false, "evillocalhost": false,
			"0.0.0.0:7460": false, "10.0.0.1:7460": false, "": false, ":7460": false, "[::]": false, "localhost@evil.example": false, "a:b:c": false,
		}},
		{"127.0.1.1", "myhost:7460", map[string]bool{"myhost:7460": true, "MyHost": true, "localhost": true, "otherhost": false, "proxied.example": true}},
		{"::1", "[::1]:7460", map[string]bool{"[::1]:7460": true, "localhost": true, "evil.example": false}},
		{"0.0.0.0", ":7460", map[string]bool{"callq.internal": true, "10.0.0.1:7460": true}},
		{"10.0.0.1", "10.0.0.1:7460", map[string]bool{"callq.internal": true}},
	} {
		cfg := web.Config{
			Metrics: prometheus.NewRegistry(), Pages: http.RedirectHandler("/there", http.StatusFound),
			Known: web.KnownHosts(&net.TCPAddr{IP: net.ParseIP(c.ip), Port: 7460}, []string{c.listen, "proxied.example"}),
		}
		for host, known := range c.hosts {
			want, page := http.StatusMisdirectedRequest, http.StatusMisdirectedRequest
			if known {
				want, page = http.StatusOK, http.StatusFound
			}
			for path, want := range map[string]int{"/readyz": want, "/metrics": want, "/calls": page, "/livez": http.StatusOK} {
				if status, text := ask(t, cfg, http.MethodGet, path, func(r *http.Request) { r.Host = host }); status != want {
					t.Errorf("on %s, asked for %s of %q: %d, want %d\n%s", c.ip, path, host, status, want, text)
				}
			}
		}
	}
}
