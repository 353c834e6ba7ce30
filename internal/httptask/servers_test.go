package httptask

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/internal/outcome"
)

var errNoStart = errors.New("the attempt was not started")

// The standard logger is net/http's alone: what it says of servers that misbehave, as they are meant to, would
// hide what a test that fails has to say.
func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		if err := parallel.Value.Set("6"); err != nil { // these tests wait far more than they compute
			panic(err)
		}
	}
	os.Exit(m.Run())
}

const bound = time.Minute // of every wait; no test waits it out

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(bound):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// serveConns gives each connection to serve, on a goroutine of its own, and returns the address.
func serveConns(t *testing.T, serve func(*net.TCPConn)) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(2 * bound))
			go serve(conn.(*net.TCPConn))
		}
	}()
	return listener.Addr().String()
}

// serveHTTP serves plain HTTP or TLS on loopback.
func serveHTTP(t *testing.T, secure bool, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // hang-ups and refused certificates are meant
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

// counting serves, and counts the requests.
func counting(t *testing.T, secure bool) (*httptest.Server, *atomic.Int32) {
	t.Helper()
	var served atomic.Int32
	return serveHTTP(t, secure, func(http.ResponseWriter, *http.Request) { served.Add(1) }), &served
}

func certificatesOf(server *httptest.Server) *tls.Config {
	if server.TLS == nil {
		return nil
	}
	return server.Client().Transport.(*http.Transport).TLSClientConfig
}

func newTestTask(t *testing.T, cfg Config, connections ...int) *Task {
	t.Helper()
	cfg.AllowPrivate = true
	return newTaskOf(t, cfg, connections...)
}

// newTaskOf makes a task, with 100 connections to a host unless it is told how many.
func newTaskOf(t *testing.T, cfg Config, connections ...int) *Task {
	t.Helper()
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, bound)
	h, err := New(cfg, append(connections, 100)[0], NewArrivals())
	if err != nil {
		t.Fatal(err)
	}
	h.drainFor = bound
	t.Cleanup(h.Close)
	return h
}

func callOf(data string, args ...any) *Call {
	return &Call{ID: 7, Attempt: 2, IdempotencyKey: "callq-7", Data: fmt.Appendf(nil, data, args...)}
}

func granted(context.Context) (Grant, error) { return Grant{M0: time.Now()}, nil }

func isPermanent(err error) bool {
	_, ok := errors.AsType[*outcome.PermanentError](err)
	return ok
}

// noting is granted, and notes that the start was asked for.
func noting(started *bool) StartFunc {
	return func(ctx context.Context) (Grant, error) { *started = true; return granted(ctx) }
}
