package httptask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/callq/callq/internal/outcome"
)

// Client gives a custom handler what the task http has: the gate. For all requests of the attempt together it
// promises that at most one is written, none past SendBy or once End has returned, and that End tells what happened.
type Client struct {
	HTTP *http.Client // what the handler is given

	task    *Task
	call    *Call
	ctx     context.Context // the handler's
	grant   Grant
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
	Late     bool // the gate refused one: it came after send_within
	readings      // of the one that was written, if any
}

var (
	errSecondRequest = errors.New("the attempt has sent its one request: no second one goes through its call's Client")
	errAtOnce        = errors.New("another request of the attempt is under way, and only one goes through its call's Client")
	errHandlerEnded  = errors.New("the attempt's handler has ended: nothing goes through its call's Client any more")
)

// NewClient makes the client of an attempt that was started so. ctx is its handler's.
func (t *Task) NewClient(ctx context.Context, call *Call, g Grant, timeout time.Duration) *Client {
	c := &Client{task: t, call: call, ctx: ctx, grant: g, timeout: timeout}
	c.HTTP = &http.Client{
		Transport:     c,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// RoundTrip makes the attempt's request, or refuses to. A connection that turns out to be closed before anything was
// written is no failure: it takes another, up to three times.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	request, err := c.prepare(r)
	if err != nil {
		closeBody(r)
		return nil, outcome.Permanent(err)
	}
	for retries := 3; ; retries-- {
		answer, err := c.try(request)
		if !errors.Is(err, ErrSpent) || retries == 0 || !rewind(request, r) {
			return answer, err
		}
	}
}

// rewind makes a request ready to be tried again, if it can be.
func rewind(request, r *http.Request) bool {
	if r.Body == nil || r.Body == http.NoBody {
		return true
	}
	if r.GetBody == nil {
		return false
	}
	body, err := r.GetBody()
	request.Body = body
	return err == nil
}

func (c *Client) try(request *http.Request) (*http.Response, error) {
	e, err := c.begin(request.Context())
	if err != nil {
		closeBody(request)
		return nil, err
	}
	letGo := context.AfterFunc(c.ctx, func() { e.pass.cancel(context.Cause(c.ctx)) })
	done := func(whole bool) bool {
		wrote := c.finish(e, whole)
		letGo()
		e.stop()
		return wrote
	}
	answer, err := c.task.send(e, request, false)
	if err == nil && e.pass.stray {
		_ = answer.Body.Close()
		err = errStrayAnswer
	}
	if err != nil {
		err = e.cause(err)
		return nil, c.failed(err, done(false))
	}
	c.mu.Lock()
	c.proven = answer.StatusCode != http.StatusRequestTimeout // servers send it to idle connections, too
	c.mu.Unlock()
	if answer.Body == http.NoBody {
		done(true)
	} else {
		body := answer.Body
		answer.Body = &answerBody{ReadCloser: body, drained: func() bool { return c.task.drained(body, e.stop) }, done: done}
	}
	return answer, nil
}

// prepare makes the request that is written of r, which is not changed. Without GetBody net/http has no way to
// send it again.
func (c *Client) prepare(r *http.Request) (*http.Request, error) {
	switch {
	case r.URL == nil:
		return nil, errors.New("the request has no URL")
	case r.Method == http.MethodConnect:
		return nil, errors.New("CONNECT is not possible")
	}
	if err := c.task.mayCall(r); err != nil {
		return nil, err
	}
	request := r.Clone(r.Context())
	request.GetBody = nil
	if request.Header == nil {
		request.Header = http.Header{}
	}
	for name := range request.Header {
		if frames(name) {
			return nil, fmt.Errorf("header %q: %w", name, errFrames)
		}
	}
	setDefaults(request.Header, c.call)
	head := *request
	head.Body, head.ContentLength, head.TransferEncoding, head.Trailer = nil, 0, nil, nil
	return request, tryHeader(&head)
}

// begin has the request be the one of the attempt, unless there is or was another.
func (c *Client) begin(ctx context.Context) (*exchange, error) {
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
	granted := func(context.Context) (Grant, error) { return c.grant, nil }
	c.using = c.task.newExchange(ctx, granted, c.timeout, c.grant.SendBy)
	return c.using, nil
}

// finish ends a request, whose answer was read to its end or not; wrote says whether anything of it was
// written. Where the handler's end came first, that has said all there is to say.
func (c *Client) finish(e *exchange, whole bool) (wrote bool) {
	got := e.pass.end(whole)
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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.Late = c.seen.Late || errors.Is(err, ErrTooLate)
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
		e.pass.cancel(errHandlerEnded)
		c.finish(e, false)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// answerBody is an answer's body: once it is read to its end, or closed, the request is over.
type answerBody struct {
	io.ReadCloser
	drained func() (whole bool)
	done    func(whole bool) (wrote bool)
	once    sync.Once
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.once.Do(func() { b.done(errors.Is(err, io.EOF)) })
	}
	return n, err
}

// Close reads a little on first: many do not read to the end what they want no more of, and the connection can be
// used again.
func (b *answerBody) Close() error {
	b.once.Do(func() { b.done(b.drained()) })
	return b.ReadCloser.Close()
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
