package httptask

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/callq/callq/internal/outcome"
)

func TestVerdicts(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server := serveHTTP(t, false, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		var status int
		_, _ = fmt.Sscan(r.URL.Path[1:], &status)
		w.Header().Set("Location", "/200")
		if r.URL.RawQuery != "plain" {
			w.Header().Set("Retry-After", "7")
		}
		w.WriteHeader(status)
	})
	h := newTestTask(t, Config{})
	for _, c := range []struct {
		kind, query string
		statuses    []int
	}{
		{"done", "", []int{200, 201, 202, 204, 206, 299}},
		{"retried", "", []int{408, 425, 500, 501, 507, 520, 599}},
		{"retried", "plain", []int{502, 503, 504, 529}},
		{"refused", "plain", []int{429}},
		{"refused for 7 s", "", []int{403, 413, 429, 502, 503, 504, 529}}, // 403 is GitHub's
		{"permanent", "", []int{300, 301, 302, 303, 304, 307, 308, 400, 401, 404, 409, 410, 418, 422, 451, 499, 600, 999}},
		{"permanent", "plain", []int{403, 413}},
	} {
		for _, status := range c.statuses {
			requests.Store(0)
			s := h.Run(t.Context(), callOf(`{"method":"POST","url":"%s/%d?%s","json":{}}`, server.URL, status, c.query), bound, granted)
			got := "retried"
			if refused, ok := errors.AsType[*outcome.RefusedError](s.Err); ok {
				got = "refused"
				if refused.After > 0 {
					got += fmt.Sprintf(" for %.0f s", refused.After.Seconds())
				}
			} else if isPermanent(s.Err) {
				got = "permanent"
			} else if s.Err == nil {
				got = "done"
			}
			if got != c.kind || !s.Wrote || s.sent.IsZero() || requests.Load() != 1 {
				t.Errorf("%d: %s, want %s; %d requests: %+v", status, got, c.kind, requests.Load(), s)
			}
			if status == http.StatusRequestTimeout && !s.answered.IsZero() { // sent to idle connections too, it proves nothing
				t.Errorf("%d: answered %v", status, s.answered)
			}
			if want := strings.TrimSpace(fmt.Sprintf("POST %s/%d: %d %s", server.URL, status, status, http.StatusText(status))); s.Err != nil && strings.TrimPrefix(s.Err.Error(), "refused: ") != want {
				t.Errorf("%d: %q, want %q", status, s.Err, want)
			}
		}
	}
}

func TestRetryAfterForms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const date = "Sun, 01 Mar 2026 12:01:30 GMT"
	for _, c := range []struct {
		value, date string
		want        time.Duration
	}{
		{value: ""},
		{value: "0"},
		{value: "1", want: time.Second},
		{value: " 120 ", want: 2 * time.Minute},
		{value: "1.5", want: 1500 * time.Millisecond},
		{value: "86400", want: 24 * time.Hour},
		{value: "86401", want: maxRetryAfter},
		{value: "99999999999999999999999999", want: maxRetryAfter},
		{value: strings.Repeat("9", 400), want: maxRetryAfter},
		{value: "-5"},
		{value: "1e3"},
		{value: "0x10"},
		{value: "inf"},
		{value: "NaN"},
		{value: "."},
		{value: "1.2.3"},
		{value: "soon"},
		{value: "5s"},
		{value: date, want: 90 * time.Second},
		{value: "Sunday, 01-Mar-26 12:01:30 GMT", want: 90 * time.Second},
		{value: "Sun Mar  1 12:01:30 2026", want: 90 * time.Second},
		{value: date, date: "Sun, 01 Mar 2026 12:01:00 GMT", want: 30 * time.Second}, // its clock is a minute ahead
		{value: date, date: "never", want: 90 * time.Second},
		{value: "Sun, 01 Mar 2026 11:59:59 GMT"},
		{value: "Sun, 01 Mar 2099 12:00:00 GMT", want: maxRetryAfter},
	} {
		header := http.Header{"Retry-After": {c.value}, "Date": {c.date}}
		if got := waitOf(http.StatusTooManyRequests, header, now); got != c.want {
			t.Errorf("%.40q, Date %q: %s, want %s", c.value, c.date, got, c.want)
		}
	}
}

