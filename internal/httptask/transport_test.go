package httptask

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestRequestAsTheServerSeesIt(t *testing.T) {
	t.Parallel()
	type seen struct {
		*http.Request
		body string
	}
	requests := make(chan seen, 1)
	server := serveHTTP(t, true, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- seen{r, string(body)}
	})
	h := newTestTask(t, Config{TLS: certificatesOf(server)})
	for _, c := range []struct {
		name, data, line, body string
		headers                map[string]string
	}{
		{
			name: "a GET with all that callq adds", data: `"headers":null`, line: "GET / HTTP/1.1",
			headers: map[string]string{
				"Callq-Call-Id": "7", "Callq-Attempt": "2", "Idempotency-Key": "callq-7", "User-Agent": "callq",
				"Content-Type": "", "Accept-Encoding": "", "Content-Length": "",
			},
		},
		{
			name: "a POST without a body", data: `"method":"post"`, line: "POST / HTTP/1.1",
			headers: map[string]string{"Content-Length": "0", "Content-Type": ""},
		},
		{
			name: "json is sent as it is", data: `"method":"POST","json":{"b": 1.50, "a":[null,"é"]}`, line: "POST / HTTP/1.1",
			body: `{"b": 1.50, "a":[null,"é"]}`, headers: map[string]string{"Content-Type": "application/json"},
		},
		{
			name: "a form", data: `"method":"PUT","form":{"b":[1,2.50],"a":"x y","c":true}`, line: "PUT / HTTP/1.1",
			body: "a=x+y&b=1&b=2.50&c=true", headers: map[string]string{"Content-Type": "application/x-www-form-urlencoded"},
		},
		{
			name: "a text", data: `"method":"PATCH","body":"h€y","query":{"z":[],"q":["a&b",12345678901234567890]}`,
			line: "PATCH /?q=a%26b&q=12345678901234567890 HTTP/1.1", body: "h€y", headers: map[string]string{"Content-Type": "text/plain; charset=utf-8"},
		},
		{
			name: "custom headers", line: "DELETE / HTTP/1.1",
			data: `"method":"DELETE","body":"x","headers":{"idempotency-key":"mine","user-agent":"me","content-type":"a/b","X-Two":["1","2"]}`,
			body: "x", headers: map[string]string{"Idempotency-Key": "mine", "User-Agent": "me", "Content-Type": "a/b", "X-Two": "1,2"},
		},
	} {
		s := h.Run(t.Context(), callOf(`{"url":%q,%s}`, server.URL, c.data), bound, granted)
		if s.Err != nil {
			t.Fatalf("%s: %v", c.name, s.Err)
		}
		got := receive(t, requests)
		if line := got.Method + " " + got.RequestURI + " " + got.Proto; line != c.line || got.body != c.body {
			t.Errorf("%s: got %s with %q, want %s with %q", c.name, line, got.body, c.line, c.body)
		}
		for name, want := range c.headers {
			if value := strings.Join(got.Header.Values(name), ","); value != want {
				t.Errorf("%s: %s is %q, want %q", c.name, name, value, want)
			}
		}
	}

	u := strings.Replace(server.URL, "https://", "https://user:pa%20ss@", 1)
	s := h.Run(t.Context(), callOf(`{"url":"%s/a?x=1 2&y=é#frag","query":{"z":3}}`, u), bound, granted)
	got := receive(t, requests)
	if name, password, _ := got.BasicAuth(); s.Err != nil || name != "user" || password != "pa ss" || got.RequestURI != "/a?x=1%202&y=%C3%A9&z=3" {
		t.Errorf("got %s of %s:%s, %v", got.RequestURI, name, password, s.Err)
	}
}

