package tasks

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// clientOf is the client of an attempt that was started now, and may send for so long; 0: until its deadline.
func clientOf(t *testing.T, h *httpTask, sendWithin time.Duration) *client {
	t.Helper()
	g := grant{m0: time.Now()}
	if sendWithin != 0 {
		g.sendBy = g.m0.Add(sendWithin)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return newClient(ctx, h, &Call{ID: 7, Attempt: 2}, g, bound)
}

func isNotSent(err error) bool {
	_, ok := errors.AsType[*notSentError](err)
	return ok
}

// do makes a request as a handler does, and reads its answer to the end.
func (c *client) do(method, url, body string) (status int, err error) {
	r, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	answer, err := c.call.Client.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

func TestClientSendsOneRequest(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	server := serveHTTP(t, true, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		body, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Method, string(body))
	})
	h := newTestTask(t, HTTPConfig{TLS: certificatesOf(server)})

	c := clientOf(t, h, bound)
	if status, err := c.do("POST", server.URL, "x"); err != nil || status != 200 {
		t.Fatal(status, err)
	}
	for range 3 {
		if _, err := c.do("GET", server.URL, ""); !errors.Is(err, errSecondRequest) || isNotSent(err) {
			t.Errorf("a second request: %v", err)
		}
	}
	if s := c.end(); !s.used || !s.wrote || s.late || s.sent.Before(c.grant.m0) || served.Load() != 1 {
		t.Errorf("seen %+v, and %d requests served", s, served.Load())
	}
	if _, err := c.do("GET", server.URL, ""); !errors.Is(err, errHandlerEnded) || served.Load() != 1 {
		t.Errorf("after the handler: %v, and %d requests served", err, served.Load())
	}

	served.Store(0)
	c = clientOf(t, h, 0)
	var done atomic.Int32
	var all sync.WaitGroup
	gate := make(chan struct{})
	for range 16 {
		all.Go(func() {
			<-gate
			switch _, err := c.do("POST", server.URL, "x"); {
			case err == nil:
				done.Add(1)
			case !errors.Is(err, errAtOnce) && !errors.Is(err, errSecondRequest):
				t.Error(err)
			}
		})
	}
	close(gate)
	all.Wait()
	if served.Load() != 1 || done.Load() != 1 {
		t.Errorf("%d requests served of 16 at once, %d answered", served.Load(), done.Load())
	}
	if s := clientOf(t, h, 0).end(); s.used || s.wrote {
		t.Errorf("seen %+v of a client that was not used", s)
	}
}

// A server that reads a request on a reused connection and hangs up, as for the http task.
func TestClientHangUpOnAReusedConnection(t *testing.T) {
	t.Parallel()
	var hangups atomic.Int32
	server := serveHTTP(t, false, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			hangups.Add(1)
			panic(http.ErrAbortHandler)
		}
	})
	h := newTestTask(t, HTTPConfig{MaxIdlePerHost: 1})
	for _, method := range []string{"GET", "PUT"} {
		for range 10 {
			hangups.Store(0)
			if _, err := clientOf(t, h, bound).do(method, server.URL, ""); err != nil {
				t.Fatal(err)
			}
			c := clientOf(t, h, bound)
			_, err := c.do(method, server.URL+"/hang", "")
			if s := c.end(); err == nil || isNotSent(err) || !s.wrote || !s.answered.IsZero() || hangups.Load() != 1 {
				t.Errorf("%s: %v, seen %+v, and %d requests", method, err, s, hangups.Load())
			}
		}
	}
}

// An idle connection that turns out to be closed is no failure: nothing was written, so another is taken.
func TestClientPassesOverClosedConnections(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	server := serveHTTP(t, false, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		_, _ = io.Copy(w, r.Body)
	})
	for _, c := range []struct {
		name    string
		body    io.Reader
		within  time.Duration
		passes  bool
		notSent bool
	}{
		{"no body", nil, bound, true, false},
		{"a body that can be read again", strings.NewReader("x"), bound, true, false},
		{"a body that cannot", io.MultiReader(strings.NewReader("x")), bound, false, true},
		{"a body that cannot, of a handler that may have sent by other means", io.MultiReader(strings.NewReader("x")), 0, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newTestTask(t, HTTPConfig{})
			var idle *gatedConn
			trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { idle = info.Conn.(*gatedConn) }}
			r, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", server.URL, nil)
			answer, err := clientOf(t, h, bound).call.Client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			idle.mu.Lock()
			idle.spent = true // as when its end was read, and net/http does not know yet
			idle.mu.Unlock()

			served.Store(0)
			client := clientOf(t, h, c.within)
			r, _ = http.NewRequestWithContext(t.Context(), "POST", server.URL, c.body)
			answer, err = client.call.Client.Do(r)
			if err == nil {
				body, _ := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				if string(body) != "x" && c.body != nil {
					t.Errorf("the server was sent %q", body)
				}
			}
			if s := client.end(); s.wrote != c.passes || (served.Load() == 1) != c.passes || (err == nil) != c.passes || isNotSent(err) != c.notSent {
				t.Errorf("%v, seen %+v, and %d requests served", err, s, served.Load())
			}
		})
	}
}

