package tasks

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"time"
)

// HTTPConfig says what the built-in task http may do. Zero values mean the defaults.
type HTTPConfig struct {
	// Hosts, when there are any, are the only ones that may be called: host or host:port.
	Hosts []string
	// PrivateHosts may be called although their addresses are private: host, host:port, an address
	// or a network such as 10.0.0.0/8.
	PrivateHosts []string
	AllowPrivate bool // private addresses may be called, all of them
	// Store is which answers the ledger keeps in result: all, errors (the default) or none.
	Store string
	// Secrets are what headers may name: {"secret": "STRIPE_KEY"}. No answer is kept with one.
	Secrets map[string]Secret
	// MaxIdlePerHost bounds the connections to one host, idle or not; default 100. A Worker sets it to
	// its Concurrency.
	MaxIdlePerHost int
	ConnectTimeout time.Duration // of DNS, TCP and TLS together; default 10 s
	TLS            *tls.Config   // default: the system's certificates
	Resolver       *net.Resolver // default: the system's
}

// httpTask makes the requests of the task http: at most one per attempt, see gatedConn. It is safe
// for concurrent use.
type httpTask struct {
	permissions
	cfg       HTTPConfig
	transport *http.Transport
	drainFor  time.Duration // of what is not kept of an answer
}

func newHTTPTask(cfg HTTPConfig) (*httpTask, error) {
	cfg.Store = cmp.Or(cfg.Store, "errors")
	cfg.MaxIdlePerHost = cmp.Or(cfg.MaxIdlePerHost, 100)
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, 10*time.Second)
	p, err := newPermissions(cfg)
	if err != nil {
		return nil, err
	}
	return &httpTask{
		permissions: p, cfg: cfg, transport: newTransport(cfg, p.addresses), drainFor: 250 * time.Millisecond,
	}, nil
}

// close closes idle connections.
func (h *httpTask) close() { h.transport.CloseIdleConnections() }

// grant is a durable start, on the monotonic clock.
type grant struct {
	m0     time.Time // read before the start was asked for
	sendBy time.Time // the request must have begun by then; zero: no bound
	// arrived is told when the request was acknowledged, if its answer takes long; nil: nobody asks.
	arrived func(acked time.Time)
}

// startFunc asks for the start. An error means: do not send.
type startFunc func(ctx context.Context) (grant, error)

// sending is what became of an attempt.
type sending struct {
	started  bool            // the start was granted
	wrote    bool            // false: nothing was written nor will be, whatever err says
	sent     time.Time       // the request's last write returned, or its connection was reset under it
	acked    time.Time       // the API's machine was seen to have all of it
	answered time.Time       // the answer began, and proves that the request had arrived
	result   json.RawMessage // the answer without secrets; nil: none, or not to be kept
	to       []hostPort      // where the answer came from; none: there is none
	err      error           // nil: done; its text has no secrets
}

var (
	errConnectTimeout = errors.New("no connection in time")
	errStrayAnswer    = errors.New("the connection held an answer before the request was sent")
	errInClear        = errors.New("a secret may not go over http to a public address: " +
		"use https, or name its host as http://… in http_task.secrets")
)

// run makes the request of one attempt. It connects, asks for the start once it has a connection,
// and sends at most one request, within timeout (or call_data's, if smaller) of the start. When it
// returns nothing more is written for the attempt, and a connection without an answer is reset.
func (h *httpTask) run(ctx context.Context, call *Call, timeout time.Duration, start startFunc) sending {
	c, err := h.read(call)
	if err != nil {
		return sending{err: err}
	}
	secrets := h.secrets.needles(c.request)
	s := h.exchange(ctx, c, secrets, timeout, start)
	s.err = secrets.redacted(s.err) // an API's words can be among net/http's
	return s
}

func (h *httpTask) exchange(ctx context.Context, c *httpCall, secrets needles, timeout time.Duration, start startFunc) sending {
	if c.timeout > 0 {
		timeout = min(timeout, c.timeout)
	}
	e := newExchange(ctx, start, timeout, h.cfg.ConnectTimeout)
	defer e.stop()
	r, err := h.send(e, c.request, c.private)
	if err != nil {
		s := e.end(false)
		s.err = fmt.Errorf("%s: %w", c.shown, e.cause(err))
		return s
	}
	a, whole := h.readAnswer(r, secrets, e.stop)
	s := e.end(whole)
	_ = r.Body.Close()
	if e.pass.stray {
		s.answered, s.err = time.Time{}, fmt.Errorf("%s: %w", c.shown, errStrayAnswer)
		return s
	}
	if r.StatusCode == http.StatusRequestTimeout { // servers send it to idle connections, too
		s.answered = time.Time{}
	}
	// The status decides, even where the body was cut off: the API has done what was asked.
	s.to, s.err = hostsOf(c.request), verdict(c.shown, r, time.Now())
	if h.cfg.Store == "all" || h.cfg.Store == "errors" && s.err != nil {
		s.result = a.json()
	}
	return s
}

// send makes the request, and hands out its answer without the body. onlyPrivate: to a private address alone.
func (h *httpTask) send(e *exchange, r *http.Request, onlyPrivate bool) (*http.Response, error) {
	e.mayReach = func(ip netip.Addr) error { return h.mayReach(r, ip, onlyPrivate) }
	trace := &httptrace.ClientTrace{GotConn: e.gotConn, GotFirstResponseByte: e.pass.answering}
	return h.transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(e.pass.ctx, trace)))
}

// exchange takes one attempt from connecting to its end. It belongs to the goroutine of run, on
// which net/http calls gotConn too.
type exchange struct {
	pass    *pass
	start   startFunc
	timeout time.Duration
	timer   *time.Timer // ends the connecting, then the request
	slow    error       // why it ends the connecting
	asked   bool
	started bool
	// mayReach says whether the request may go to an address: its connection may be that of one before it.
	mayReach func(netip.Addr) error
}

func newExchange(ctx context.Context, start startFunc, timeout, connect time.Duration) *exchange {
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
	conn, ok := info.Conn.(*gatedConn)
	if !ok || e.asked || e.pass.ctx.Err() != nil {
		e.pass.cancel(errNoMore) // the first cause stays
		return
	}
	if !e.timer.Stop() { // it is about to say so
		e.pass.cancel(e.slow)
		return
	}
	if err := e.mayReach(conn.raw.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()); err != nil {
		e.pass.cancel(err)
		return
	}
	e.asked = true
	g, err := e.start(e.pass.ctx)
	if err != nil {
		e.pass.cancel(err)
		return
	}
	e.started = true
	deadline := g.m0.Add(e.timeout)
	if g.sendBy.IsZero() || g.sendBy.After(deadline) { // the gate asks the clock, not a timer that may be late
		g.sendBy = deadline
	}
	e.timer = time.AfterFunc(time.Until(deadline), func() {
		e.pass.cancel(fmt.Errorf("timed out after %s", e.timeout))
	})
	e.pass.arrived = g.arrived
	if err := conn.admit(e.pass, g.sendBy); err != nil {
		e.pass.cancel(err)
	}
}

// cause is why there was no answer.
func (e *exchange) cause(err error) error {
	if cause := context.Cause(e.pass.ctx); cause != nil {
		return cause // net/http's is a consequence
	}
	return err
}

// end shuts the gate, then says what went through.
func (e *exchange) end(whole bool) sending {
	s := sending{started: e.started}
	s.wrote, s.sent, s.acked, s.answered = e.pass.end(whole)
	return s
}

// stop ends what is still under way, draining or connecting.
func (e *exchange) stop() {
	e.timer.Stop()
	e.pass.cancel(nil)
}
