// Package httptask is the built-in task http: it makes the request that call_data describes.
//
// It promises that an attempt writes at most one request, and none before its start is durable nor after its deadline.
// What it reports as not sent was not sent, and will not be: see gatedConn.
package httptask

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
	"reflect"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
)

// Config says what the built-in task http may do. Zero values mean the defaults.
type Config struct {
	// Hosts, when there are any, are the only ones that may be called: host or host:port.
	Hosts []string
	// PrivateHosts may be called although their addresses are private: host, host:port, an address
	// or a network such as 10.0.0.0/8.
	PrivateHosts []string
	AllowPrivate bool // all private addresses may be called
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

// Task makes requests. It is safe for concurrent use.
type Task struct {
	permissions
	cfg       Config
	transport *http.Transport
	drainFor  time.Duration // how long the rest of an answer is read so that its connection can be reused
}

// New checks cfg and makes a Task.
func New(cfg Config) (*Task, error) {
	cfg.Store = cmp.Or(cfg.Store, "errors")
	cfg.MaxIdlePerHost = cmp.Or(cfg.MaxIdlePerHost, 100)
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, 10*time.Second)
	p, err := newPermissions(cfg)
	if err != nil {
		return nil, err
	}
	return &Task{permissions: p, cfg: cfg, transport: newTransport(cfg, p.addresses), drainFor: 250 * time.Millisecond}, nil
}

// Equal reports whether both have the same configuration.
func (t *Task) Equal(other *Task) bool { return reflect.DeepEqual(t.cfg, other.cfg) }

// Close closes idle connections.
func (t *Task) Close() { t.transport.CloseIdleConnections() }

// Call is what a request is made from.
type Call struct {
	ID             int64
	Attempt        int
	IdempotencyKey string
	Data           json.RawMessage // call_data
}

// Grant is a durable start, on the monotonic clock.
type Grant struct {
	M0      time.Time             // read before the start was asked for
	SendBy  time.Time             // the request must have begun by then; zero: no bound
	Arrived func(acked time.Time) // told when a request without an answer was acknowledged; may be nil
}

// StartFunc asks for the start. An error means: do not send.
type StartFunc func(ctx context.Context) (Grant, error)

// Sending is what became of an attempt.
type Sending struct {
	readings
	Err    error           // nil: done; its text has no secrets
	Result json.RawMessage // the answer without secrets; nil: none, or not to be kept
	to     []hostPort      // where the answer came from; none: there is none
}

// Since turns the gate's readings of what it let through into offsets from m0.
func (r readings) Since(m0 time.Time) limit.Sending {
	ended := time.Since(m0)
	since := func(t time.Time) *time.Duration {
		if t.IsZero() {
			return nil
		}
		return new(t.Sub(m0))
	}
	// A write that never returned ended with its connection.
	return limit.Sending{Sent: cmp.Or(since(r.sent), &ended), Acked: since(r.acked), Answered: since(r.answered), Ended: ended}
}

// From reports whether the answer came from these hosts alone; none: from anybody.
func (s Sending) From(hosts []string) bool {
	set := hostSet(hosts)
	return len(set) == 0 || !slices.ContainsFunc(s.to, func(h hostPort) bool { return !h.in(set) })
}

var errStrayAnswer = errors.New("the connection held an answer before the request was sent")

// Run makes the request of one attempt. It connects, asks for the start once it has a connection,
// and sends at most one request, within timeout (or call_data's, if smaller) of the start. When it
// returns nothing more is written for the attempt, and a connection without an answer is reset.
func (t *Task) Run(ctx context.Context, call *Call, timeout time.Duration, start StartFunc) Sending {
	r, err := t.read(call)
	if err != nil {
		return Sending{Err: err}
	}
	if r.timeout > 0 {
		timeout = min(timeout, r.timeout)
	}
	return t.exchange(t.newExchange(ctx, start, timeout, time.Time{}), r)
}

// exchange sends a request and reads its answer.
func (t *Task) exchange(e *exchange, r *request) (s Sending) {
	defer e.stop()
	secrets := t.secrets.needles(r.request)
	defer func() { s.Err = secrets.redacted(s.Err) }() // an API's words can be among net/http's
	answer, err := t.send(e, r.request, r.private)
	if err != nil {
		return Sending{readings: e.pass.end(false), Err: fmt.Errorf("%s: %w", r.shown, e.cause(err))}
	}
	kept, whole := t.readResponse(answer, secrets, e.stop)
	s.readings = e.pass.end(whole)
	_ = answer.Body.Close()
	if e.pass.stray || answer.StatusCode == http.StatusRequestTimeout { // servers send that to idle connections, too
		s.answered = time.Time{}
	}
	if e.pass.stray {
		s.Err = fmt.Errorf("%s: %w", r.shown, errStrayAnswer)
		return s
	}
	// The status decides, even where the body was cut off: the API has done what was asked.
	s.to, s.Err = hostsOf(r.request), verdict(r.shown, answer, time.Now())
	if t.cfg.Store == "all" || t.cfg.Store == "errors" && s.Err != nil {
		s.Result, _ = json.Marshal(kept) // strings and numbers always can
	}
	return s
}

// exchange takes one attempt from connecting to its end. It belongs to the goroutine that sends, on
// which net/http calls gotConn too.
type exchange struct {
	pass    *pass
	start   StartFunc
	timeout time.Duration
	timer   *time.Timer // ends the connecting, then the request
	slow    error       // why it ends the connecting
	asked   bool        // for the start
	// mayReach says whether the request may go to an address: its connection may be that of one before it.
	mayReach func(netip.Addr) error
}

// newExchange begins to connect, for as long as the configuration says, and no longer than connectBy where that is set.
// After that the attempt ends; connecting goes on, for the next that wants a connection.
func (t *Task) newExchange(ctx context.Context, start StartFunc, timeout time.Duration, connectBy time.Time) *exchange {
	within := t.cfg.ConnectTimeout
	slow := fmt.Errorf("no connection in time (%s)", within)
	if left := time.Until(connectBy); !connectBy.IsZero() && left < within {
		within, slow = left, ErrTooLate
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(within, func() { cancel(slow) })
	return &exchange{pass: &pass{ctx: ctx, cancel: cancel}, start: start, timeout: timeout, timer: timer, slow: slow}
}

// send makes the request, and hands out its answer without the body. onlyPrivate: to a private address alone.
func (t *Task) send(e *exchange, r *http.Request, onlyPrivate bool) (*http.Response, error) {
	e.mayReach = func(ip netip.Addr) error { return t.mayReach(r, ip, onlyPrivate) }
	trace := &httptrace.ClientTrace{GotConn: e.gotConn, GotFirstResponseByte: e.pass.answering}
	return t.transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(e.pass.ctx, trace)))
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

// cause is why there was no answer. net/http's own word is a consequence of it, if there is any.
func (e *exchange) cause(err error) error { return cmp.Or(context.Cause(e.pass.ctx), err) }

// stop ends what is still under way, draining or connecting.
func (e *exchange) stop() {
	e.timer.Stop()
	e.pass.cancel(nil)
}
