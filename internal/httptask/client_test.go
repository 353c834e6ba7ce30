package httptask

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/internal/outcome"
)

// clientOf is the client of an attempt that was started now, and may send for so long; 0: until its deadline.
func clientOf(t *testing.T, h *Task, sendWithin time.Duration) *Client {
	t.Helper()
	g := Grant{M0: time.Now()}
	if sendWithin != 0 {
		g.SendBy = g.M0.Add(sendWithin)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return h.NewClient(ctx, &Call{ID: 7, Attempt: 2, IdempotencyKey: "callq-7"}, g, bound)
}

func isNotSent(err error) bool {
	_, ok := errors.AsType[*outcome.NotSentError](err)
	return ok
}

// do makes a request as a handler does, and reads its answer to the end.
func (c *Client) do(method, url, body string) (status int, err error) {
	r, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	answer, err := c.HTTP.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

//callq:guarantee 2
func TestClientSendsOneRequest(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	server := serveHTTP(t, true, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		body, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Method, string(body))
	})
	h := newTestTask(t, Config{TLS: certificatesOf(server)})

	c := clientOf(t, h, bound)
	if status, err := c.do("POST", server.URL, "x"); err != nil || status != 200 {
		t.Fatal(status, err)
	}
	for range 3 {
		if _, err := c.do("GET", server.URL, ""); !errors.Is(err, errSecondRequest) || isNotSent(err) {
			t.Errorf("a second request: %v", err)
		}
	}
	if s := c.End(); !s.Used || !s.Wrote || s.sent.Before(c.grant.M0) || served.Load() != 1 {
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
			case !errors.Is(err, errSecondRequest):
				t.Error(err)
			}
		})
	}
	close(gate)
	all.Wait()
	if served.Load() != 1 || done.Load() != 1 {
		t.Errorf("%d requests served of 16 at once, %d answered", served.Load(), done.Load())
	}
	// There is one request, also where it was not sent.
	c = clientOf(t, h, bound)
	if _, err := c.do("GET", "https://nowhere.invalid", ""); err == nil || errors.Is(err, errSecondRequest) {
		t.Errorf("to nowhere: %v", err)
	}
	if _, err := c.do("GET", server.URL, ""); !errors.Is(err, errSecondRequest) || served.Load() != 1 {
		t.Errorf("after one that was not sent: %v, and %d requests served", err, served.Load())
	}
	if s := clientOf(t, h, 0).End(); s.Used || s.Wrote {
		t.Errorf("seen %+v of a client that was not used", s)
	}
}

// Nothing is written later than send_within after the start was asked for, and that is said.
//
//callq:guarantee 1
func TestClientIsTooLate(t *testing.T) {
	t.Parallel()
	server, served := counting(t, false)
	h := newTestTask(t, Config{})
	for _, within := range []time.Duration{-time.Second, 1} {
		c := clientOf(t, h, within)
		_, err := c.do("GET", server.URL, "")
		if s := c.End(); !isNotSent(err) || !errors.Is(err, ErrTooLate) || !s.Used || s.Wrote {
			t.Errorf("within %s: %v, seen %+v", within, err, s)
		}
	}
	// A handler that has promised nothing may have sent by other means: it is an error like any other.
	c := clientOf(t, h, 0)
	c.timeout = 1
	_, err := c.do("GET", server.URL, "")
	if s := c.End(); err == nil || isNotSent(err) || s.Wrote {
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
	h := newTestTask(t, Config{TLS: certificatesOf(certificates)}, 1)
	c := clientOf(t, h, 50*time.Millisecond)
	_, err := c.do("GET", "https://"+addr, "")
	if s := c.End(); !isNotSent(err) || !errors.Is(err, ErrTooLate) || s.Wrote {
		t.Errorf("%v, seen %+v", err, s)
	}
	close(shakeHands)
	if _, err := clientOf(t, h, bound).do("GET", "https://"+addr, ""); err != nil || connections.Load() != 1 {
		t.Errorf("%v, on connection %d", err, connections.Load())
	}
}

// isWritten says whether the write of the request under way has returned.
func (c *Client) isWritten() bool {
	c.mu.Lock()
	p := c.pass
	c.mu.Unlock()
	if p == nil {
		return false
	}
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	if conn == nil {
		return false
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	return !p.sent.IsZero()
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
	h := newTestTask(t, Config{TLS: certificatesOf(server)})
	for i := range 30 {
		c := clientOf(t, h, bound)
		path := []string{"/read", "/close", "/empty"}[i%3]
		r, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
		answer, err := c.HTTP.Do(r)
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
		if s := c.End(); !s.Wrote {
			t.Errorf("%s: seen %+v", path, s)
		}
	}
	if len(connections) > 5 { // one, where reading on is not cut short
		t.Errorf("%d connections for 30 requests", len(connections))
	}
}
