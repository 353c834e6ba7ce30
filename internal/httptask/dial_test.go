package httptask

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What dialing costs where addresses fail, or are silent.
func TestRaceOfAddresses(t *testing.T) {
	t.Parallel()
	errRefused, errSilent := errors.New("refused"), errors.New("silent")
	for _, c := range []struct {
		name  string
		addrs string // what each does, and after how many ms
		took  time.Duration
		won   int // -1: none
		err   error
	}{
		{name: "one", addrs: "answers", won: 0},
		{name: "the first", addrs: "answers silent", won: 0},
		{name: "the first is slow", addrs: "slow silent", took: 400 * time.Millisecond, won: 0},
		{name: "the first is silent", addrs: "silent answers", took: 300 * time.Millisecond, won: 1},
		{name: "two are silent", addrs: "silent silent answers", took: 600 * time.Millisecond, won: 2},
		{name: "the first refuses", addrs: "refuses answers", won: 1},
		{name: "one is silent, one refuses", addrs: "silent refuses answers", took: 300 * time.Millisecond, won: 2},
		{name: "all refuse", addrs: "refuses refuses", won: -1, err: errRefused},
		{name: "all are silent", addrs: "silent silent", took: 10 * time.Second, won: -1, err: errSilent},
		{name: "the first one's error", addrs: "silent refuses", took: 10 * time.Second, won: -1, err: errSilent},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				begun := time.Now()
				addrs := strings.Fields(c.addrs)
				for i := range addrs {
					addrs[i] += "-" + string(rune('0'+i))
				}
				conn, err := race(ctx, addrs, func(ctx context.Context, addr string) (dialled, error) {
					what, i, _ := strings.Cut(addr, "-")
					switch what {
					case "silent":
						<-ctx.Done()
						return dialled{}, errSilent
					case "refuses":
						return dialled{}, errRefused
					case "slow":
						time.Sleep(400 * time.Millisecond)
					}
					return dialled{rtt: time.Duration(i[0] - '0')}, nil
				})
				if took := time.Since(begun); took != c.took || !errors.Is(err, c.err) || err == nil && int(conn.rtt) != c.won {
					t.Errorf("%d after %s, %v; want %d after %s, %v", conn.rtt, took, err, c.won, c.took, c.err)
				}
			})
		})
	}
}

// A second connection that comes too late is closed.
func TestRaceClosesWhatIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		_, err := race(t.Context(), []string{"slow", "quick"}, func(_ context.Context, addr string) (dialled, error) {
			if addr == "slow" {
				time.Sleep(time.Second)
				return dialled{Conn: ours}, nil
			}
			return dialled{}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("it saw %v", err)
		}
	})
}

// Addresses are tried in the resolver's order, the families in turns.
func TestOrderOfAddresses(t *testing.T) {
	t.Parallel()
	zone := &names{sets: map[string][][]netip.Addr{"api.test": {addrs("192.0.2.1 192.0.2.2 192.0.2.3 2001:db8::1")}}}
	h := newTestTask(t, Config{Resolver: zone.resolver(t)})
	got, err := h.resolve(t.Context(), "api.test:443")
	if err != nil || len(got) != 4 || got[0] != "[2001:db8::1]:443" && got[1] != "[2001:db8::1]:443" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, literal := range []string{"192.0.2.1:80", "[::1]:80", "[fe80::1%lo]:80"} {
		if got, err := h.resolve(t.Context(), literal); err != nil || !slices.Equal(got, []string{literal}) {
			t.Errorf("%s: %q, %v", literal, got, err)
		}
	}
}

// Who speaks HTTP/2 alone is told apart at once, whether it says so in TLS, before the request or after it.
func TestOnlyHTTP2(t *testing.T) {
	t.Parallel()
	const settings = "\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64\x00\x04\x00\x00\xff\xff\x00\x05\x00\x00\x40\x00"
	certificates := serveHTTP(t, true, nil)
	serve := map[string]func(*net.TCPConn){
		"http://at once": func(conn *net.TCPConn) { _, _ = io.WriteString(conn, settings) },
		"http://answered": func(conn *net.TCPConn) {
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, settings)
		},
		"https://in TLS": func(conn *net.TCPConn) {
			config := certificates.TLS.Clone()
			config.NextProtos = []string{"h3"} // Go's server of h2 speaks HTTP/1.1, too
			_ = tls.Server(conn, config).HandshakeContext(t.Context())
			_ = conn.Close()
		},
	}
	for name, serve := range serve {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scheme, when, _ := strings.Cut(name, "://")
			addr := serveConns(t, serve)
			h := newTestTask(t, Config{TLS: certificatesOf(certificates)})
			s := h.Run(t.Context(), callOf(`{"url":"%s://%s"}`, scheme, addr), bound, func(ctx context.Context) (Grant, error) {
				if when == "at once" {
					time.Sleep(50 * time.Millisecond) // it comes while the start is asked for, or is an answer
				}
				return granted(ctx)
			})
			if !isPermanent(s.Err) || !strings.Contains(s.Err.Error(), "the server speaks only HTTP/2, and callq HTTP/1.1") {
				t.Errorf("got %+v", s)
			}
			if when == "in TLS" && s.Wrote {
				t.Error("wrote")
			}
		})
	}
}
