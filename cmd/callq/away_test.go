package main

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// What needs Postgres says that it cannot be reached, whether it is away or silent, and where its URL is from.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	for how, postgres := range map[string]string{
		"away": noPostgres, "silent": silentServer(t).url,
		"behind a full pooler": fullPooler(t).url,
	} {
		for _, line := range []string{
			"status", "status --watch", "verify", "enqueue", "dispatch --once", "migrate up", "migrate down --yes", "migrate status",
			"calls list", "calls get 1", "calls why 1", "calls retry 1", "calls retry --all --yes", "calls cancel 1",
			"calls cancel --all --yes", "calls delete 1 --yes", "calls delete --all --yes",
			"limits list", "limits get api", "limits advise api", "limits forecast", "limits set api 1/s", "limits reset api", "limits pause api",
			"limits resume api", "limits open api --reason clean", "queues list", "queues pause q", "queues resume q",
			"maintain status", "maintain retention", "maintain vacuum", "maintain vacuum --full", "maintain sweep",
		} {
			t.Run(line+", Postgres "+how, func(t *testing.T) {
				t.Parallel()
				w := world{t: t, postgres: postgres, redis: noRedis}
				defer func(began time.Time) {
					if took := time.Since(began); took > 10*time.Second { // pgx's own bound is 15 s
						t.Errorf("it took %s", took)
					}
				}(time.Now())
				a := w.answers(exitUnreachable, line+" --timeout 300ms", "Postgres cannot be reached, tried for 300ms", "DATABASE_URL")
				if a.stdout != "" {
					t.Errorf("on stdout: %s", a.stdout)
				}
			})
		}
	}
}

// A command that waits for Postgres ends soon after SIGTERM, however long its --timeout is.
func TestInterruptedCommand(t *testing.T) {
	t.Parallel()
	locked := func(t *testing.T) (string, func() bool) {
		w := newWorld(t)
		w.hold("BEGIN", "LOCK TABLE callq.migrations, call_queue")
		watch := w.connect()
		return w.postgres, func() bool {
			var waits bool
			must(t, watch.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits))
			return waits
		}
	}
	deafTo := func(start func(*testing.T) *deafServer) func(*testing.T) (string, func() bool) {
		return func(t *testing.T) (string, func() bool) {
			s := start(t)
			return s.url, s.heard.Load
		}
	}
	for how, postgres := range map[string]func(t *testing.T) (url string, waits func() bool){
		"away":                 func(*testing.T) (string, func() bool) { return noPostgres, nil },
		"silent":               deafTo(silentServer),
		"behind a full pooler": deafTo(fullPooler),
		"that holds a lock":    locked,
	} {
		for _, line := range []string{"status", "calls list", "verify", "migrate up", "maintain vacuum", "dispatch --once"} {
			t.Run(line+", Postgres "+how, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var out, errs buffer
				url, waits := postgres(t)
				w := world{t: t, postgres: url, redis: noRedis}
				ended := make(chan int)
				go func() {
					ended <- runCode(ctx, append(strings.Fields(line), "--timeout", "10m"), nil, &out, &errs, w.environ())
				}()
				if waits == nil {
					waits = func() bool { return strings.Contains(errs.String(), "waiting up to") }
				}
				eventually(t, "it waits", waits)
				cancel()
				select {
				case code := <-ended:
					if code != exitFailed || !strings.Contains(errs.String(), "interrupted") {
						t.Errorf("exit code %d: %s", code, &errs)
					}
				case <-time.After(10 * time.Second):
					t.Errorf("it goes on: %s", &errs)
					<-ended
				}
			})
		}
	}
}

// deafServer takes connections and answers no statement.
type deafServer struct {
	address, url string

	heard atomic.Bool // a client waits for an answer
}

// deaf starts one that greets each connection so.
func deaf(t *testing.T, options string, greet func(*deafServer, net.Conn)) *deafServer {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	address := listener.Addr().String()
	s := &deafServer{address: address, url: "postgres://nobody@" + address + "/none" + options}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go greet(s, conn)
		}
	}()
	return s
}

// silentServer never says a word.
func silentServer(t *testing.T) *deafServer {
	t.Helper()
	return deaf(t, "", func(s *deafServer, _ net.Conn) { s.heard.Store(true) })
}

// fullPooler lets in any client, as pgbouncer does, and has no session left to run its statements or to hear of a cancel.
func fullPooler(t *testing.T) *deafServer {
	t.Helper()
	return deaf(t, "?sslmode=disable", func(s *deafServer, conn net.Conn) {
		backend := pgproto3.NewBackend(conn, conn)
		if first, err := backend.ReceiveStartupMessage(); err != nil {
			return
		} else if _, starts := first.(*pgproto3.StartupMessage); !starts {
			return
		}
		backend.Send(&pgproto3.AuthenticationOk{})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if backend.Flush() == nil {
			if _, err := backend.Receive(); err == nil { // a statement
				s.heard.Store(true)
			}
		}
	})
}
