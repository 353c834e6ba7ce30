package tasks

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func callOf(t *testing.T, data string, args ...any) *Call {
	t.Helper()
	return &Call{ID: 7, Attempt: 2, Queue: "default", Task: HTTP, Data: fmt.Appendf(nil, data, args...)}
}

func given(context.Context) (grant, error) { return grant{m0: time.Now()}, nil }

func newLocal(t *testing.T) *httpTask {
	t.Helper()
	h := newHTTPTask(HTTPConfig{AllowPrivate: true, MaxIdlePerHost: 8, Store: "all"})
	t.Cleanup(h.close)
	return h
}

// A server that reads a request on a reused connection and hangs up. net/http by itself sends a
// GET again on another connection, which the second half shows; the http task must not.
func TestHangUpIsNotSentTwice(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Path == "/hang" {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(server.Close)
	h := newLocal(t)
	if s := h.run(t.Context(), callOf(t, `{"url":"%s/ok"}`, server.URL), time.Second, given); s.err != nil {
		t.Fatal(s.err)
	}
	requests.Store(0)
	s := h.run(t.Context(), callOf(t, `{"url":"%s/hang"}`, server.URL), time.Second, given)
	if s.err == nil || !s.wrote || !s.answered.IsZero() || requests.Load() != 1 {
		t.Errorf("got %+v and %d requests, want an error, written, no answer and 1 request", s, requests.Load())
	}

	plain := &http.Client{}
	for _, path := range []string{"/ok", "/hang"} {
		requests.Store(0)
		r, err := plain.Get(server.URL + path) //nolint:noctx // what is shown is net/http's default
		if err == nil {
			_ = r.Body.Close()
		}
	}
	if requests.Load() < 2 {
		t.Errorf("net/http sent %d requests: this test no longer shows what the gate is for", requests.Load())
	}
}

func TestGateRefusesLateWrites(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(server.Close)
	late := func(context.Context) (grant, error) {
		return grant{m0: time.Now().Add(-time.Second), sendBy: time.Now().Add(-time.Millisecond)}, nil
	}
	h := newLocal(t)
	s := h.run(t.Context(), callOf(t, `{"url":"%s"}`, server.URL), 5*time.Second, late)
	if s.wrote || !errors.Is(s.err, errTooLate) {
		t.Errorf("got %+v, want nothing written and %v", s, errTooLate)
	}
	if s := h.run(t.Context(), callOf(t, `{"url":"%s"}`, server.URL), time.Second, given); s.err != nil {
		t.Errorf("the next attempt: %v", s.err)
	}
	if requests.Load() != 1 {
		t.Errorf("%d requests arrived, want the second attempt's alone", requests.Load())
	}
}

func TestNothingIsSentWithoutAStart(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	h := newLocal(t)
	for range 5 {
		s := h.run(t.Context(), callOf(t, `{"url":"%s"}`, server.URL), time.Second,
			func(context.Context) (grant, error) { return grant{}, errNotStarted })
		if s.wrote || !errors.Is(s.err, errNotStarted) {
			t.Errorf("got %+v, want nothing written and %v", s, errNotStarted)
		}
	}
	server.Close() // waits for requests in hand
	if requests.Load() != 0 {
		t.Errorf("%d requests arrived without a start", requests.Load())
	}
}

// Cancelled between the start and the write: whatever the outcome says must be what the server saw.
func TestCancelledAroundTheWrite(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	arrived := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		arrived[r.Header.Get("Callq-Attempt")]++
	}))
	h := newLocal(t)
	wrote := map[string]bool{}
	for n := range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		call := callOf(t, `{"url":"%s"}`, server.URL)
		call.Attempt = n
		s := h.run(ctx, call, time.Second, func(context.Context) (grant, error) {
			go func() {
				for range n * 30 { // a little later each time
					_ = ctx.Err()
				}
				cancel()
			}()
			return given(ctx)
		})
		cancel()
		wrote[fmt.Sprint(n)] = s.wrote
	}
	server.Close()
	mu.Lock()
	defer mu.Unlock()
	for attempt, n := range arrived {
		if n > 1 || !wrote[attempt] {
			t.Errorf("attempt %s arrived %d times, wrote = %v", attempt, n, wrote[attempt])
		}
	}
}

