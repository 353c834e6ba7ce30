package dispatcher_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/jackc/pgx/v5/pgxpool"
)

// cutter loses the connection to Postgres at the next commit once it is armed.
type cutter struct {
	armed atomic.Bool
	// atCommit has the bytes of the commit, and the connection that they were meant for; the client
	// takes them for sent, and reads nothing more.
	atCommit func(commit []byte, server net.Conn)
}

func (c *cutter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &cutConn{Conn: conn, cutter: c}, err
}

type cutConn struct {
	net.Conn
	cutter *cutter
	cut    atomic.Bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	switch {
	case c.cut.Load():
		return 0, net.ErrClosed
	case bytes.Equal(b, []byte("Q\x00\x00\x00\x0bcommit\x00")) && c.cutter.armed.CompareAndSwap(true, false):
		c.cut.Store(true)
		c.cutter.atCommit(bytes.Clone(b), c.Conn)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.cut.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	return c.Conn.Read(b)
}

func (c *cutConn) Close() error {
	if c.cut.Load() {
		return nil // atCommit closes what is behind
	}
	return c.Conn.Close()
}

// A claim whose commit was not answered finds out what became of it: what was committed is handed
// over at once, also where the commit is only now under way, and what was not, is claimed anew.
func TestCommitWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		committed bool
		atCommit  func(s *system) func(commit []byte, server net.Conn)
	}{
		{"it was committed", true, func(s *system) func([]byte, net.Conn) {
			return func(commit []byte, server net.Conn) {
				defer server.Close()
				if _, err := server.Write(commit); err != nil {
					s.t.Error(err)
				}
				if _, err := server.Read(make([]byte, 1<<10)); err != nil { // then it is
					s.t.Error(err)
				}
			}
		}},
		{"it was not", false, func(*system) func([]byte, net.Conn) {
			return func(_ []byte, server net.Conn) { _ = server.Close() }
		}},
		{"it is, once somebody waits for it", true, func(s *system) func([]byte, net.Conn) {
			return func(commit []byte, server net.Conn) {
				s.run(func(context.Context) error {
					defer server.Close()
					s.eventually(waitingSQL, 1)
					_, err := server.Write(commit)
					return err
				})
			}
		}},
	} {
		parallel(t, c.name, func(t *testing.T, s *system) {
			cut := &cutter{atCommit: c.atCommit(s)}
			config := s.pool.Config().Copy()
			config.ConnConfig.DialFunc = cut.dial
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			d, err := dispatcher.New(dispatcher.Config{
				Pool: pool, Redis: s.redis, Rules: rules(sliding("api", 2, time.Hour)), Logger: s.log,
			})
			if err != nil {
				t.Fatal(err)
			}
			s.alive(1) // so that each message carries one
			if err := d.Patient().OnceUnfrozen(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := d.Tick(t.Context()); err != nil { // so that the next commits nothing but a claim
				t.Fatal(err)
			}
			s.calls("default", 3)
			cut.armed.Store(true)
			err = d.Tick(t.Context())
			if cut.armed.Load() {
				t.Fatal("nothing was committed")
			}
			if c.committed && err != nil || !c.committed && (err == nil || !strings.Contains(err.Error(), "it did not take place")) {
				t.Errorf("the tick ended with %v", err)
			}
			want := 0
			if c.committed {
				want = 2
			}
			if got := s.pending("http"); len(got) != want {
				t.Errorf("handed over: %v, want %d", got, want)
			}
			if err := d.Tick(t.Context()); err != nil {
				t.Error(err)
			}
			if got := s.pending("http"); len(got) != 2 {
				t.Errorf("after another tick: %v, want 2", got)
			}
			s.want(`SELECT count(*) = 2 AND bool_and(attempt = 1 AND resend = 0) FROM call_open`)
			s.verify()
		})
	}
}