func TestResultIsFitForJSONB(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxBody)
	for _, c := range []struct {
		name, body        string
		want              string
		truncated, closes bool
	}{
		{name: "empty"},
		{name: "short", body: `{"a":"é"}`, want: `{"a":"é"}`},
		{name: "as much as is kept", body: long, want: long},
		{name: "one byte more", body: long + "y", want: long, truncated: true},
		{name: "a character across the cut", body: long[1:] + "é", want: long[1:], truncated: true},
		{name: "not UTF-8, with NUL", body: "a\xff\x00b\xed\xa0\x80", want: "Yf8AYu2ggA=="},
		{name: "a picture that grows in base64", body: strings.Repeat("\xff a", maxBody/3), want: strings.Repeat("/yBh", maxBody/4), truncated: true},
		{name: "more than is drained", body: strings.Repeat(long, 10), want: long, truncated: true, closes: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var requests []string // remote addresses; each on run's turn
			server := serveHTTP(t, false, func(w http.ResponseWriter, r *http.Request) {
				requests = append(requests, r.RemoteAddr)
				w.Header().Add("X-Two", "1")
				w.Header().Add("X-Two", "é\xff")
				_, _ = io.WriteString(w, c.body)
			})
			h := newTestTask(t, Config{Store: "all"})
			var s Sending
			for range 2 {
				s = h.Run(t.Context(), callOf(`{"url":%q}`, server.URL), bound, granted)
			}
			var got struct {
				Status    int
				Headers   map[string]any
				Body      string
				Truncated bool
			}
			if err := json.Unmarshal(s.Result, &got); err != nil || s.Err != nil {
				t.Fatalf("result %s: %v, %v", s.Result, err, s.Err)
			}
			if got.Status != 200 || got.Body != c.want || got.Truncated != c.truncated || !utf8.ValidString(got.Body) || len(got.Body) > maxBody {
				t.Errorf("got %d, %d bytes (%.40q), truncated %v; want %d bytes, truncated %v", got.Status, len(got.Body), got.Body, got.Truncated, len(c.want), c.truncated)
			}
			if bytes.Contains(s.Result, []byte(`\u0000`)) || fmt.Sprint(got.Headers["X-Two"]) != "[1 é�]" {
				t.Errorf("result %.300s", s.Result)
			}
			if len(requests) == 2 && (requests[0] != requests[1]) != c.closes {
				t.Errorf("connections %v; want a new one: %v", requests, c.closes)
			}
		})
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	server := serveHTTP(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	for _, c := range []struct {
		store    string
		ok, fail bool
	}{{"", false, true}, {"errors", false, true}, {"all", true, true}, {"none", false, false}} {
		h := newTestTask(t, Config{Store: c.store})
		ok := h.Run(t.Context(), callOf(`{"url":"%s/"}`, server.URL), bound, granted)
		fail := h.Run(t.Context(), callOf(`{"url":"%s/bad"}`, server.URL), bound, granted)
		if (ok.Result != nil) != c.ok || (fail.Result != nil) != c.fail {
			t.Errorf("store %q kept %s and %s", c.store, ok.Result, fail.Result)
		}
	}
}