// Without an answer in time the connection is reset before run returns.
func TestTimeoutResets(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ended := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer conn.Close()
		reader := bufio.NewReader(conn)
		if _, err := http.ReadRequest(reader); err != nil {
			ended <- err
			return
		}
		_, err = reader.ReadByte()
		ended <- err
	}()
	s := newLocal(t).run(t.Context(), callOf(t, `{"url":"http://%s","timeout":0.1}`, listener.Addr()), time.Minute, given)
	if !s.wrote || s.sent.IsZero() || s.err == nil || !strings.Contains(s.err.Error(), "no answer within 100ms") {
		t.Errorf("got %+v, want written and no answer", s)
	}
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "reset") {
			t.Errorf("the server saw %v, want a reset", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("the server saw no end of the connection")
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var status int
		_, _ = fmt.Sscan(strings.TrimPrefix(r.URL.Path, "/"), &status)
		if after := r.URL.Query().Get("after"); after != "" {
			w.Header().Set("Retry-After", after)
		}
		if status/100 == 3 {
			w.Header().Set("Location", "/200")
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte("h\xffi\x00"))
	}))
	t.Cleanup(server.Close)
	h := newLocal(t)
	cases := []struct {
		path, kind string
		after      time.Duration
	}{
		{"200", "done", 0},
		{"204", "done", 0},
		{"302", "permanent", 0},
		{"404", "permanent", 0},
		{"408", "retried", 0},
		{"425", "retried", 0},
		{"429", "retried", 0},
		{"429?after=7", "retried", 7 * time.Second},
		{"500", "retried", 0},
		{"500?after=7", "retried", 0},
		{"503?after=9999999", "retried", retryAfterMost},
	}
	for _, c := range cases {
		t.Run(c.path, func(t *testing.T) {
			t.Parallel()
			s := h.run(t.Context(), callOf(t, `{"url":"%s/%s"}`, server.URL, c.path), time.Second, given)
			var permanent *permanentError
			var later *retryAfterError
			kind := "retried"
			switch {
			case s.err == nil:
				kind = "done"
			case errors.As(s.err, &permanent):
				kind = "permanent"
			}
			if kind != c.kind || !s.wrote {
				t.Errorf("got %s (%v), want %s", kind, s.err, c.kind)
			}
			if errors.As(s.err, &later) != (c.after > 0) || c.after > 0 && later.after != c.after {
				t.Errorf("retry after %+v, want %s", later, c.after)
			}
			if c.path != "204" && !strings.Contains(string(s.result), `"body":"h�i�"`) {
				t.Errorf("result = %s", s.result)
			}
			if proven := !s.answered.IsZero(); proven != (c.path != "408") {
				t.Errorf("the answer proves the arrival: %v", proven)
			}
			if s.err != nil && strings.Contains(s.err.Error(), "after=") {
				t.Errorf("the error shows the query: %v", s.err)
			}
		})
	}
}

func TestRequest(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body string
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		data := make([]byte, 100)
		n, _ := r.Body.Read(data)
		got, body = r, string(data[:n])
	}))
	t.Cleanup(server.Close)
	h := newHTTPTask(HTTPConfig{PrivateHosts: []string{"127.0.0.0/8"}, TLS: server.Client().Transport.(*http.Transport).TLSClientConfig})
	t.Cleanup(h.close)
	s := h.run(t.Context(), callOf(t, `{"method":"post","url":"%s/p?a=1","query":{"b":[2,true]},"headers":{"x-y":"z"},"json":{"n":1}}`, server.URL), time.Second, given)
	if s.err != nil || s.result != nil {
		t.Fatalf("got %+v, want done with no result kept", s)
	}
	if got.Method != "POST" || got.URL.RawQuery != "a=1&b=2&b=true" || body != `{"n":1}` || got.ProtoMajor != 1 {
		t.Errorf("got %s %s %s %q", got.Method, got.URL, got.Proto, body)
	}
	for name, want := range map[string]string{
		"Callq-Call-Id": "7", "Callq-Attempt": "2", "Idempotency-Key": "callq-7", "X-Y": "z",
		"Content-Type": "application/json", "User-Agent": "callq",
	} {
		if got.Header.Get(name) != want {
			t.Errorf("header %s = %q, want %q", name, got.Header.Get(name), want)
		}
	}
}