// Nothing is written later than send_within after the start was asked for, and that is said.
func TestClientIsTooLate(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	server := serveHTTP(t, false, func(http.ResponseWriter, *http.Request) { served.Add(1) })
	h := newTestTask(t, HTTPConfig{})
	for _, within := range []time.Duration{-time.Second, 1} {
		c := clientOf(t, h, within)
		_, err := c.do("GET", server.URL, "")
		if s := c.end(); !isNotSent(err) || !errors.Is(err, errTooLate) || !s.used || s.wrote || !s.late {
			t.Errorf("within %s: %v, seen %+v", within, err, s)
		}
	}
	// A handler that has promised nothing may have sent by other means: it is an error like any other.
	c := clientOf(t, h, 0)
	c.timeout = 1
	_, err := c.do("GET", server.URL, "")
	if s := c.end(); err == nil || isNotSent(err) || s.wrote {
		t.Errorf("past the deadline: %v, seen %+v", err, s)
	}
	if n := served.Load(); n > 0 {
		t.Errorf("%d requests served", n)
	}
}

// One that did not connect in time is not sent, but its connection is there for the next.
func TestClientConnectsForTheNext(t *testing.T) {
	t.Parallel()
	certificates := serveHTTP(t, true, nil)
	var connections atomic.Int32
	shakeHands := make(chan struct{})
	addr := serveConns(t, func(conn *net.TCPConn) {
		connections.Add(1)
		<-shakeHands
		answerAll(tls.Server(conn, certificates.TLS))
	})
	h := newTestTask(t, HTTPConfig{TLS: certificatesOf(certificates), MaxIdlePerHost: 1})
	c := clientOf(t, h, 50*time.Millisecond)
	_, err := c.do("GET", "https://"+addr, "")
	if s := c.end(); !isNotSent(err) || !errors.Is(err, errTooLate) || s.wrote || !s.late {
		t.Errorf("%v, seen %+v", err, s)
	}
	close(shakeHands)
	if _, err := clientOf(t, h, bound).do("GET", "https://"+addr, ""); err != nil || connections.Load() != 1 {
		t.Errorf("%v, on connection %d", err, connections.Load())
	}
}

// awaitWritten waits until the write of the request under way has returned.
func (c *client) awaitWritten() {
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		c.mu.Lock()
		e := c.using
		c.mu.Unlock()
		if e == nil {
			continue
		}
		e.pass.mu.Lock()
		conn := e.pass.conn
		e.pass.mu.Unlock()
		if conn == nil {
			continue
		}
		conn.mu.Lock()
		sent := e.pass.sent
		conn.mu.Unlock()
		if !sent.IsZero() {
			return
		}
	}
}

