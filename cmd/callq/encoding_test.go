package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/callq/callq/callqueue"
)

// A database in LATIN1 is sent UTF-8, and sends it. What it cannot hold is refused where it is enqueued, and keeps no
// call from ending.
func TestLatin1Database(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = "http: {listen: \"127.0.0.1:0\"}\nhttp_task: {allow_private: true, store: all}\nqueues: {default: {max_attempts: 1}}\n"
	server, err := url.Parse(w.postgres)
	must(t, err)
	name := strings.TrimPrefix(server.Path, "/") + "_latin1"
	w.exec(`CREATE DATABASE ` + name + ` ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	inUTF8 := w
	t.Cleanup(func() { inUTF8.exec(`DROP DATABASE ` + name + ` WITH (FORCE)`) })
	server.Path = "/" + name
	w.postgres = server.String()
	w.do("migrate", "up")
	w.spawn("serve").ready()

	asked := make(chan string, 10)
	api := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked <- string(body)
		_, _ = io.WriteString(answer, r.URL.Query().Get("answer"))
	}))
	t.Cleanup(api.Close)
	garbled := answers(t, "日本\r\n\r\n")

	ended := func(data string, status callqueue.Status) string {
		t.Helper()
		id := strings.TrimSpace(w.do("enqueue", "--data", data))
		eventually(t, "the call has ended", func() bool { return w.get(id).Status == status })
		return w.do("calls", "get", id, "-o", "json")
	}
	if out := ended(`{"url": "`+api.URL+`?answer=naïve", "method": "POST", "body": "é"}`, callqueue.StatusDone); <-asked != "é" || !strings.Contains(out, "naïve") {
		t.Errorf("of é and naïve is left: %s", out)
	}
	if out := ended(`{"url": "`+api.URL+`?answer=%E6%97%A5", "method": "POST"}`, callqueue.StatusDone); strings.Contains(out, "日") {
		t.Errorf("LATIN1 has 日: %s", out)
	}
	has(t, ended(`{"url": "http://`+garbled+`"}`, callqueue.StatusFailed), `response \"\\u65e5\\u672c\"`)
	if a := w.run("enqueue", "--data", `{"url": "`+api.URL+`", "body": "日本"}`); a.code == exitDone || !strings.Contains(a.stderr, "LATIN1") {
		t.Errorf("enqueued what LATIN1 does not have: %d %s", a.code, a.stderr)
	}
	if encoding := one[string](w, `SHOW server_encoding`); encoding != "LATIN1" {
		t.Errorf("the database's encoding is %s, so that this shows nothing", encoding)
	}
}
