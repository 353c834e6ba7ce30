package httptask

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A server that reads a request on a reused connection and hangs up. Left to itself net/http sends
// it again on another connection, idempotent as it is, which the first half shows.
//
//callq:guarantee 2
func TestHangUpOnAReusedConnectionIsOneRequest(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(fmt.Sprintf("%s, TLS %v", method, secure), func(t *testing.T) {
				t.Parallel()
				var hangups atomic.Int32
				server := serveHTTP(t, secure, func(_ http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/hang" {
						hangups.Add(1)
						panic(http.ErrAbortHandler)
					}
				})
				plain := &http.Transport{TLSClientConfig: certificatesOf(server)}
				defer plain.CloseIdleConnections()
				for _, path := range []string{"/", "/", "/hang"} {
					r, _ := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
					r.Header.Set("Idempotency-Key", "callq-7")
					if answer, err := plain.RoundTrip(r); err == nil {
						_ = answer.Body.Close()
					}
				}
				if hangups.Load() < 2 {
					t.Fatalf("net/http sent %d requests: this shows no longer what the gate is for", hangups.Load())
				}

				// One slot: what is hung up on must not go on counting as a connection.
				h := newTestTask(t, Config{TLS: certificatesOf(server)}, 1)
				var starts int
				start := func(ctx context.Context) (Grant, error) { starts++; return granted(ctx) }
				for range 20 {
					hangups.Store(0)
					for _, path := range []string{"/", "/hang"} {
						starts = 0
						s := h.Run(t.Context(), callOf(`{"method":%q,"url":"%s%s"}`, method, server.URL, path), bound, start)
						if !s.Wrote || s.sent.IsZero() || starts != 1 || (s.Err != nil) != (path == "/hang") {
							t.Errorf("%s: got %+v and %d starts", path, s, starts)
						}
						if path == "/hang" && (!s.answered.IsZero() || isPermanent(s.Err)) {
							t.Errorf("%s: answered %v, %v", path, s.answered, s.Err)
						}
					}
					if n := hangups.Load(); n != 1 {
						t.Errorf("%d requests of one attempt", n)
					}
					c := clientOf(t, h, bound) // of a custom handler, on a connection that is used again
					_, _ = clientOf(t, h, bound).do(method, server.URL, "")
					_, err := c.do(method, server.URL+"/hang", "")
					if s := c.End(); err == nil || isNotSent(err) || !s.Wrote || !s.answered.IsZero() || hangups.Load() != 2 {
						t.Errorf("a handler's: %v, seen %+v, and %d requests", err, s, hangups.Load()-1)
					}
				}
			})
		}
	}
}

func TestNothingIsSent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		start func(ctx context.Context, end context.CancelFunc) (Grant, error)
		want  error
	}{
		{name: "the start was refused", want: errNoStart, start: func(context.Context, context.CancelFunc) (Grant, error) {
			return Grant{}, errNoStart
		}},
		{name: "the start took longer than send_within", want: ErrTooLate, start: func(context.Context, context.CancelFunc) (Grant, error) {
			return Grant{M0: time.Now().Add(-time.Second), SendBy: time.Now().Add(-time.Millisecond)}, nil
		}},
		{name: "the timeout has passed", start: func(context.Context, context.CancelFunc) (Grant, error) {
			return Grant{M0: time.Now().Add(-time.Hour), SendBy: time.Now().Add(-time.Millisecond)}, nil
		}},
		{name: "the timeout has passed, within send_within", start: func(context.Context, context.CancelFunc) (Grant, error) {
			return Grant{M0: time.Now().Add(-time.Hour), SendBy: time.Now().Add(time.Hour)}, nil
		}},
		{name: "cancelled while the start was asked for", want: context.Canceled, start: func(ctx context.Context, end context.CancelFunc) (Grant, error) {
			end()
			return granted(ctx)
		}},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS %v", c.name, secure), func(t *testing.T) {
				t.Parallel()
				server, requests := counting(t, secure)
				h := newTestTask(t, Config{TLS: certificatesOf(server)})
				for n := range 10 { // each time on a connection that is fresh, then on a reused one
					requests.Store(0)
					ctx, end := context.WithCancel(t.Context())
					asked := 0
					s := h.Run(ctx, callOf(`{"url":%q}`, server.URL), bound, func(ctx context.Context) (Grant, error) { asked++; return c.start(ctx, end) })
					end()
					if s.Wrote || s.Err == nil || asked != 1 || !s.sent.IsZero() || c.want != nil && !errors.Is(s.Err, c.want) {
						t.Errorf("got %+v, want nothing sent and %v", s, c.want)
					}
					if n%2 == 0 {
						if s := h.Run(t.Context(), callOf(`{"url":%q}`, server.URL), bound, granted); s.Err != nil || requests.Load() != 1 {
							t.Errorf("the next attempt: %v, %d requests", s.Err, requests.Load())
						}
					}
				}
				server.Close() // waits for what is being served
				if requests.Load() > 1 {
					t.Errorf("%d requests arrived", requests.Load())
				}
			})
		}
	}
}

