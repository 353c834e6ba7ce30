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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/callq/callq/internal/outcome"
)

// Client makes the one request of an attempt, of the task http or of a custom handler. Whatever is asked of it, it promises
// that at most one request is written, none past SendBy or once End has returned, and that End tells what happened.
//
// But for its pass, its proof and its end it belongs to the goroutine that sends, on which net/http calls gotConn too,
// and then to the one that reads the answer.
type Client struct {
	HTTP *http.Client // what a custom handler is given

	task    *Task
	call    *Call
	ctx     context.Context // of a custom handler
	start   StartFunc
	grant   Grant // of a custom handler, which was started before
	timeout time.Duration

	request     *http.Request
	onlyPrivate bool        // it may go to private addresses alone
	timer       *time.Timer // ends the connecting, then the request
	asked       bool        // for the start
	passed      error       // why a connection was passed over; nil: none was

	mu     sync.Mutex
	pass   *pass        // of the request; nil: there was none
	over   bool         // the attempt has ended
	tell   *time.Timer  // tells Grant.Arrived of an answer while the handler goes on
	status atomic.Int64 // of its answer; 0: there was none
}

var (
	errSecondRequest = errors.New("the attempt has made its one request: no second one goes through its call's Client")
	errNoAnswer      = errors.New("what came is no answer to the request: it was there before")
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
	p, err := c.begin(request.Context())
	if err != nil {
		closeBody(request)
		return nil, err
	}
	c.request, c.onlyPrivate = request, onlyPrivate
	p.arrivals, p.host = c.task.arrivals, c.task.arrivals.of(hostOf(request.URL).String())
	trace := &httptrace.ClientTrace{GotConn: c.gotConn, GotFirstResponseByte: p.answering}
	request = request.WithContext(httptrace.WithClientTrace(p.ctx, trace))
	if again := request.GetBody; again != nil {
		request.GetBody = func() (io.ReadCloser, error) { // after a connection that was passed over
			if c.asked {
				return nil, errNoMore
			}
			return again()
		}
	}
	answer, err := c.task.transport.RoundTrip(request)
	if err == nil && p.stray {
		_ = answer.Body.Close()
		err = errNoAnswer
	}
	if err != nil {
		err = cmp.Or(context.Cause(p.ctx), c.passedOver(request), err) // net/http's is a consequence
		status := p.status()
		if status == 0 {
			wrote := c.done(false)
			if !wrote && Unsent(err) && !c.grant.SendBy.IsZero() { // the handler has promised to send by no other means
				err = outcome.NotSent(err)
			}
			return nil, err
		}
		answer = statusAlone(status, request, err)
	}
	if err == nil {
		p.conn.announce(answer.Header)
	}
	c.status.Store(int64(answer.StatusCode))
	if fromProgram(answer.StatusCode) {
		p.proves()
	}
	if err != nil {
		c.done(false)
		return answer, nil
	}
	if answer.StatusCode == http.StatusSwitchingProtocols { // its body may never end
		_ = answer.Body.Close()
		answer.Body = http.NoBody
	}
	if answer.Body == http.NoBody {
		c.done(true)
	} else {
		answer.Body = &answerBody{ReadCloser: answer.Body, client: c}
	}
	return answer, nil
}

// statusAlone is an answer of which no more than its status could be read. The API has done what the status means, so nothing is
// sent again for the rest: that is the error of reading the body.
func statusAlone(status int, r *http.Request, err error) *http.Response {
	return &http.Response{
		Status: strings.TrimSpace(fmt.Sprint(status, " ", http.StatusText(status))), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, ContentLength: -1, Request: r,
		Body: unreadable{&headersError{err}},
	}
}

// unreadable is the body of such an answer.
type unreadable struct{ err error }

func (u unreadable) Read([]byte) (int, error) { return 0, u.err }
func (unreadable) Close() error               { return nil }

// headersError means that an answer's headers could not be read.
type headersError struct{ error }

func (e *headersError) Error() string {
	return "the answer's headers could not be read: " + e.error.Error()
}
func (e *headersError) Unwrap() error { return e.error }

// passedOver is why a connection was passed over, where that ended the attempt: net/http takes no other one for a body that it
// cannot read again.
func (c *Client) passedOver(r *http.Request) error {
	if c.asked || r.Body == nil || r.GetBody != nil {
		return nil
	}
	return c.passed
}

// prepare makes the request that is written of r, which is not changed.
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
	ctx, cancel := context.WithCancelCause(r.Context())
	context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) }) // at the latest when the attempt has ended
	request := r.Clone(ctx)
	for name := range request.Header {
		if frames(name) {
			return nil, fmt.Errorf("header %q: %w", name, errFrames)
		}
	}
	setDefaults(request.Header, c.call)
	return request, nil
}

