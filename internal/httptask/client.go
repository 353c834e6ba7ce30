package httptask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/callq/callq/internal/outcome"
)

// Client sends an attempt's request, of the task http or of a custom handler. For all requests of the attempt together it
// promises that at most one is written, none past SendBy or once End has returned, and that End tells what happened.
type Client struct {
	HTTP *http.Client // what a custom handler is given

	task    *Task
	call    *Call
	ctx     context.Context // the handler's
	start   StartFunc
	grant   Grant // of a custom handler, which was started before
	timeout time.Duration

	mu     sync.Mutex
	using  *exchange // the request under way, until its answer is read or given up; nil: none
	over   bool      // the attempt has ended
	proven bool      // an answer under way proves that its request had arrived
	seen   Seen
}

// Seen is what became of the requests of an attempt's client, as the gate saw it.
type Seen struct {
	Used     bool // there was one
	readings      // of the one that was written, if any
}

var (
	errSecondRequest = errors.New("the attempt has sent its one request: no second one goes through its call's Client")
	errAtOnce        = errors.New("another request of the attempt is under way, and only one goes through its call's Client")
	errNoAnswer      = errors.New("what came is no answer to the request: it was there before, or changes the protocol")
	errHandlerEnded  = errors.New("the attempt's handler has ended: nothing goes through its call's Client any more")
)

// NewClient makes the client of a custom handler's attempt, which was started so. ctx is the handler's.
func (t *Task) NewClient(ctx context.Context, call *Call, g Grant, timeout time.Duration) *Client {
	c := &Client{task: t, call: call, ctx: ctx, grant: g, timeout: timeout}
	c.start = func(context.Context) (Grant, error) { return g, nil }
	c.HTTP = &http.Client{
		Transport:     c,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// RoundTrip makes the attempt's request, or refuses to.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	request, err := c.prepare(r)
	if err != nil {
		closeBody(r)
		return nil, outcome.Permanent(err)
	}
	return c.try(request, false)
}

// try makes the request, whose answer's body is to be closed. onlyPrivate: to a private address alone.
func (c *Client) try(request *http.Request, onlyPrivate bool) (*http.Response, error) {
	e, err := c.begin(request, onlyPrivate)
	if err != nil {
		closeBody(request)
		return nil, err
	}
	trace := &httptrace.ClientTrace{GotConn: e.gotConn, GotFirstResponseByte: e.answering}
	answer, err := c.task.transport.RoundTrip(request.WithContext(httptrace.WithClientTrace(e.ctx, trace)))
	if err == nil && e.stray {
		_ = answer.Body.Close()
		err = errNoAnswer
	}
	if err == nil && answer.StatusCode == http.StatusSwitchingProtocols { // its body may never end
		_ = answer.Body.Close()
		err = outcome.Permanent(errors.New(answer.Status))
	}
	if err != nil {
		err = cmp.Or(context.Cause(e.ctx), err) // net/http's is a consequence
		return nil, c.failed(err, e.done(false))
	}
	c.mu.Lock()
	c.proven = answer.StatusCode != http.StatusRequestTimeout // servers send it to idle connections, too
	c.mu.Unlock()
	if answer.Body == http.NoBody {
		e.done(true)
	} else {
		answer.Body = &answerBody{ReadCloser: answer.Body, exchange: e}
	}
	return answer, nil
}

// prepare makes the request that is written of r, which is not changed. Without GetBody net/http has no way to
// send it again.
func (c *Client) prepare(r *http.Request) (*http.Request, error) {
	switch {
	case r.Method == http.MethodConnect:
		return nil, errors.New("CONNECT is not possible")
	case r.Host != "" && r.Host != r.URL.Host: // behind a CDN or a proxy it decides whom a request reaches
		return nil, errors.New("the request's Host must be that of its URL")
	}
	if err := c.task.mayCall(r.URL); err != nil {
		return nil, err
	}
	request := r.Clone(r.Context())
	request.GetBody = nil
	for name := range request.Header {
		if frames(name) {
			return nil, fmt.Errorf("header %q: %w", name, errFrames)
		}
	}
	setDefaults(request.Header, c.call)
	return request, nil
}

// begin has the request be the one of the attempt, unless there is or was another.
func (c *Client) begin(request *http.Request, onlyPrivate bool) (*exchange, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over:
		return nil, errHandlerEnded
	case c.using != nil:
		return nil, errAtOnce
	case c.seen.Wrote:
		return nil, errSecondRequest
	}
	c.seen.Used = true
	c.using = c.newExchange(request, onlyPrivate)
	return c.using, nil
}

// finish ends a request, whose answer was read to its end or not; wrote says whether anything of it was
// written. Where the handler's end came first, that has said all there is to say.
func (c *Client) finish(e *exchange, whole bool) (wrote bool) {
	got := e.end(whole)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.using == e {
		if !c.proven {
			got.answered = time.Time{}
		}
		if got.Wrote {
			c.seen.readings = got
		}
		c.using, c.proven = nil, false
	}
	return got.Wrote
}