// answerAll answers each request on a connection that fits one read.
func answerAll(conn net.Conn) {
	b := make([]byte, 32<<10)
	for {
		if _, err := conn.Read(b); err != nil {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
}

// When the handler has ended nothing more is written, whatever it has left behind.
func TestClientEndsWithItsHandler(t *testing.T) {
	t.Parallel()
	arrived, written, finish := make(chan string, 10), make(chan struct{}, 10), make(chan struct{})
	defer close(finish)
	server := serveHTTP(t, false, func(w http.ResponseWriter, r *http.Request) {
		arrived <- r.URL.Path
		if r.URL.Path != "/slow" {
			<-written // else its answer proves nothing
			w.WriteHeader(map[string]int{"/body": http.StatusOK, "/408": http.StatusRequestTimeout}[r.URL.Path])
			w.(http.Flusher).Flush()
		}
		select {
		case <-finish:
		case <-r.Context().Done(): // the connection was reset
			arrived <- "gone"
		}
	})
	h := newTestTask(t, HTTPConfig{})

	t.Run("waiting for an answer", func(t *testing.T) {
		c := clientOf(t, h, bound)
		failed := make(chan error, 1)
		go func() { _, err := c.do("GET", server.URL+"/slow", ""); failed <- err }()
		receive(t, arrived)
		s := c.end()
		if !s.wrote || !s.answered.IsZero() {
			t.Errorf("seen %+v", s)
		}
		if err := receive(t, failed); !errors.Is(err, errHandlerEnded) {
			t.Errorf("the request ended with %v", err)
		}
		receive(t, arrived)
	})
	for path, proves := range map[string]bool{"/body": true, "/408": false} {
		t.Run("reading "+path, func(t *testing.T) {
			c := clientOf(t, h, bound)
			r, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
			go func() { c.awaitWritten(); written <- struct{}{} }()
			answer, err := c.call.Client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			receive(t, arrived)
			if s := c.end(); !s.wrote || s.answered.IsZero() == proves {
				t.Errorf("seen %+v", s)
			}
			receive(t, arrived)
			if _, err := io.ReadAll(answer.Body); err == nil {
				t.Error("the answer could still be read to its end")
			}
		})
	}
	t.Run("connecting", func(t *testing.T) {
		c := clientOf(t, h, bound)
		hold, begun := make(chan struct{}), make(chan struct{}, 100)
		h := newTestTask(t, HTTPConfig{Resolver: &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			begun <- struct{}{}
			<-hold
			return nil, errors.New("no name server")
		}}})
		c.http = h
		failed := make(chan error, 1)
		go func() { _, err := c.do("GET", "http://api.test", ""); failed <- err }()
		receive(t, begun)
		if s := c.end(); s.wrote || !s.used {
			t.Errorf("seen %+v", s)
		}
		if err := receive(t, failed); !errors.Is(err, errHandlerEnded) {
			t.Errorf("the request ended with %v", err)
		}
		close(hold)
	})
	t.Run("at any moment", func(t *testing.T) {
		var sent, unsent sync.Map
		quick := serveHTTP(t, false, func(_ http.ResponseWriter, r *http.Request) { sent.Store(r.URL.Path, true) })
		for i := range 300 {
			path := fmt.Sprint("/", i)
			c := clientOf(t, h, bound)
			over := make(chan struct{})
			go func() { _, _ = c.do("GET", quick.URL+path, ""); close(over) }()
			for until := time.Now().Add(time.Duration(i) * time.Microsecond); time.Now().Before(until); {
			}
			if s := c.end(); !s.wrote {
				unsent.Store(path, s)
			}
			<-over
		}
		quick.Close() // what it has taken in is served
		unsent.Range(func(path, s any) bool {
			if _, was := sent.Load(path); was {
				t.Errorf("%s was sent, though seen %+v", path, s)
			}
			return true
		})
	})
}

