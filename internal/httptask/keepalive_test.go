package httptask

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestAnnouncedIdle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lines []string
		want  time.Duration
	}{
		{},
		{lines: []string{""}},
		{lines: []string{"timeout=5"}, want: 5 * time.Second},
		{lines: []string{"timeout=5, max=100"}, want: 5 * time.Second},
		{lines: []string{"max=100; Timeout = \"5\""}, want: 5 * time.Second},
		{lines: []string{"max=3", "timeout=75"}, want: 75 * time.Second},
		{lines: []string{"timeout=0"}, want: 1},
		{lines: []string{"timeout=99999999999999999999"}, want: time.Hour},
		{lines: []string{"timeout=-1"}},
		{lines: []string{"timeout=1.5"}},
		{lines: []string{"timeout"}},
		{lines: []string{"idle_timeout=5"}},
	} {
		if got := announcedIdle(http.Header{"Keep-Alive": c.lines}); got != c.want {
			t.Errorf("%q: %s, want %s", c.lines, got, c.want)
		}
	}
}

func TestIdleBounds(t *testing.T) {
	t.Parallel()
	const (
		ms = time.Millisecond
		s  = time.Second
	)
	type event struct {
		at     time.Duration
		what   string // of a connection that was idle for d
		d      time.Duration
		bounds [3]time.Duration // then: nothing announced; 5 s; 60 s, with a round trip of 100 ms
	}
	for _, c := range []struct {
		name   string
		events []event
	}{
		{"nothing known", []event{{0, "", 0, [3]time.Duration{s, 3900 * ms, 30 * s}}}},
		{"it grows with what is proven", []event{
			{1 * s, "answered", 900 * ms, [3]time.Duration{1800 * ms, 3900 * ms, 30 * s}},
			{2 * s, "answered", 400 * ms, [3]time.Duration{1800 * ms, 3900 * ms, 30 * s}},
			{9 * s, "answered", 20 * s, [3]time.Duration{30 * s, 3900 * ms, 30 * s}},
		}},
		{"closed by the server", []event{
			{1 * s, "closed", 5 * s, [3]time.Duration{3900 * ms, 3900 * ms, 3900 * ms}},
			{2 * s, "closed", 6 * s, [3]time.Duration{3900 * ms, 3900 * ms, 3900 * ms}},
			{3 * s, "closed", 2 * s, [3]time.Duration{1500 * ms, 1500 * ms, 1500 * ms}},
			{4 * s, "closed", 0, [3]time.Duration{}},
			{5 * time.Minute, "", 0, [3]time.Duration{}},
			{5*time.Minute + 5*s, "", 0, [3]time.Duration{s, 3900 * ms, 30 * s}}, // perhaps it is another by now
		}},
		{"closed under a request", []event{
			{1 * s, "answered", 900 * ms, [3]time.Duration{1800 * ms, 3900 * ms, 30 * s}},
			{2 * s, "lost", 1500 * ms, [3]time.Duration{500 * ms, 500 * ms, 500 * ms}},
		}},
		{"a server that stops", []event{
			{1 * s, "answered", 2 * s, [3]time.Duration{4 * s, 3900 * ms, 30 * s}},
			{2 * s, "closed", 20 * ms, [3]time.Duration{4 * s, 3900 * ms, 30 * s}},
			{2 * s, "closed", 50 * ms, [3]time.Duration{4 * s, 3900 * ms, 30 * s}},
			{4 * s, "answered", 1 * s, [3]time.Duration{4 * s, 3900 * ms, 30 * s}},
			{9 * s, "closed", s, [3]time.Duration{4 * s, 3900 * ms, 30 * s}},
			{11 * s, "closed", s, [3]time.Duration{700 * ms, 700 * ms, 700 * ms}}, // again: that is its timeout now
		}},
	} {
		h, begun := new(idleTime), time.Now()
		for _, e := range c.events {
			now := begun.Add(e.at)
			switch e.what {
			case "answered":
				h.answered(e.d)
			case "closed":
				h.closedAfter(e.d, now)
			case "lost":
				h.lost(e.d, now)
			}
			for i, announced := range []time.Duration{0, 5 * s, 60 * s} {
				if got := h.bound(announced, 100*ms, now); got != e.bounds[i] {
					t.Errorf("%s, %s %s at %s: with %s announced %s, want %s", c.name, e.what, e.d, e.at, announced, got, e.bounds[i])
				}
			}
		}
	}
	for _, announced := range []time.Duration{1, s, 1100 * ms} {
		if got := new(idleTime).bound(announced, 100*ms, time.Now()); got != 0 {
			t.Errorf("announced %s: %s, want 0", announced, got)
		}
	}
}

