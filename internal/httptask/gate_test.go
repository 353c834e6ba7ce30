package httptask

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http/httptrace"
	"strings"
	"syscall"
	"testing"
	"time"
)

const bareRequest = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// newPass is a pass whose end, if the gate decides it, is the cause of its context.
func newPass(t *testing.T) *pass {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	t.Cleanup(func() { cancel(nil) })
	arrivals := NewArrivals()
	return &pass{ctx: ctx, cancel: cancel, arrivals: arrivals, host: arrivals.of("api:443")}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick, late := time.NewTicker(time.Millisecond), time.After(bound)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-late:
			t.Errorf("still not so: %s", what)
			return
		}
	}
}

// gatedPair is a gated connection and its peer.
func gatedPair(t *testing.T) (*gatedConn, *net.TCPConn) {
	t.Helper()
	peers := make(chan *net.TCPConn, 1)
	addr := serveConns(t, func(c *net.TCPConn) { peers <- c })
	conn, err := newTestTask(t, Config{}).dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	gate := conn.(*gatedConn)
	t.Cleanup(func() { _ = gate.Close() })
	return gate, receive(t, peers)
}

// admitted is a gated connection with a pass that is admitted to it, and its peer.
func admitted(t *testing.T) (*gatedConn, *net.TCPConn, *pass) {
	t.Helper()
	gate, peer := gatedPair(t)
	p := newPass(t)
	if err := gate.admit(p, time.Time{}); err != nil {
		t.Fatal(err)
	}
	return gate, peer, p
}

// sendOne admits a pass, and writes its request.
func sendOne(t *testing.T, gate *gatedConn, p *pass) {
	t.Helper()
	if err := gate.admit(p, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(gate, bareRequest); err != nil {
		t.Fatal(err)
	}
}

// receiveAnswer has the peer answer, and reads that.
func receiveAnswer(t *testing.T, gate *gatedConn, peer *net.TCPConn) {
	t.Helper()
	if _, err := io.WriteString(peer, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := gate.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
}

//callq:guarantee 2
func TestGateLetsOneRequestThrough(t *testing.T) {
	t.Parallel()
	nothing := func(*gatedConn, *pass) {}
	for _, c := range []struct {
		name   string
		sendBy time.Time
		then   func(*gatedConn, *pass) // once it is admitted; nil: it is not
		write  string
		want   error
		broken bool // the refusal leaves the context alone, for there is no pass to end
	}{
		{name: "nobody admitted", want: errShut, broken: true},
		{name: "too late", sendBy: time.Now().Add(-time.Nanosecond), then: nothing, want: ErrTooLate},
		{name: "context ended before the write", then: func(_ *gatedConn, p *pass) { p.cancel(io.ErrUnexpectedEOF) }, want: io.ErrUnexpectedEOF},
		{name: "ended before the write", then: func(_ *gatedConn, p *pass) {
			if p.end(true).Wrote {
				t.Error("wrote before it was written")
			}
		}, want: errShut, broken: true},
		{name: "closed before the write", then: func(c *gatedConn, _ *pass) { _ = c.Close() }, want: ErrSpent},
		{name: "header in two writes", then: nothing, write: "GET / HTTP/1.1\r\nHost: x\r\n", want: errSplit},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			gate, peer := gatedPair(t)
			p := newPass(t)
			if c.then != nil {
				if err := gate.admit(p, c.sendBy); err != nil {
					t.Fatal(err)
				}
				c.then(gate, p)
			}
			if _, err := io.WriteString(gate, cmp.Or(c.write, bareRequest)); !errors.Is(err, c.want) {
				t.Errorf("Write = %v, want %v", err, c.want)
			}
			if !c.broken && !errors.Is(context.Cause(p.ctx), c.want) {
				t.Errorf("the attempt goes on: %v", context.Cause(p.ctx))
			}
			if got := p.end(false); got != (Seen{}) {
				t.Errorf("end = %+v, want nothing written", got)
			}
			_ = gate.Close()
			if got, _ := io.ReadAll(peer); len(got) > 0 {
				t.Errorf("the peer got %q", got)
			}
		})
	}
}

// A pass is admitted once, and no more once it has ended, whoever ended it.
func TestGateAdmitsOncePerPass(t *testing.T) {
	t.Parallel()
	first, _, p := admitted(t)
	second, _ := gatedPair(t)
	ended := newPass(t)
	if ended.end(false).Wrote {
		t.Error("wrote before it was written")
	}
	for _, again := range []struct {
		gate *gatedConn
		pass *pass
	}{{first, p}, {second, p}, {second, ended}} {
		if err := again.gate.admit(again.pass, time.Time{}); !errors.Is(err, errNoMore) {
			t.Errorf("admit = %v, want %v", err, errNoMore)
		}
	}
}

// What comes in before a request was written is not an answer to it, and a connection that the
// server has closed takes no request.
func TestSpentConnectionTakesNoRequest(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*net.TCPConn){
		"stray bytes": func(c *net.TCPConn) { _, _ = io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\n\r\n") },
		"closed":      func(c *net.TCPConn) { _ = c.Close() },
	} {
		for _, admitted := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				gate, peer := gatedPair(t)
				p := newPass(t)
				if admitted {
					if err := gate.admit(p, time.Time{}); err != nil {
						t.Fatal(err)
					}
				}
				spoil(peer)
				_, _ = gate.Read(make([]byte, 100))
				if !admitted {
					if err := gate.admit(p, time.Time{}); !errors.Is(err, ErrSpent) {
						t.Errorf("admit = %v, want %v", err, ErrSpent)
					}
				} else if !errors.Is(context.Cause(p.ctx), ErrSpent) {
					t.Errorf("the attempt goes on: %v", context.Cause(p.ctx))
				}
				if _, err := io.WriteString(gate, bareRequest); err == nil {
					t.Error("written to a spent connection")
				}
				if p.end(false).Wrote {
					t.Error("wrote")
				}
			})
		}
	}
}