// begin begins to connect, for a request with this context, unless the attempt has made one. After ConnectTimeout, or
// once the request may not be sent any more, it ends; connecting goes on, for the next that wants a connection.
func (c *Client) begin(ctx context.Context) (*pass, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over:
		return nil, errHandlerEnded
	case c.pass != nil:
		return nil, errSecondRequest
	}
	within := c.task.cfg.ConnectTimeout
	slow := fmt.Errorf("no connection in time (%s)", within)
	if left := time.Until(c.grant.SendBy); !c.grant.SendBy.IsZero() && left < within {
		within, slow = left, ErrTooLate
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c.pass = &pass{ctx: ctx, cancel: cancel}
	c.timer = time.AfterFunc(within, func() { cancel(slow) })
	return c.pass, nil
}

// gotConn asks for the start and, when it is granted, lets the request onto the connection. net/http
// comes here again if it wants to send the request once more: then the gate stays shut.
func (c *Client) gotConn(info httptrace.GotConnInfo) {
	if err := c.admit(info); err != nil {
		c.pass.cancel(err) // the first cause stays
	}
}

func (c *Client) admit(info httptrace.GotConnInfo) error {
	conn, ok := info.Conn.(*gatedConn)
	if !ok {
		return errNoMore
	}
	spent := conn.reserve(info.Reused) // first: from here on nothing is written under the leave of the request before
	if c.asked || c.pass.ctx.Err() != nil {
		return errNoMore
	}
	// What takes no request any more net/http replaces, for nothing is written to it.
	if spent != nil {
		_ = conn.Close()
		if !info.Reused || errors.Is(spent, errHTTP2Only) {
			return spent
		}
		c.passed = spent
		return nil
	}
	if !c.timer.Stop() { // it is about to say why
		<-c.pass.ctx.Done()
		return context.Cause(c.pass.ctx)
	}
	// The connection may be that of a request before it.
	ip := conn.raw.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
	if err := c.task.mayReach(c.request.URL, ip, c.onlyPrivate); err != nil {
		return err
	}
	c.asked = true
	g, err := c.start(c.pass.ctx)
	if err != nil {
		return err
	}
	deadline := g.M0.Add(c.timeout)
	if g.SendBy.IsZero() || g.SendBy.After(deadline) { // the gate asks the clock, not a timer that may be late
		g.SendBy = deadline
	}
	c.timer = time.AfterFunc(time.Until(deadline), func() { c.pass.cancel(fmt.Errorf("timed out after %s", c.timeout)) })
	c.pass.arrived = g.Arrived
	return conn.admit(c.pass, g.SendBy)
}

// done ends the request, whose answer was read to its end or not; wrote reports whether anything of it was written.
func (c *Client) done(whole bool) (wrote bool) {
	defer c.stop()
	seen := c.pass.end(whole)
	if c.HTTP != nil && !seen.later.IsZero() && c.grant.Arrived != nil { // the handler may take its time
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.over {
			return seen.Wrote
		}
		c.tell = time.AfterFunc(tellAfter, func() { c.grant.Arrived(seen.acked, seen.later) })
	}
	return seen.Wrote
}

// fromProgram reports whether an answer of this status comes from the API's program, which reads requests in their order. What a
// gateway answers by itself, or a server to an idle connection, tells nothing of the requests that stand behind it.
func fromProgram(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	}
	return true
}

// proof reports whether an answer of this status proves that its own request has arrived, or never will. A gateway's timeout
// says that the API's program has not answered; servers send 408 to idle connections, too.
func proof(status int) bool {
	return status != 0 && status != http.StatusRequestTimeout && status != http.StatusGatewayTimeout
}

// stop ends what is still under way, draining or connecting.
func (c *Client) stop() {
	c.timer.Stop()
	c.pass.cancel(nil)
}

// Unsent reports whether the gate refused a request that may well be sent if it is tried again.
func Unsent(err error) bool { return errors.Is(err, ErrTooLate) || errors.Is(err, ErrSpent) }

// End takes the client back, and with it what is under way: when it returns nothing more is written, and a
// request without its whole answer has had its connection reset.
func (c *Client) End() Seen {
	c.mu.Lock()
	c.over = true
	p := c.pass
	if c.tell != nil {
		c.tell.Stop()
	}
	c.mu.Unlock()
	if p == nil {
		return Seen{}
	}
	p.cancel(errHandlerEnded)
	seen := p.end(false)
	seen.Used, seen.Code = true, int(c.status.Load())
	if !proof(seen.Code) {
		seen.answered = time.Time{}
	}
	return seen
}

// Host is where the client's request went, once End has returned that it was written.
func (c *Client) Host() string { return c.pass.host.name }

// answerBody is an answer's body: once it is read to its end, or closed, the request is over.
type answerBody struct {
	io.ReadCloser
	client *Client
	once   sync.Once
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.once.Do(func() { b.client.done(errors.Is(err, io.EOF)) })
	}
	return n, err
}

const maxDrain = 256 << 10 // read of the rest of an answer

// Close reads a little on first: many do not read to the end what they want no more of, and the connection can be
// used again.
func (b *answerBody) Close() error {
	b.once.Do(func() {
		timer := time.AfterFunc(b.client.task.drainFor, b.client.stop)
		defer timer.Stop()
		_, err := io.CopyN(io.Discard, b.ReadCloser, maxDrain)
		b.client.done(errors.Is(err, io.EOF))
	})
	return b.ReadCloser.Close()
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
