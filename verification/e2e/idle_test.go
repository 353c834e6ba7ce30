//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/verification/fakeapi"
)

// Calls that come about as far apart as a server keeps idle connections lose hardly an attempt to connections that it has just
// closed, 25 ms away: none where it announces its timeout, and few where callq has to learn it.
func TestIdleConnections(t *testing.T) {
	if *figures == 1 {
		t.Skip("it takes two minutes: make stalls runs it")
	}
	const rounds, each = 16, 8
	for _, c := range []struct {
		name      string
		serve     func(*farm)
		period    time.Duration
		announced bool
	}{
		{"nginx, keepalive_timeout 5s", func(f *farm) { f.nginxWith(f.node(), "keepalive_timeout 5s;") }, 5 * time.Second, false},
		{"HAProxy, http-keep-alive 5s", func(f *farm) { f.haproxyWith(f.node(), "timeout http-keep-alive 5s") }, 5 * time.Second, false},
		{"gunicorn gthread, 2 s", func(f *farm) { f.gunicorn(nil, "-k", "gthread", "--threads", "8") }, 2 * time.Second, false},
		{"node, 5 s, closes after 6", func(f *farm) { f.node() }, 6020 * time.Millisecond, true},
		{"Apache, 5 s", func(f *farm) { f.apache(f.node()) }, 5 * time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := &farm{t: t, record: filepath.Join(t.TempDir(), "arrivals")}
			s := newStack(t, "limits: {api: {rate: 1000/s}}\nqueues: {default: {limits: [api], backoff: 100ms}}", fakeapi.Config{})
			c.serve(f)
			url := "http://" + relay(t, strings.TrimSuffix(strings.TrimPrefix(f.url, "http://"), "/"), 25*time.Millisecond) + "/"
			s.spawn("serve")
			tick := time.NewTicker(c.period)
			defer tick.Stop()
			const lostSQL = `SELECT count(*) FROM call_attempts WHERE outcome = 'error'`
			early := 0
			for round := range rounds {
				s.exec(`INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, $2)`, url, each)
				s.awaitDone(time.Minute, (round+1)*each)
				<-tick.C
				if round == 1 {
					early = s.count(lostSQL)
				}
			}
			lost, all := s.count(lostSQL)-early, s.count(`SELECT count(*) FROM call_attempts WHERE outcome <> 'not_sent'`)
			t.Logf("| %s | %d of %d attempts lost, and %d of the first %d calls' |", c.name, lost, all, early, 2*each)
			if c.announced && lost > 0 || lost*50 > rounds*each {
				t.Errorf("%d of %d attempts were lost", lost, all)
			}
		})
	}
}

// count reads a number.
func (s *stack) count(sql string) (n int) {
	s.t.Helper()
	if err := s.pool.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// relay passes bytes, and ends, to an address and back, each after so long.
func relay(t *testing.T, to string, delay time.Duration) string {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				server, err := net.Dial("tcp", to) //nolint:noctx // on this machine
				if err != nil {
					_ = from.Close()
					return
				}
				go pass(from.(*net.TCPConn), server.(*net.TCPConn), delay)
				pass(server.(*net.TCPConn), from.(*net.TCPConn), delay)
			}()
		}
	}()
	return l.Addr().String()
}

func pass(from, to *net.TCPConn, delay time.Duration) {
	type part struct {
		data []byte
		at   time.Time
	}
	parts := make(chan part, 1000)
	go func() {
		defer close(parts)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			parts <- part{buf[:n], time.Now().Add(delay)}
			if err != nil {
				return
			}
		}
	}()
	for p := range parts {
		time.Sleep(time.Until(p.at))
		if len(p.data) == 0 {
			_ = to.CloseWrite()
		} else if _, err := to.Write(p.data); err != nil {
			_ = from.Close()
		}
	}
}

func (f *farm) nginxWith(before, more string) string {
	port, dir := f.port(), f.t.TempDir()
	return f.start(port, nil, "nginx", "-e", "stderr", "-c", f.file("nginx.conf", fmt.Sprintf(`daemon off; pid %s/pid; user root; events {}
http { access_log off; %s server { listen 127.0.0.1:%s; location / { proxy_pass http://127.0.0.1:%s; } } }`, dir, more, port, before)))
}

func (f *farm) haproxyWith(before, more string) string {
	port := f.port()
	return f.start(port, nil, "haproxy", "-W", "-f", f.file("haproxy.cfg", fmt.Sprintf(`defaults
  mode http
  timeout connect 5s
  timeout client 50s
  timeout server 50s
  %s
frontend f
  bind 127.0.0.1:%s
  default_backend b
backend b
  server s 127.0.0.1:%s maxconn 1
`, more, port, before)))
}
