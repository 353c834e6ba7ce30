package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/local"
)

// A shutdown ends, whatever is away: what runs is given up at shutdown_timeout.
const impatient = atAnyPort + "worker: {shutdown_timeout: 1s}\n"

// gate stands before a server, and can hold back all that passes, as a network does that drops packets.
type gate struct {
	address string
	held    sync.RWMutex // locked: nothing passes
	hold    sync.Once
}

// newGate lets through to where dial leads.
func newGate(t *testing.T, dial func() (net.Conn, error)) *gate {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	g := &gate{address: listener.Addr().String()}
	var mu sync.Mutex
	conns := []net.Conn{}
	opened := func(c net.Conn) { mu.Lock(); defer mu.Unlock(); conns = append(conns, c) }
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			opened(from)
			to, err := dial()
			if err != nil {
				from.Close()
				continue
			}
			opened(to)
			go g.pass(from, to)
			go g.pass(to, from)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
		g.shut()
		g.held.Unlock()
	})
	return g
}

func (g *gate) pass(from, to net.Conn) {
	defer to.Close()
	chunk := make([]byte, 32<<10)
	for {
		n, err := from.Read(chunk)
		if n > 0 {
			g.held.RLock()
			_, failed := to.Write(chunk[:n])
			g.held.RUnlock()
			err = errors.Join(err, failed)
		}
		if err != nil {
			return
		}
	}
}

// shut holds everything back from now on.
func (g *gate) shut() { g.hold.Do(g.held.Lock) }

// behindGate is the same world, whose Postgres is reached through a gate.
func (w world) behindGate() (world, *gate) {
	w.t.Helper()
	cc, err := pgx.ParseConfig(w.postgres)
	must(w.t, err)
	network, address := "tcp", net.JoinHostPort(cc.Host, fmt.Sprint(cc.Port))
	if filepath.IsAbs(cc.Host) {
		network, address = "unix", filepath.Join(cc.Host, fmt.Sprintf(".s.PGSQL.%d", cc.Port))
	}
	g := newGate(w.t, func() (net.Conn, error) { return new(net.Dialer).DialContext(w.t.Context(), network, address) })
	through := url.URL{Scheme: "postgres", User: url.UserPassword(cc.User, cc.Password), Host: g.address, Path: cc.Database, RawQuery: "sslmode=disable"}
	w.postgres = through.String()
	return w, g
}

// freeze stops a Redis, so that it takes connections and never answers. Stop ends it all the same.
func freeze(t *testing.T, redis *local.RedisServer) {
	t.Helper()
	must(t, syscall.Kill(redis.Pid(), syscall.SIGSTOP))
	t.Cleanup(redis.Kill)
}

// Each stage of a shutdown that gives up waiting says so, and the next goes on.
func TestSIGTERMWhileServersAreAway(t *testing.T) {
	t.Parallel()
	for name, takeAway := range map[string]func(*testing.T, *gate, *local.RedisServer){
		"Redis is gone":      func(_ *testing.T, _ *gate, redis *local.RedisServer) { redis.Kill() },
		"Redis is silent":    func(t *testing.T, _ *gate, redis *local.RedisServer) { freeze(t, redis) },
		"Postgres is silent": func(_ *testing.T, g *gate, _ *local.RedisServer) { g.shut() },
		"both are silent":    func(t *testing.T, g *gate, redis *local.RedisServer) { g.shut(); freeze(t, redis) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, redis := newWorld(t).withRedis()
			w, g := direct.behindGate()
			w.config = impatient
			p, id, _ := w.serving()
			postgresAway := name == "Postgres is silent" || name == "both are silent"
			takeAway(t, g, redis)
			p.send(syscall.SIGTERM)
			p.exits(exitDone)
			said := p.log.String()
			for line, want := range map[string]bool{
				"worker cuts off what still runs": true,
				"worker stopped":                  true,
				"dispatcher stopped":              true,
				" unrecorded=1":                   postgresAway,
			} {
				if strings.Contains(said, line) != want {
					t.Errorf("in the log: %t, want %t: %s\n%s", !want, want, line, said)
				}
			}
			if !postgresAway { // then what ran could be recorded
				if call := direct.get(id); call.Status != callqueue.StatusError || len(call.Ledger) != 1 {
					t.Errorf("what ran: %+v", call)
				}
			}
		})
	}
}

// A connection that is in use for good does not keep the program from its end.
func TestClosePoolGivesUp(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), newWorld(t).postgres)
	must(t, err)
	inUse, err := pool.Acquire(t.Context())
	must(t, err)
	defer inUse.Release()
	var log bytes.Buffer
	closePool(pool, slog.New(slog.NewTextHandler(&log, nil)))
	if !strings.Contains(log.String(), "connections to Postgres not closed") {
		t.Errorf("in the log: %q", &log)
	}
}

// What still runs at shutdown_timeout is cut off, recorded as an error that says so, and tried again.
func TestCutOff(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = impatient
	p, id, _ := w.serving()
	p.send(syscall.SIGTERM)
	p.exits(exitDone)
	call := w.get(id)
	if call.Status != callqueue.StatusError || call.Running || call.FailedCount != 1 || call.ErrorMessage == nil || !strings.Contains(*call.ErrorMessage, "cut off") {
		t.Errorf("what ran: %+v", call.Record)
	}
	for _, line := range []string{"worker draining", "running=1 shutdown_timeout=1s", "worker cuts off what still runs", "worker stopped", "dispatcher draining", "dispatcher stopped"} {
		if n := strings.Count(p.log.String(), line); n != 1 {
			t.Errorf("%d times in the log, want once: %s\n%s", n, line, p.log)
		}
	}
}

// A signal is heard while servers are waited for: those that refuse and those that are silent.
func TestSignalWhileWaiting(t *testing.T) {
	t.Parallel()
	silent := silentServer(t).url + "?sslmode=disable"
	for name, postgres := range map[string]string{"away": noPostgres, "silent": silent} {
		for _, command := range []string{"serve", "dispatch", "work"} {
			t.Run(command+", Postgres "+name, func(t *testing.T) {
				t.Parallel()
				p := world{t: t, postgres: postgres, redis: noRedis, config: atAnyPort}.spawn(command)
				p.says("msg=waiting for=Postgres")
				p.send(syscall.SIGTERM)
				p.exits(exitDone)
			})
		}
	}
}

// What the worker had taken and not started goes back.
func TestHandedBack(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort + "worker: {shutdown_timeout: 1s, concurrency: 2}\n"
	url, arrived, _ := api(t)
	w.stdin = strings.Repeat(fmt.Sprintf(`{"call_data": {"url": %q}}`+"\n", url), 6)
	w.do("enqueue", "--from", "-")
	w.do("dispatch", "--once") // without a worker, some are handed over for the first that comes
	p := w.spawn("work")
	receive(t, arrived, "the first runs")
	receive(t, arrived, "the second runs")
	if n := one[int](w, `SELECT count(*) FROM callq.call_open`); n <= 2 {
		t.Errorf("%d attempts are open, want more than the 2 that run", n)
	}
	p.send(syscall.SIGTERM)
	p.exits(exitDone)
	back := one[int](w, `SELECT count(*) FROM call_attempts WHERE outcome = 'not_sent'`)
	if open := one[int](w, `SELECT count(*) FROM callq.call_open WHERE started_at IS NOT NULL`); open != 0 || back == 0 {
		t.Errorf("%d attempts went back, %d are open\n%s", back, open, p.log)
	}
}
