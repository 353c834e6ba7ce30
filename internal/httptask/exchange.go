package httptask

import (
	"context"
	"fmt"
	"net"
	"net/http/httptrace"
	"net/netip"
	"time"
)

// exchange takes one attempt from connecting to its end. It belongs to the goroutine that sends, on
// which net/http calls gotConn too.
type exchange struct {
	pass    *pass
	start   StartFunc
	timeout time.Duration
	timer   *time.Timer // ends the connecting, then the request
	slow    error       // why it ends the connecting
	asked   bool
	started bool
	// mayReach says whether the request may go to an address: its connection may be that of one before it.
	mayReach func(netip.Addr) error
}

func newExchange(ctx context.Context, start StartFunc, timeout, connect time.Duration) *exchange {
	ctx, cancel := context.WithCancelCause(ctx)
	e := &exchange{pass: &pass{ctx: ctx, cancel: cancel}, start: start, timeout: timeout}
	e.connectWithin(connect, fmt.Errorf("%w (%s)", errConnectTimeout, connect))
	return e
}

// connectWithin ends the attempt, for this reason, if it has no connection by then. Connecting goes on, for the
// next that wants one.
func (e *exchange) connectWithin(d time.Duration, reason error) {
	e.slow = reason
	e.timer = time.AfterFunc(d, func() { e.pass.cancel(reason) })
}

// gotConn asks for the start and, when it is granted, lets the request onto the connection. net/http
// comes here again if it wants to send the request once more: then the gate stays shut.
func (e *exchange) gotConn(info httptrace.GotConnInfo) {
	if err := e.admit(info); err != nil {
		e.pass.cancel(err) // the first cause stays
	}
}

func (e *exchange) admit(info httptrace.GotConnInfo) error {
	conn, ok := info.Conn.(*gatedConn)
	if !ok || e.asked || e.pass.ctx.Err() != nil {
		return errNoMore
	}
	if !e.timer.Stop() { // it is about to say so
		return e.slow
	}
	if err := e.mayReach(conn.raw.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()); err != nil {
		return err
	}
	e.asked = true
	g, err := e.start(e.pass.ctx)
	if err != nil {
		return err
	}
	e.started = true
	deadline := g.M0.Add(e.timeout)
	if g.SendBy.IsZero() || g.SendBy.After(deadline) { // the gate asks the clock, not a timer that may be late
		g.SendBy = deadline
	}
	e.timer = time.AfterFunc(time.Until(deadline), func() {
		e.pass.cancel(fmt.Errorf("timed out after %s", e.timeout))
	})
	e.pass.arrived = g.Arrived
	return conn.admit(e.pass, g.SendBy)
}

// cause is why there was no answer.
func (e *exchange) cause(err error) error {
	if cause := context.Cause(e.pass.ctx); cause != nil {
		return cause // net/http's is a consequence
	}
	return err
}

// end shuts the gate, then says what went through.
func (e *exchange) end(whole bool) Sending {
	s := Sending{started: e.started}
	s.Wrote, s.sent, s.acked, s.answered = e.pass.end(whole)
	return s
}

// stop ends what is still under way, draining or connecting.
func (e *exchange) stop() {
	e.timer.Stop()
	e.pass.cancel(nil)
}