// What the client refuses is not sent, and will never be: the call fails for good.
func TestClientRefuses(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	server := serveHTTP(t, false, func(http.ResponseWriter, *http.Request) { served.Add(1) })
	open := HTTPConfig{AllowPrivate: true}
	for name, c := range map[string]struct {
		cfg    HTTPConfig
		change func(*http.Request)
		want   string
	}{
		"another host":            {HTTPConfig{AllowPrivate: true, Hosts: []string{"api.example.com"}}, nil, "the host is not in http_task.hosts"},
		"a private address":       {HTTPConfig{}, nil, "has the private address 127.0.0.1"},
		"Expect":                  {open, func(r *http.Request) { r.Header.Set("Expect", "100-continue") }, "about the connection"},
		"Upgrade":                 {open, func(r *http.Request) { r.Header["upgrade"] = []string{"websocket"} }, "about the connection"},
		"CONNECT":                 {open, func(r *http.Request) { r.Method = "CONNECT" }, "CONNECT"},
		"a header of 15 KiB":      {open, func(r *http.Request) { r.Header.Set("X", strings.Repeat("x", 15<<10)) }, "15360 are allowed"},
		"a header with a newline": {open, func(r *http.Request) { r.Header.Set("X", "a\nb") }, "invalid header field value"},
	} {
		t.Run(name, func(t *testing.T) {
			client := clientOf(t, newTaskOf(t, c.cfg), bound)
			body := &closing{Reader: strings.NewReader("x")}
			r, _ := http.NewRequestWithContext(t.Context(), "POST", server.URL, body)
			if c.change != nil {
				c.change(r)
			}
			answer, err := client.call.Client.Do(r)
			if err == nil {
				_ = answer.Body.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || isNotSent(err) || !isPermanent(err) && name != "a header with a newline" {
				t.Errorf("got %v", err)
			}
			if s := client.end(); s.wrote {
				t.Errorf("seen %+v", s)
			}
			if !body.closed.Load() {
				t.Error("the body was not closed")
			}
		})
	}
	if n := served.Load(); n > 0 {
		t.Errorf("%d requests served", n)
	}
}

type closing struct {
	io.Reader
	closed atomic.Bool
}

func (c *closing) Close() error { c.closed.Store(true); return nil }

// A request carries what the http task's do, unless the handler set it; the handler's own is not changed.
func TestClientsHeaders(t *testing.T) {
	t.Parallel()
	requests := make(chan *http.Request, 1)
	server := serveHTTP(t, true, func(_ http.ResponseWriter, r *http.Request) { requests <- r })
	h := newTestTask(t, HTTPConfig{TLS: certificatesOf(server)})
	names := []string{"Callq-Call-Id", "Callq-Attempt", "Idempotency-Key", "User-Agent"}
	for _, c := range []struct {
		set  map[string]string
		want string
	}{
		{nil, "7 2 callq-7 callq"},
		{map[string]string{"Idempotency-Key": "mine", "Callq-Call-Id": "8", "Callq-Attempt": "9", "User-Agent": "me"}, "8 9 mine me"},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL, nil)
		for name, value := range c.set {
			r.Header.Set(name, value)
		}
		answer, err := clientOf(t, h, bound).call.Client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		var got []string
		for _, name := range names {
			got = append(got, receivedOf(t, requests, name))
		}
		if strings.Join(got, " ") != c.want || len(r.Header) != len(c.set) {
			t.Errorf("got %q, want %q; the handler's has %v", got, c.want, r.Header)
		}
	}
}

// receivedOf takes the request that came, and puts it back for the next header.
func receivedOf(t *testing.T, requests chan *http.Request, name string) string {
	t.Helper()
	r := receive(t, requests)
	value := r.Header.Get(name)
	if name != "User-Agent" { // the last
		requests <- r
	}
	return value
}

// A redirect is an answer. To follow it would be a second request, which is refused.
func TestClientFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	server := serveHTTP(t, false, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	h := newTestTask(t, HTTPConfig{})
	c := clientOf(t, h, bound)
	if status, err := c.do("GET", server.URL, ""); err != nil || status != http.StatusTemporaryRedirect {
		t.Errorf("got %d, %v", status, err)
	}
	c = clientOf(t, h, bound)
	c.call.Client.CheckRedirect = nil
	if _, err := c.do("GET", server.URL, ""); !errors.Is(err, errSecondRequest) {
		t.Errorf("followed: %v", err)
	}
	if n := served.Load(); n != 2 {
		t.Errorf("%d requests served, want 2", n)
	}
}

// Connections are used again, however the handler leaves a short answer; one with a long rest is not waited for.
func TestClientsConnectionsAreReused(t *testing.T) {
	t.Parallel()
	connections := map[string]bool{}
	var mu sync.Mutex
	server := serveHTTP(t, true, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		connections[r.RemoteAddr] = true
		mu.Unlock()
		if r.URL.Path != "/empty" {
			_, _ = w.Write(bytes.Repeat([]byte("x"), 100<<10))
		}
	})
	h := newTestTask(t, HTTPConfig{TLS: certificatesOf(server)})
	for i := range 30 {
		c := clientOf(t, h, bound)
		path := []string{"/read", "/close", "/empty"}[i%3]
		r, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
		answer, err := c.call.Client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if path == "/read" {
			if _, err := io.ReadAll(answer.Body); err != nil {
				t.Error(err)
			}
		}
		if path != "/empty" {
			_ = answer.Body.Close()
		}
		if s := c.end(); !s.wrote {
			t.Errorf("%s: seen %+v", path, s)
		}
	}
	if len(connections) > 5 { // one, where reading on is not cut short
		t.Errorf("%d connections for 30 requests", len(connections))
	}
}