func TestIdleTimesAreBounded(t *testing.T) {
	t.Parallel()
	times, now := newIdleTimes(), time.Now()
	kept := times.of("kept", now)
	for i := range 3 * maxHosts {
		now = now.Add(time.Second)
		times.of(fmt.Sprint(i), now)
		if times.of("kept", now) != kept || len(times.hosts) > maxHosts {
			t.Fatalf("%d hosts known", len(times.hosts))
		}
	}
}

// closingServer closes its first connection once it is idle for so long, and leaves others to the client. Its answers have a header.
func closingServer(t *testing.T, after time.Duration, header string) (addr string, conns *atomic.Int32, closed chan struct{}) {
	t.Helper()
	conns, closed = new(atomic.Int32), make(chan struct{}, 1000)
	addr = serveConns(t, func(conn *net.TCPConn) {
		first := conns.Add(1) == 1
		for reader := bufio.NewReader(conn); ; {
			r, err := http.ReadRequest(reader)
			if err != nil {
				_ = conn.Close()
				closed <- struct{}{}
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"+header+"\r\nok")
			if first {
				_ = conn.SetReadDeadline(time.Now().Add(after))
			}
		}
	})
	return addr, conns, closed
}

// A server that closes idle connections after 200 ms, and says nothing of it, is known after the first one: requests just as far
// apart are not lost, those that are nearer to each other share a connection.
func TestIdleTimeIsLearnt(t *testing.T) {
	t.Parallel()
	addr, conns, closed := closingServer(t, 200*time.Millisecond, "")
	h := newTestTask(t, Config{})
	run := func() {
		t.Helper()
		s := h.Run(t.Context(), callOf(`{"method":"POST","url":"http://%s","body":"b"}`, addr), bound, granted)
		if s.Err != nil {
			t.Errorf("lost: %v", s.Err)
		}
	}
	run()
	receive(t, closed)
	host := h.idle.of(addr, time.Now())
	know := func(idle time.Duration) { // as if this machine were quick
		host.mu.Lock()
		host.closed = idle
		host.mu.Unlock()
	}
	eventually(t, "the host is known", func() bool {
		host.mu.Lock()
		defer host.mu.Unlock()
		return host.closed >= 150*time.Millisecond
	})
	know(200 * time.Millisecond)
	for range 5 {
		run()
		receive(t, closed) // by callq's side, before the server would
	}
	if conns.Load() != 6 {
		t.Errorf("%d connections", conns.Load())
	}
	know(time.Minute)
	for range 20 {
		run()
	}
	if conns.Load() > 9 {
		t.Errorf("%d connections for 20 requests in a row", conns.Load()-6)
	}
}

// What the server announces is obeyed: of "timeout=2" a second, of "timeout=1" nothing.
func TestAnnouncedIdleTimeIsObeyed(t *testing.T) {
	t.Parallel()
	for announced, reused := range map[int]bool{1: false, 2: true} {
		t.Run(fmt.Sprint(announced), func(t *testing.T) {
			t.Parallel()
			addr, conns, closed := closingServer(t, 2*bound, fmt.Sprintf("Keep-Alive: timeout=%d\r\n", announced))
			h := newTestTask(t, Config{})
			for range 10 {
				starts := 0
				s := h.Run(t.Context(), callOf(`{"method":"POST","url":"http://%s","body":"b"}`, addr), bound,
					func(ctx context.Context) (Grant, error) { starts++; return granted(ctx) })
				if s.Err != nil || starts != 1 {
					t.Fatalf("%v, after %d starts", s.Err, starts)
				}
			}
			if n := conns.Load(); n > 5 && reused || n != 10 && !reused {
				t.Errorf("%d connections for 10 requests", n)
			}
			receive(t, closed)
		})
	}
}

// capture returns the connections that the task makes.
func capture(h *Task) chan *gatedConn {
	conns, dial := make(chan *gatedConn, 100), h.transport.DialContext
	h.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil {
			conns <- conn.(*gatedConn)
		}
		return conn, err
	}
	return conns
}