// An answer of which nothing came in since the request was written is left over from before: the
// connection is out of step, and ends.
func TestLeftOverAnswerEndsTheConnection(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{true, false} {
		gate, peer := gatedPair(t)
		before, p := newPass(t), newPass(t)
		for _, each := range []*pass{before, p} {
			sendOne(t, gate, each)
			if each == before || own {
				_, _ = io.WriteString(peer, "HTTP/1.1 200 OK\r\n\r\n")
				_, _ = gate.Read(make([]byte, 100))
			}
		}
		p.answering()
		if p.stray == own {
			t.Errorf("stray %v of an answer of its own %v", p.stray, own)
		}
		if err := gate.admit(newPass(t), time.Time{}); (err == nil) != own {
			t.Errorf("own answer %v: the next is admitted: %v", own, err)
		}
	}
	newPass(t).answering() // of an attempt that was never admitted
}

// heldConn is a connection whose writes end when they are let.
type heldConn struct {
	net.Conn
	begun, let chan struct{}
}

func (c *heldConn) Write(b []byte) (int, error) {
	close(c.begun)
	<-c.let
	return len(b), nil
}

// An answer proves the request's arrival once the request has been written, and not before.
func TestAnswerBeforeTheWriteEnded(t *testing.T) {
	t.Parallel()
	for _, early := range []bool{true, false} {
		gate, peer, p := admitted(t)
		held := &heldConn{Conn: gate.Conn, begun: make(chan struct{}), let: make(chan struct{})}
		gate.Conn = held
		written := make(chan error, 1)
		go func() { _, err := io.WriteString(gate, bareRequest); written <- err }()
		receive(t, held.begun)
		if !early {
			close(held.let)
			_ = receive(t, written)
		}
		receiveAnswer(t, gate, peer)
		if early {
			close(held.let)
			_ = receive(t, written)
		}
		if got := p.end(true); !got.Wrote || got.sent.IsZero() || got.answered.Before(got.sent) || !p.heard {
			t.Errorf("early %v: end = %+v", early, got)
		}
	}
	gate, peer, p := admitted(t) // the Write does not return: the server answers what it has not read
	held := &heldConn{Conn: gate.Conn, begun: make(chan struct{}), let: make(chan struct{})}
	gate.Conn = held
	go func() { _, _ = io.WriteString(gate, bareRequest) }()
	receive(t, held.begun)
	receiveAnswer(t, gate, peer)
	got := p.end(true)
	close(held.let)
	if !got.Wrote || !got.answered.IsZero() {
		t.Errorf("end = %+v, though the Write had not returned", got)
	}
}

// Whatever a failing write did, it counts as written.
func TestFailingWriteCountsAsWritten(t *testing.T) {
	t.Parallel()
	gate, _, p := admitted(t)
	_ = gate.raw.CloseWrite()
	if _, err := io.WriteString(gate, bareRequest); err == nil {
		t.Fatal("the write did not fail")
	}
	if p.ctx.Err() == nil {
		t.Error("the attempt goes on: net/http would try again")
	}
	if got := p.end(false); !got.Wrote || got.sent.IsZero() {
		t.Errorf("end = %+v, want written", got)
	}
}

// end waits for the write that it cuts: afterwards the peer gets nothing more than it has got, and sees a reset.
func TestEndCutsAWriteUnderWay(t *testing.T) {
	t.Parallel()
	gate, peer, p := admitted(t)
	written := make(chan error, 1)
	go func() {
		_, err := gate.Write([]byte(bareRequest + strings.Repeat("x", 64<<20)))
		written <- err
	}()
	if _, err := io.ReadFull(peer, make([]byte, len(bareRequest))); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	if got := p.end(true); !got.Wrote || got.sent.Before(before) {
		t.Errorf("end = %+v, before the reset at %s", got, before)
	}
	if err := receive(t, written); err == nil {
		t.Error("the write went on to its end")
	}
	if _, err := io.Copy(io.Discard, peer); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the peer saw %v, want a reset", err)
	}
}

// The next attempt may be admitted before the one before it has ended, which must not shut the gate
// or reset the connection under it.
func TestEndLeavesTheNextPassAlone(t *testing.T) {
	t.Parallel()
	gate, peer := gatedPair(t)
	first, second := newPass(t), newPass(t)
	for _, p := range []*pass{first, second} {
		sendOne(t, gate, p)
	}
	if !first.end(false).Wrote {
		t.Error("the first was not written")
	}
	receiveAnswer(t, gate, peer)
	if got := second.end(true); !got.Wrote || got.answered.IsZero() {
		t.Errorf("end = %+v", got)
	}
}

func TestIdleConnectionIsClosedPolitely(t *testing.T) {
	t.Parallel()
	gate, peer := gatedPair(t)
	_ = gate.Close()
	if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the peer saw %v, want the end", err)
	}
}

// A connection that comes as the time for it ends says that, and not that there had been another.
func TestConnectionThatComesAsTimeEnds(t *testing.T) {
	t.Parallel()
	c := clientOf(t, newTestTask(t, Config{ConnectTimeout: 2 * time.Hour}), time.Hour)
	p, err := c.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.timer.Stop() // as if it had run out, and not yet said so
	time.AfterFunc(10*time.Millisecond, func() { p.cancel(ErrTooLate) })
	c.gotConn(httptrace.GotConnInfo{Conn: &gatedConn{}})
	if cause := context.Cause(p.ctx); !errors.Is(cause, ErrTooLate) {
		t.Errorf("it ended with %v, want %v", cause, ErrTooLate)
	}
}