// The request's header leaves with the first write, also when it is nearly as long as it may be.
func TestLongHeaderIsOneWrite(t *testing.T) {
	t.Parallel()
	server := serveHTTP(t, true, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	h := newTestTask(t, Config{TLS: certificatesOf(server)})
	for size, fits := range map[int]bool{5000: true, maxHeader - 400: true, maxHeader: false, 100_000: false} {
		s := h.Run(t.Context(), callOf(`{"method":"POST","url":%q,"headers":{"X":"%s"},"body":"%s"}`,
			server.URL, strings.Repeat("h", size), strings.Repeat("b", 100_000)), bound, granted)
		if (s.Err == nil) != fits || isPermanent(s.Err) == fits || s.Wrote != fits {
			t.Errorf("a header of %d bytes: %+v", size, s)
		}
	}
}

func TestConnectionErrors(t *testing.T) {
	t.Parallel()
	closed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	silent := serveConns(t, func(*net.TCPConn) {})
	untrusted := serveHTTP(t, true, func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") })
	for url, want := range map[string]string{
		"http://" + closed.Addr().String(): "connection refused",
		"https://" + silent:                "", // its deadline or the dialer's
		untrusted.URL:                      "certificate",
		"http://nowhere.invalid":           "nowhere.invalid",
	} {
		timeout := bound
		if strings.HasSuffix(url, silent) {
			timeout = 100 * time.Millisecond
		}
		h := newTestTask(t, Config{ConnectTimeout: timeout})
		s := h.Run(t.Context(), callOf(`{"url":"%s/p?secret"}`, url), bound, func(context.Context) (Grant, error) {
			t.Errorf("%s: the start was asked for without a connection", url)
			return Grant{}, errNoStart
		})
		if s.Wrote || s.Err == nil || isPermanent(s.Err) || !strings.HasPrefix(s.Err.Error(), "GET "+url+"/p: ") || !strings.Contains(s.Err.Error(), want) {
			t.Errorf("%s: got %+v", url, s)
		}
	}
}

func TestHostsAndPrivateHosts(t *testing.T) {
	t.Parallel()
	server, requests := counting(t, false)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, host string
		cfg        Config
		want       string // in the error; empty: it may be called
	}{
		{name: "another port", host: "127.0.0.1", cfg: Config{PrivateHosts: []string{"127.0.0.1:1"}}, want: "http_task.private_hosts"},
		{name: "allowed host", host: "127.0.0.1", cfg: Config{PrivateHosts: []string{"127.0.0.1"}}},
		{name: "allowed host and port", host: "127.0.0.1", cfg: Config{PrivateHosts: []string{"127.0.0.1:" + port}}},
		{name: "allowed name", host: "LocalHost", cfg: Config{PrivateHosts: []string{"localhost"}}},
		{name: "name of an allowed address", host: "localhost", cfg: Config{PrivateHosts: []string{"127.0.0.1"}}},
		{name: "allowed network", host: "127.0.0.1", cfg: Config{PrivateHosts: []string{"127.0.0.0/8"}}},
		{name: "all allowed", host: "127.0.0.1", cfg: Config{AllowPrivate: true}},
		{name: "not among the hosts", host: "127.0.0.1", cfg: Config{AllowPrivate: true, Hosts: []string{"api.example"}}, want: "http_task.hosts"},
		{name: "among the hosts, and private", host: "127.0.0.1", cfg: Config{Hosts: []string{"127.0.0.1"}}, want: "http_task.private_hosts"},
		{name: "among the hosts, with its port", host: "127.0.0.1", cfg: Config{AllowPrivate: true, Hosts: []string{"127.0.0.1:" + port}}},
	} {
		h := newTaskOf(t, c.cfg)
		requests.Store(0)
		started := false
		s := h.Run(t.Context(), callOf(`{"url":"http://%s:%s/"}`, c.host, port), bound, noting(&started))
		switch {
		case c.want == "" && (s.Err != nil || requests.Load() != 1):
			t.Errorf("%s: %v", c.name, s.Err)
		case c.want != "" && (!isPermanent(s.Err) || !strings.Contains(s.Err.Error(), c.want) || started || requests.Load() > 0):
			t.Errorf("%s: got %+v, want %s", c.name, s, c.want)
		}
	}
}

// As many connections as attempts run at once, and none more for hundreds of requests.
func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	const slots, each = 8, 30
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var conns atomic.Int32
			attempts := map[string]int{}
			server := serveHTTP(t, secure, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				attempts[r.Header.Get("Callq-Attempt")]++
				mu.Unlock()
				_, _ = io.Copy(w, r.Body)
				_, _ = io.WriteString(w, strings.Repeat("x", 100_000)) // more than is kept
			})
			h := newTestTask(t, Config{TLS: certificatesOf(server)}, slots)
			h.idle.of(server.Listener.Addr().String(), time.Now()).answered(bound) // else a stop of this machine closes them
			for _, dial := range []*func(context.Context, string, string) (net.Conn, error){&h.transport.DialContext, &h.transport.DialTLSContext} {
				inner := *dial
				*dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conns.Add(1)
					return inner(ctx, network, addr)
				}
			}
			var wg sync.WaitGroup
			for slot := range slots {
				wg.Go(func() {
					for n := range each {
						call := callOf(`{"method":"POST","url":%q,"body":"b"}`, server.URL)
						call.Attempt = slot*each + n
						if s := h.Run(t.Context(), call, bound, granted); s.Err != nil || !s.Wrote {
							t.Errorf("got %+v", s)
						}
					}
				})
			}
			wg.Wait()
			mu.Lock()
			defer mu.Unlock()
			if conns.Load() > slots || len(attempts) != slots*each {
				t.Errorf("%d connections for %d slots; %d attempts arrived of %d", conns.Load(), slots, len(attempts), slots*each)
			}
			for attempt, n := range attempts {
				if n != 1 {
					t.Errorf("attempt %s arrived %d times", attempt, n)
				}
			}
		})
	}
}