func TestBrokenCallData(t *testing.T) {
	t.Parallel()
	for _, data := range []string{
		``, `[]`, `"x"`, `{}`, `{"url":7}`, `{"url":"ftp://x"}`, `{"url":"http://"}`, `{"url":"http://x","nope":1}`,
		`{"url":"http://a b"}`, `{"url":"http://x","method":"G T"}`, `{"url":"http://x","method":"CONNECT"}`,
		`{"url":"http://x","headers":{"a b":"c"}}`, `{"url":"http://x","headers":{"a":"b\r\nc: d"}}`,
		`{"url":"http://x","headers":{"Content-Length":"3"}}`, `{"url":"http://x","headers":{"a":{"secret":"K"}}}`,
		`{"url":"http://x","headers":{"a":1}}`, `{"url":"http://x","json":1,"body":"b"}`, `{"url":"http://x","query":{"a":{}}}`,
		`{"url":"http://x","timeout":"soon"}`, `{"url":"http://x","timeout":-1}`, `{"url":"http://x","timeout":[]}`,
		`{"url":"http://x","body":7}`, `{"url":"http://x","form":{"a":null}}`,
	} {
		s := newHTTPTask(HTTPConfig{}).run(t.Context(), &Call{Data: []byte(data)}, time.Second, func(context.Context) (grant, error) {
			t.Errorf("%s: a start was asked for", data)
			return grant{}, errNotStarted
		})
		var permanent *permanentError
		if !errors.As(s.err, &permanent) || s.wrote {
			t.Errorf("%s: got %+v, want a permanent error", data, s)
		}
	}
}

func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	refused := []string{
		"127.0.0.1", "127.8.9.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.0.1", "169.254.169.254", "0.0.0.0",
		"0.1.2.3", "100.64.0.1", "100.127.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255",
		"198.51.100.7", "203.0.113.7", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "::10.0.0.1", "fe80::1", "fe80::1%eth0",
		"febf::1", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1", "64:ff9b::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b:1::1",
		"2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:1::", "2001::1", "2001:0:4136:e378::1", "2001:db8::1", "100::1", "3fff::1", "5f00::1",
	}
	for _, address := range refused {
		if err := (hosts{}).dial("name", "443", net.JoinHostPort(address, "443")); err == nil {
			t.Errorf("%s may be called", address)
		}
	}
	for _, address := range []string{"1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::808:808", "2002:808:808::"} {
		if err := (hosts{}).dial("name", "443", net.JoinHostPort(address, "443")); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, entry := range []string{"name", "NAME", "name:443", "10.0.0.7", "10.0.0.0/8"} {
		if err := (hosts{private: []string{entry}}).dial("name", "443", "10.0.0.7:443"); err != nil {
			t.Errorf("with private_hosts [%s]: %v", entry, err)
		}
	}
	for _, entry := range []string{"other", "name:80", "10.0.0.8", "11.0.0.0/8"} {
		if err := (hosts{private: []string{entry}}).dial("name", "443", "10.0.0.7:443"); err == nil {
			t.Errorf("with private_hosts [%s]: 10.0.0.7 may be called", entry)
		}
	}
}

// The http task asks for addresses as they are dialled: an own form of a loopback address, or a
// name that resolves to one, is refused before any start.
func TestPrivateHostIsRefusedBeforeTheStart(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://localhost:1/", "http://127.0.0.1:1/", "http://[::1]:1/", "https://127.0.0.1:1/"} {
		s := newHTTPTask(HTTPConfig{}).run(t.Context(), callOf(t, `{"url":%q}`, url), time.Second, func(context.Context) (grant, error) {
			t.Errorf("%s: a start was asked for", url)
			return grant{}, errNotStarted
		})
		var permanent *permanentError
		if !errors.As(s.err, &permanent) || !strings.Contains(s.err.Error(), "private_hosts") {
			t.Errorf("%s: %v", url, s.err)
		}
	}
	only := newHTTPTask(HTTPConfig{Hosts: []string{"api.example.com"}, AllowPrivate: true})
	s := only.run(t.Context(), callOf(t, `{"url":"http://127.0.0.1:1/"}`), time.Second, given)
	if s.err == nil || !strings.Contains(s.err.Error(), "http_task.hosts") {
		t.Errorf("a host outside http_task.hosts: %v", s.err)
	}
}

// Many attempts at once use no more connections than there are slots.
func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	h := newLocal(t) // 8 slots
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if s := h.run(t.Context(), callOf(t, `{"url":"%s"}`, server.URL), 5*time.Second, given); s.err != nil || s.answered.IsZero() {
					t.Errorf("got %+v", s)
				}
			}
		})
	}
	wg.Wait()
	if n := conns.Load(); n > 16 {
		t.Errorf("%d connections for 8 slots and 400 requests", n)
	}
}
