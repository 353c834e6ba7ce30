package tasks

import (
	"errors"
	"net"
	"sync"
	"time"
)

var (
	errGateClosed = errors.New("the gate is closed: no attempt may write on this connection")
	errTooLate    = errors.New("the request was not written within send_within of asking for the start; raise the limit's send_within if this is frequent")
)

// gatedConn is a connection on which nothing can be written but the one request of the attempt
// that holds its pass. The gate stands above TLS: what it sees is the request itself. net/http
// would otherwise write a request again on another connection, or write one that had been given
// up; errors cannot tell whether it did, the gate can.
type gatedConn struct {
	net.Conn
	raw *net.TCPConn // what Conn runs on

	mu   sync.Mutex
	pass *pass // nil: closed
}

// pass is one attempt's leave to write on a connection, and what became of it. Guarded by the
// gate's mutex until disarm has returned.
type pass struct {
	sendBy   time.Time // the first write may not begin later; zero: whenever
	wrote    bool      // something was, or may have been, written
	late     bool      // the first write came after sendBy and was refused
	sent     time.Time // the last write before the answer returned
	answered time.Time // the first byte after sent arrived
	unproven bool      // a byte arrived before the request was written: not an answer to it
}

// arm opens the gate for one attempt.
func (c *gatedConn) arm(sendBy time.Time) *pass {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pass = &pass{sendBy: sendBy}
	return c.pass
}

// disarm closes the gate if it is still p's. From then on nothing more of p's attempt can be
// written, and p.wrote is final.
func (c *gatedConn) disarm(p *pass) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pass == p {
		c.pass = nil
	}
}

// Write lets the request through, or nothing.
func (c *gatedConn) Write(b []byte) (int, error) {
	p, err := c.enter()
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pass == p && p.answered.IsZero() {
		p.sent = time.Now()
	}
	return n, err
}

func (c *gatedConn) enter() (*pass, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pass
	switch {
	case p == nil:
		return nil, errGateClosed
	case !p.wrote && !p.sendBy.IsZero() && time.Now().After(p.sendBy):
		p.late = true
		c.pass = nil
		return nil, errTooLate
	}
	p.wrote = true
	return p, nil
}

// Read notes when the answer began.
func (c *gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		if p := c.pass; p != nil && p.answered.IsZero() {
			if p.sent.IsZero() {
				p.unproven = true
			} else {
				p.answered = time.Now()
			}
		}
	}
	return n, err
}

// reset ends the connection so that the kernel sends nothing more of what was written: its linger
// time is 0. Closing a TLS connection the usual way would write first.
func (c *gatedConn) reset() { _ = c.raw.Close() }
