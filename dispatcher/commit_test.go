package dispatcher_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5/pgxpool"
)

// cutter loses the connection to Postgres at the next commit once it is armed, before Postgres has it or after.
type cutter struct {
	armed, after atomic.Bool
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

// runCommit is how pgx has Postgres run a COMMIT that it has prepared.
func runCommit() []byte {
	digest := sha256.Sum256([]byte(schema.OnPrimary + "COMMIT"))
	return fmt.Appendf(nil, "\x00stmtcache_%x\x00", digest[:24])
}

func (c *cutConn) Write(b []byte) (int, error) {
	if !bytes.Contains(b, runCommit()) || !c.cutter.armed.CompareAndSwap(true, false) {
		return c.Conn.Write(b)
	}
	c.cut.Store(true)
	if c.cutter.after.Load() {
		if _, err := c.Conn.Write(b); err != nil {
			return 0, err
		}
		if _, err := c.Conn.Read(make([]byte, 1<<10)); err != nil { // now it is committed
			return 0, err
		}
	}
	return len(b), c.Close()
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.cut.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	return c.Conn.Read(b)
}

// What a commit whose answer was lost has opened counts, and the sweeper hands it over; what it has not is claimed anew.
//
//callq:guarantee 3
func TestCommitWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, committed := range map[string]bool{"it was committed": true, "it was not": false} {
		parallel(t, name, func(t *testing.T, s *system) {
			cut := &cutter{}
			cut.after.Store(committed)
			pool := s.poolWith(func(c *pgxpool.Config) { c.ConnConfig.DialFunc = cut.dial })
			d := s.dispatcher(rules(sliding("api", 2, time.Hour)), func(c *dispatcher.Config) { c.Pool = pool })
			s.alive(2) // so that each message carries one
			s.turn(d)
			s.tick(d) // so that the next commits nothing but a claim
			s.calls("default", 3)
			cut.armed.Store(true)
			if err := d.Tick(t.Context()); err == nil || cut.armed.Load() {
				t.Fatalf("the tick ended with %v", err)
			}
			s.want(`SELECT count(*) = CASE WHEN $1::bool THEN 2 ELSE 0 END FROM callq.call_open`, committed)
			if got := s.pending("http"); len(got) != 0 {
				t.Errorf("handed over: %v", got)
			}
			s.exec(`UPDATE callq.call_open SET handed_at = handed_at - interval '6 s'`)
			s.tick(d)
			if got := s.pending("http"); len(got) != 2 {
				t.Errorf("after another tick: %v, want 2", got)
			}
			s.want(`SELECT count(*) = 2 AND bool_and(attempt = 1) FROM callq.call_open`)
			s.verify()
		})
	}
}