// Cancelled at any moment around the write, what run says is what the server saw.
//
//callq:guarantee 2
func TestCancelledAroundTheWrite(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	arrived := map[string]int{}
	server := serveHTTP(t, false, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		arrived[r.Header.Get("Callq-Attempt")]++
	})
	h := newTestTask(t, Config{})
	wrote := map[string]bool{}
	for n := range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		call := callOf(`{"url":%q}`, server.URL)
		call.Attempt = n
		delay := time.Duration(rand.IntN(200)) * time.Microsecond
		s := h.Run(ctx, call, bound, func(ctx context.Context) (Grant, error) {
			time.AfterFunc(delay, cancel)
			return granted(ctx)
		})
		cancel()
		wrote[fmt.Sprint(n)] = s.Wrote
	}
	server.Close()
	mu.Lock()
	defer mu.Unlock()
	for attempt, n := range arrived {
		if n > 1 || !wrote[attempt] {
			t.Errorf("attempt %s arrived %d times, wrote = %v", attempt, n, wrote[attempt])
		}
	}
	t.Logf("%d of 1000 arrived", len(arrived))
}

// Without an answer in time the connection has been reset when run returns.
func TestTimeoutResetsTheConnection(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, data string
		answer     string // what the server sends before it falls silent
		reads      bool   // it reads the request
		want       string
	}{
		{name: "no answer", data: `"timeout":"2000ms"`, reads: true, want: "timed out after 2s"},
		{name: "half an answer's header", data: `"timeout":2.0`, reads: true, answer: "HTTP/1.1 200 OK\r\nA: ", want: "done"},
		{name: "half an answer's status", data: `"timeout":2.0`, reads: true, answer: "HTTP/1.1 200", want: "timed out after 2s"},
		{name: "half an answer's body", data: `"timeout":3`, reads: true, answer: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", want: "done"},
		{name: "a server that does not read", data: `"timeout":2,"method":"POST","body":"` + strings.Repeat("x", 8<<20) + `"`, want: "timed out after 2s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ended, returned := make(chan error, 1), make(chan struct{})
			addr := serveConns(t, func(conn *net.TCPConn) {
				_ = conn.SetReadBuffer(4096)
				if c.reads {
					if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
						t.Error(err)
					}
				}
				_, _ = io.WriteString(conn, c.answer)
				<-returned
				_, err := io.Copy(io.Discard, conn)
				ended <- err
			})
			h := newTestTask(t, Config{})
			s := h.Run(t.Context(), callOf(`{"url":"http://%s/path?key=hidden",%s}`, addr, c.data), time.Hour, granted)
			close(returned)
			got := "done"
			if s.Err != nil {
				got = s.Err.Error()
			}
			if !s.Wrote || s.sent.IsZero() || !strings.HasSuffix(got, c.want) || isPermanent(s.Err) {
				t.Errorf("got %+v, want %s", s, c.want)
			}
			if strings.Contains(got, "hidden") {
				t.Errorf("the error shows the query: %v", s.Err)
			}
			if err := receive(t, ended); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the server saw %v, want a reset", err)
			}
		})
	}
}

// An early answer ends the attempt; the rest of its request is not sent behind its back.
func TestEarlyAnswerCutsTheRequest(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	ended, returned := make(chan int64, 1), make(chan struct{})
	addr := serveConns(t, func(conn *net.TCPConn) {
		_ = conn.SetReadBuffer(4096)
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
		<-returned
		n, _ := io.Copy(io.Discard, conn)
		ended <- n
	})
	h := newTestTask(t, Config{})
	s := h.Run(t.Context(), callOf(`{"method":"POST","url":"http://%s","body":"%s"}`, addr, strings.Repeat("x", size)), bound, granted)
	close(returned)
	if !s.Wrote || !isPermanent(s.Err) {
		t.Errorf("got %+v, want a permanent error", s)
	}
	if n := receive(t, ended); n >= size-4096 {
		t.Error("the request went on to its end")
	}
}

// A second answer to one request is not taken for the answer to the next.
func TestSurplusAnswerIsNobodys(t *testing.T) {
	t.Parallel()
	addr := serveConns(t, func(conn *net.TCPConn) {
		for reader := bufio.NewReader(conn); ; {
			if _, err := http.ReadRequest(reader); err != nil {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		}
	})
	h := newTestTask(t, Config{}, 2)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if s := h.Run(t.Context(), callOf(`{"url":"http://%s"}`, addr), bound, granted); isPermanent(s.Err) {
					t.Errorf("got %+v", s)
				}
			}
		})
	}
	wg.Wait()
}