// What a broken server may answer: never a panic, never a second request, never "not sent".
func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, c := range []struct{ name, raw, want string }{
		{"no HTTP", "hello\r\n\r\n", "retried"},
		{"no status", "HTTP/1.1 \r\n\r\n", "retried"},
		{"no status of three digits", "HTTP/1.1 2000 OK\r\n\r\n", "retried"},
		{"half a status", "HTTP/1.1 200", "retried"},
		{"hints without end", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 10_000), "retried"},
		{"nothing", "", "retried"},
		{"switching protocols", "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "permanent"},
		// The status came whole: the API has done what was asked.
		{"header without end", ok + "A: " + strings.Repeat("x", 1<<20), "done"},
		{"header cut off", ok + "A: ", "done"},
		{"NUL in a header", ok + "A: \x00\r\n\r\n", "done"},
		{"no colon", ok + "hello\r\n\r\n", "done"},
		{"an empty length", ok + "Content-Length: \r\n\r\n", "done"},
		{"two lengths", ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "done"},
		{"an encoding that is none", ok + "Transfer-Encoding: identity\r\n\r\nab", "done"},
		{"no colon in a refusal", "HTTP/1.1 422 No\r\nhello\r\n\r\n", "permanent"},
		{"no colon in a failure", "HTTP/1.1 503 No\r\nhello\r\n\r\n", "retried"},
		{"body shorter than said", ok + "Content-Length: 9\r\n\r\nab", "done"},
		{"broken chunks", ok + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "done"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var conns atomic.Int32
			addr := serveConns(t, func(conn *net.TCPConn) {
				conns.Add(1)
				_, _ = http.ReadRequest(bufio.NewReader(conn))
				_, _ = io.WriteString(conn, c.raw)
				if c.name != "switching protocols" { // one that stays open holds up no attempt
					_ = conn.CloseWrite()
				}
			})
			s := newTestTask(t, Config{}).Run(t.Context(), callOf(`{"url":"http://%s"}`, addr), bound, granted)
			got := map[bool]string{true: "done", false: "retried"}[s.Err == nil]
			if isPermanent(s.Err) {
				got = "permanent"
			}
			if status := statusOf([]byte(c.raw)); s.Code != status && s.Code != http.StatusSwitchingProtocols {
				t.Errorf("code %d, want %d", s.Code, status)
			}
			if !s.Wrote || s.sent.IsZero() || got != c.want || conns.Load() != 1 {
				t.Errorf("got %+v on %d connections, want %s", s, conns.Load(), c.want)
			}
		})
	}
}

// An answer that ends early says so. Where it is kept for its own sake, a GET whose body was cut short is made again.
func TestCutAnswers(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\n"
	long := strings.Repeat("x", maxBody+1)
	for _, c := range []struct {
		name, raw, body string
		cut, truncated  bool
		want            string // of a GET's error
	}{
		{name: "whole", raw: ok + "Content-Length: 2\r\n\r\nab", body: "ab"},
		{name: "until the end", raw: ok + "\r\nab", body: "ab"},
		{name: "long", raw: fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", ok, len(long), long), body: long[1:], truncated: true},
		{name: "fewer bytes", raw: ok + "Content-Length: 9\r\n\r\nab", body: "ab", cut: true, want: "the answer's body ended after 2 of 9 bytes"},
		{name: "broken chunks", raw: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\nzz\r\n", body: "ab", cut: true, want: "the answer's body was cut short"},
		{name: "it drips", raw: ok + "Content-Length: 9\r\n\r\nab", body: "ab", cut: true, want: "the answer's body was cut short"},
		{name: "headers", raw: ok + "hello\r\n\r\nab", cut: true, want: "the answer's headers could not be read: "},
		{name: "of a failure", raw: "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nab", body: "ab", cut: true, want: "404 Not Found"},
	} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(method+" "+c.name, func(t *testing.T) {
				t.Parallel()
				addr := serveConns(t, func(conn *net.TCPConn) {
					_, _ = http.ReadRequest(bufio.NewReader(conn))
					_, _ = io.WriteString(conn, c.raw)
					if c.name != "it drips" {
						_ = conn.CloseWrite()
					}
				})
				s := newTestTask(t, Config{Store: "all"}).Run(t.Context(), callOf(`{"method":%q,"url":"http://%s","timeout":"1s"}`, method, addr), bound, granted)
				var got struct {
					Body           string
					Truncated, Cut bool
					CutReason      string `json:"cut_reason"`
					HeadersError   string `json:"headers_error"`
				}
				if err := json.Unmarshal(s.Result, &got); err != nil {
					t.Fatalf("%s: %v", s.Result, err)
				}
				if got.Body != c.body || got.Cut != c.cut || (got.CutReason != "") != c.cut || got.Truncated != c.truncated || (got.HeadersError != "") != (c.name == "headers") {
					t.Errorf("got %.300s", s.Result)
				}
				want, note := c.want, ""
				if method == "POST" && c.name != "of a failure" {
					want, note = "", c.want
				}
				if (s.Note != "") != (note != "") || !strings.Contains(s.Note, note) {
					t.Errorf("the note is %q, want %q", s.Note, note)
				}
				if (s.Err != nil) != (want != "") || s.Err != nil && (!strings.Contains(s.Err.Error(), want) || isPermanent(s.Err) != (c.name == "of a failure")) {
					t.Errorf("ended with %v, want %q", s.Err, want)
				}
			})
		}
	}
}