// A connection that is past its bound, as its timer is late, takes no request, and the attempt goes on with another one. A
// body that cannot be read again is not sent.
func TestPassedOverConnectionLosesNoAttempt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		body io.Reader
		lost bool
	}{{name: "none"}, {name: "read again", body: strings.NewReader("b")}, {name: "read once", body: io.MultiReader(strings.NewReader("b")), lost: true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, served := counting(t, false)
			h := newTestTask(t, Config{})
			conns := capture(h)
			if _, err := clientOf(t, h, bound).do("GET", server.URL, ""); err != nil {
				t.Fatal(err)
			}
			gate := receive(t, conns)
			gate.mu.Lock()
			gate.idle.Stop()
			gate.last = gate.last.Add(-time.Minute)
			gate.mu.Unlock()
			client := clientOf(t, h, bound)
			r, _ := http.NewRequestWithContext(t.Context(), "POST", server.URL, c.body)
			answer, err := client.HTTP.Do(r)
			if err == nil {
				_ = answer.Body.Close()
			}
			s := client.End()
			switch {
			case err == nil && s.Wrote && served.Load() == 2:
			case c.lost && isNotSent(err) && errors.Is(err, errIdleLong) && !s.Wrote && served.Load() == 1:
			default:
				t.Errorf("%v, seen %+v, %d requests", err, s, served.Load())
			}
		})
	}
}

// A connection that the server closes while the start is asked for takes no request, and that is said.
func TestClosedWhileStarting(t *testing.T) {
	t.Parallel()
	closeNow := make(chan struct{})
	addr := serveConns(t, func(conn *net.TCPConn) {
		_, _ = http.ReadRequest(bufio.NewReader(conn))
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		<-closeNow
		_ = conn.Close()
	})
	h := newTestTask(t, Config{})
	conns := capture(h)
	if s := h.Run(t.Context(), callOf(`{"url":"http://%s"}`, addr), bound, granted); s.Err != nil {
		t.Fatal(s.Err)
	}
	gate := receive(t, conns)
	s := h.Run(t.Context(), callOf(`{"url":"http://%s"}`, addr), bound, func(ctx context.Context) (Grant, error) {
		close(closeNow)
		eventually(t, "the gate has seen it", func() bool {
			gate.mu.Lock()
			defer gate.mu.Unlock()
			return gate.spent
		})
		return granted(ctx)
	})
	if s.Wrote || !Unsent(s.Err) || !strings.Contains(s.Err.Error(), "the server closed an idle connection") {
		t.Errorf("got %+v", s)
	}
}

// A request that is written as the server closes the connection is lost: that is said, and learnt.
func TestLostOnAnIdleConnection(t *testing.T) {
	t.Parallel()
	addr := serveConns(t, func(conn *net.TCPConn) {
		reader := bufio.NewReader(conn)
		_, _ = http.ReadRequest(reader)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		_, _ = http.ReadRequest(reader)
		_ = conn.Close()
	})
	h := newTestTask(t, Config{})
	conns := capture(h)
	if s := h.Run(t.Context(), callOf(`{"url":"http://%s"}`, addr), bound, granted); s.Err != nil {
		t.Fatal(s.Err)
	}
	gate := receive(t, conns)
	gate.mu.Lock()
	gate.last = gate.last.Add(-500 * time.Millisecond)
	gate.mu.Unlock()
	s := h.Run(t.Context(), callOf(`{"url":"http://%s"}`, addr), bound, granted)
	if !s.Wrote || s.Err == nil || !strings.Contains(s.Err.Error(), "no answer: the server closed the connection, which had been idle for 5") {
		t.Errorf("got %+v", s)
	}
	if b := gate.host.bound(0, 0, time.Now()); b <= 0 || b >= 500*time.Millisecond {
		t.Errorf("then the bound is %s", b)
	}
}