// failed is what a handler gets instead of an answer. Where it has promised to send by no other means, what the
// gate refused says that it was not sent, and so ends a handler that returns it.
func (c *Client) failed(err error, wrote bool) error {
	if wrote || c.grant.SendBy.IsZero() || !Unsent(err) {
		return err
	}
	return outcome.NotSent(err)
}

// Unsent reports whether the gate refused a request that may well be sent if it is tried again.
func Unsent(err error) bool { return errors.Is(err, ErrTooLate) || errors.Is(err, ErrSpent) }

// End takes the client back, and with it whatever is under way: when it returns nothing more is written, and a
// request without its whole answer has had its connection reset.
func (c *Client) End() Seen {
	c.mu.Lock()
	c.over = true
	e := c.using
	c.mu.Unlock()
	if e != nil {
		e.cancel(errHandlerEnded)
		c.finish(e, false)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// exchange takes a request from connecting to its end. But for its pass it belongs to the goroutine that sends, on which
// net/http calls gotConn too, and then to the one that reads the answer.
type exchange struct {
	*pass
	client      *Client
	request     *http.Request
	onlyPrivate bool
	letGo       func() bool // of the handler's context
	timer       *time.Timer // ends the connecting, then the request
	slow        error       // why it ends the connecting
	asked       bool        // for the start
}

// newExchange begins to connect. After ConnectTimeout, or once the request may not be sent any more, it ends; connecting
// goes on, for the next that wants a connection.
func (c *Client) newExchange(request *http.Request, onlyPrivate bool) *exchange {
	within := c.task.cfg.ConnectTimeout
	slow := fmt.Errorf("no connection in time (%s)", within)
	if left := time.Until(c.grant.SendBy); !c.grant.SendBy.IsZero() && left < within {
		within, slow = left, ErrTooLate
	}
	ctx, cancel := context.WithCancelCause(request.Context())
	return &exchange{
		pass: &pass{ctx: ctx, cancel: cancel}, client: c, request: request, onlyPrivate: onlyPrivate,
		letGo: context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) }),
		timer: time.AfterFunc(within, func() { cancel(slow) }), slow: slow,
	}
}

// gotConn asks for the start and, when it is granted, lets the request onto the connection. net/http
// comes here again if it wants to send the request once more: then the gate stays shut.
func (e *exchange) gotConn(info httptrace.GotConnInfo) {
	if err := e.admit(info); err != nil {
		e.cancel(err) // the first cause stays
	}
}

func (e *exchange) admit(info httptrace.GotConnInfo) error {
	conn, ok := info.Conn.(*gatedConn)
	if !ok || e.asked || e.ctx.Err() != nil {
		return errNoMore
	}
	if !e.timer.Stop() { // it is about to say so
		return e.slow
	}
	// The connection may be that of a request before it.
	ip := conn.raw.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
	if err := e.client.task.mayReach(e.request.URL, ip, e.onlyPrivate); err != nil {
		return err
	}
	e.asked = true
	g, err := e.client.start(e.ctx)
	if err != nil {
		return err
	}
	timeout := e.client.timeout
	deadline := g.M0.Add(timeout)
	if g.SendBy.IsZero() || g.SendBy.After(deadline) { // the gate asks the clock, not a timer that may be late
		g.SendBy = deadline
	}
	e.timer = time.AfterFunc(time.Until(deadline), func() { e.cancel(fmt.Errorf("timed out after %s", timeout)) })
	e.arrived = g.Arrived
	return conn.admit(e.pass, g.SendBy)
}

// done ends the request, whose answer was read to its end or not.
func (e *exchange) done(whole bool) (wrote bool) {
	defer e.stop()
	defer e.letGo()
	return e.client.finish(e, whole)
}

// stop ends what is still under way, draining or connecting.
func (e *exchange) stop() {
	e.timer.Stop()
	e.cancel(nil)
}

// answerBody is an answer's body: once it is read to its end, or closed, the request is over.
type answerBody struct {
	io.ReadCloser
	exchange *exchange
	once     sync.Once
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.once.Do(func() { b.exchange.done(errors.Is(err, io.EOF)) })
	}
	return n, err
}

const maxDrain = 256 << 10 // read of what nobody wants of an answer

// Close reads a little on first: many do not read to the end what they want no more of, and the connection can be
// used again.
func (b *answerBody) Close() error {
	b.once.Do(func() {
		timer := time.AfterFunc(b.exchange.client.task.drainFor, b.exchange.stop)
		defer timer.Stop()
		_, err := io.CopyN(io.Discard, b.ReadCloser, maxDrain)
		b.exchange.done(errors.Is(err, io.EOF))
	})
	return b.ReadCloser.Close()
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