// A handler, too, is told the status of an answer whose headers cannot be read.
func TestHandlersUnreadableAnswer(t *testing.T) {
	t.Parallel()
	addr := serveConns(t, func(conn *net.TCPConn) {
		_, _ = http.ReadRequest(bufio.NewReader(conn))
		_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nhello\r\n\r\n")
	})
	c := clientOf(t, newTestTask(t, Config{}), bound)
	r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr, nil)
	answer, err := c.HTTP.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if s := c.End(); answer.StatusCode != 201 || answer.Status != "201 Created" || err == nil || s.Code != 201 || s.answered.IsZero() {
		t.Errorf("got %+v, %v, %+v", answer, err, s)
	}
}

// What is no UTF-8 is kept: character sets and gzip are decoded, and what is no text stands there as base64.
func TestBodiesThatAreNoText(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte("grüezi"))
	_ = w.Close()
	const pdf = "%PDF-1.7\n\xff\xfe\x00\x01"
	for _, c := range []struct {
		name, contentType, encoding, body string
		most                              int
		want                              string
	}{
		{"text", "text/plain", "", "grüezi", 100, `"body":"grüezi","truncated":false`},
		{"Latin-1", "text/plain; charset=ISO-8859-1", "", "gr\xfcezi", 100, `"body":"grüezi","truncated":false`},
		{"UTF-16", "text/plain; charset=utf-16le", "", "g\x00r\x00\xfc\x00", 100, `"body":"grü","truncated":false`},
		{"a character set that is not so", "text/plain; charset=utf-8", "", "gr\xfcezi", 100, `"body":"Z3L8ZXpp","encoding":"base64","truncated":false`},
		{"an unknown character set", "text/plain; charset=martian", "", "gr\xfcezi", 100, `"body":"Z3L8ZXpp","encoding":"base64","truncated":false`},
		{"gzip", "text/plain", "gzip", packed.String(), 100, `"body":"grüezi","truncated":false`},
		{"gzip that is none", "text/plain", "gzip", "plain", 100, `"body":"plain","truncated":false`},
		{"gzip that is long", "text/plain", "gzip", packed.String(), 3, `"body":"gr","truncated":true`},
		{"a PDF", "application/pdf", "", pdf, 100, `"body":"` + base64.StdEncoding.EncodeToString([]byte(pdf)) + `","encoding":"base64","truncated":false`},
		{"a long PDF", "application/pdf", "", pdf, 14, `"body":"` + base64.StdEncoding.EncodeToString([]byte(pdf[:9])) + `","encoding":"base64","truncated":true`},
		{"a NUL", "text/plain", "", "a\x00b", 100, `"body":"YQBi","encoding":"base64","truncated":false`},
		{"cut within a character", "text/plain", "", "grüezi", 3, `"body":"gr","truncated":true`},
	} {
		server := serveHTTP(t, false, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.contentType)
			if c.encoding != "" {
				w.Header().Set("Content-Encoding", c.encoding)
			}
			_, _ = io.WriteString(w, c.body)
		})
		call := callOf(`{"url":"%s"}`, server.URL)
		call.Store, call.StoreMax = "all", c.most
		s := newTestTask(t, Config{}).Run(t.Context(), call, bound, granted)
		if !strings.Contains(string(s.Result), c.want) {
			t.Errorf("%s: %s, want %s", c.name, s.Result, c.want)
		}
	}
}
