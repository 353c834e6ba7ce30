package console_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/callq/callq/internal/access"
)

// watch returns a function that reads the next body of a page that is watched.
func watch(t *testing.T, server *httptest.Server, page string) (next func() string, leave func()) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	t.Cleanup(leave)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/live?page="+url.QueryEscape(page), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %d %s", page, answer.StatusCode, answer.Header.Get("Content-Type"))
	}
	lines := bufio.NewReader(answer.Body)
	return func() string {
		t.Helper()
		var body strings.Builder
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				if err != io.EOF && ctx.Err() == nil {
					t.Error(err)
				}
				return ""
			}
			data, isData := strings.CutPrefix(line, "data: ")
			switch {
			case isData:
				body.WriteString(data)
			case line == "\n" && body.Len() > 0:
				return body.String()
			}
		}
	}, leave
}

// Who looks at a page gets it, and again once it has changed. Buttons are those of the viewer's role.
func TestLive(t *testing.T) {
	t.Parallel()
	a := newActing(t, access.Operator)
	server := httptest.NewServer(a.handler)
	t.Cleanup(server.Close)
	const page = "/queues/pay?x=<y>"
	one, leave := watch(t, server, page)
	first := one()
	if !strings.Contains(first, "<h1>Queue pay</h1>") || !strings.Contains(first, "/do/queues/pause") || strings.Contains(first, "<main>") || strings.Contains(first, "</html>") {
		t.Errorf("at first: %s", first)
	}
	two, _ := watch(t, server, page)
	if second := two(); second != first {
		t.Errorf("another viewer sees something else: %s", second)
	}
	if status, text := a.post("/api/queues/pause", `{"queue": "pay", "reason": "incident 7"}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	for name, next := range map[string]func() string{"one": one, "two": two} {
		for body := next(); !strings.Contains(body, "incident 7"); body = next() {
			if body == "" {
				t.Fatalf("viewer %s is not told", name)
			}
		}
	}
	leave()
	if again, _ := watch(t, server, page); !strings.Contains(again(), "incident 7") {
		t.Error("a page that others watch is not sent at once")
	}
}

func TestLiveRefuses(t *testing.T) {
	t.Parallel()
	a := newActing(t, access.Viewer)
	for _, page := range []string{"", "queues", "//evil.example/", "https://evil.example/", "/live?page=/", "/%zz"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/live?page="+url.QueryEscape(page), nil)
		w := httptest.NewRecorder()
		a.handler.ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest {
			t.Errorf("%q: %d", page, w.Code)
		}
	}
}
