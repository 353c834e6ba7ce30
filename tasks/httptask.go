package tasks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"time"
)

// HTTPConfig says what the built-in task may do. Zero values mean the defaults.
type HTTPConfig struct {
	Hosts          []string      // when set, only these hosts may be called
	PrivateHosts   []string      // hosts, addresses or prefixes that may be called though they are private
	AllowPrivate   bool          // all private addresses may be called
	Store          string        // which answers to keep in result: errors (default), all, none
	ConnectTimeout time.Duration // for DNS, TCP and TLS; default 10 s
	MaxIdlePerHost int           // connections kept; set by New to the worker's concurrency
	TLS            *tls.Config   // default: the system's roots, TLS 1.2 and up
}

const (
	bodyKept    = 64 << 10  // of an answer, in result
	bodyDrained = 256 << 10 // more is read so that the connection can be used again
	// retryAfterMost bounds what an API may ask for.
	retryAfterMost = 24 * time.Hour
)

// httpTask is the built-in task http. It takes its connection first, asks for the start when it
// has one, and sends at most one request per attempt; see gatedConn.
type httpTask struct {
	cfg       HTTPConfig
	hosts     hosts
	transport *http.Transport
}

func newHTTPTask(cfg HTTPConfig) *httpTask {
	cfg.Store = cmp.Or(cfg.Store, "errors")
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, 10*time.Second)
	allowed := hosts{only: cfg.Hosts, private: cfg.PrivateHosts, allowPrivate: cfg.AllowPrivate}
	return &httpTask{cfg: cfg, hosts: allowed, transport: newTransport(cfg, allowed)}
}

func (h *httpTask) close() { h.transport.CloseIdleConnections() }

// grant is a durable start. Both readings are monotonic.
type grant struct {
	m0     time.Time // before the start was asked for
	sendBy time.Time // no request may be written later; zero: whenever
}

// startFunc asks for the durable start. An error means: do not send.
type startFunc func(ctx context.Context) (grant, error)

// sending is what became of an attempt's request.
type sending struct {
	wrote          bool      // false is a proof: nothing was written, and nothing will be
	sent, answered time.Time // monotonic; zero: it did not happen, or proves nothing
	result         json.RawMessage
	err            error
}

// errSecondConn ends a request that net/http would send again on another connection.
var errSecondConn = errors.New("the connection ended before it was answered")

// exchange is one attempt's request on its way. net/http calls gotConn on the goroutine of run.
type exchange struct {
	start   startFunc
	timeout time.Duration
	cancel  context.CancelCauseFunc
	timer   *time.Timer // of connecting, then of the answer

	asked bool
	err   error // why the start was not given
	conn  *gatedConn
	pass  *pass
}

// run makes the call: within timeout (or call_data's, if that is less) of the start.
func (h *httpTask) run(ctx context.Context, call *Call, timeout time.Duration, start startFunc) sending {
	spec, err := readSpec(call.Data)
	if err != nil {
		return sending{err: err}
	}
	if err := h.hosts.allow(spec.url.Hostname(), spec.port()); err != nil {
		return sending{err: err}
	}
	if spec.timeout > 0 {
		timeout = min(timeout, spec.timeout)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x := &exchange{start: start, timeout: timeout, cancel: cancel}
	x.timer = time.AfterFunc(h.cfg.ConnectTimeout+time.Second, func() {
		cancel(fmt.Errorf("no connection within %s", h.cfg.ConnectTimeout))
	})
	defer x.timer.Stop()

	request, err := spec.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { x.gotConn(ctx, info) },
	}), call)
	if err != nil {
		return sending{err: err}
	}
	response, err := h.transport.RoundTrip(request)
	answer, readErr := h.read(response, err)
	return x.end(ctx, spec, answer, cmp.Or(err, readErr))
}

// gotConn asks for the start, once, and opens the gate of the connection. A second connection for
// the same attempt finds its gate closed and stays so.
func (x *exchange) gotConn(ctx context.Context, info httptrace.GotConnInfo) {
	conn, gated := info.Conn.(*gatedConn)
	if x.asked || !gated {
		x.cancel(errSecondConn)
		return
	}
	x.asked = true
	x.timer.Stop()
	granted, err := x.start(ctx)
	if err != nil {
		x.err = err
		x.cancel(err)
		return
	}
	x.timer = time.AfterFunc(time.Until(granted.m0.Add(x.timeout)), func() {
		x.cancel(fmt.Errorf("no answer within %s", x.timeout))
	})
	x.conn, x.pass = conn, conn.arm(granted.sendBy)
}

// end closes the gate, resets a connection without an answer, and says how the attempt went.
func (x *exchange) end(ctx context.Context, spec *spec, answer *answer, err error) sending {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if x.err != nil {
		return sending{err: x.err}
	}
	if x.pass == nil {
		return sending{err: spec.failed(err)}
	}
	if err != nil {
		x.conn.reset()
	}
	x.conn.disarm(x.pass)
	s := sending{wrote: x.pass.wrote, sent: x.pass.sent}
	switch {
	case x.pass.late:
		s.err = errTooLate
	case answer == nil:
		s.err = spec.failed(err)
	default:
		// A 408 may have been on its way before the request had arrived.
		if !x.pass.unproven && answer.Status != http.StatusRequestTimeout {
			s.answered = x.pass.answered
		}
		s.result, s.err = answer.kept, answer.outcome(spec)
	}
	return s
}

// answer is an API's answer, as result keeps it.
type answer struct {
	Status    int            `json:"status"`
	Headers   map[string]any `json:"headers"`
	Body      string         `json:"body"`
	Truncated bool           `json:"truncated"`

	text       string
	retryAfter string
	kept       json.RawMessage
}

// read reads the answer: what result keeps of its body, and some more to free the connection.
func (h *httpTask) read(response *http.Response, err error) (*answer, error) {
	if err != nil {
		return nil, nil //nolint:nilnil // the caller has the error
	}
	defer response.Body.Close() //nolint:errcheck // it has been read as far as it matters
	body, err := io.ReadAll(io.LimitReader(response.Body, bodyKept+1))
	if err == nil {
		_, err = io.CopyN(io.Discard, response.Body, bodyDrained)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	a := &answer{
		Status: response.StatusCode, Headers: map[string]any{}, text: response.Status,
		retryAfter: response.Header.Get("Retry-After"), Truncated: len(body) > bodyKept,
	}
	for name, values := range response.Header {
		if len(values) == 1 {
			a.Headers[clean(name)] = clean(values[0])
			continue
		}
		list := make([]string, len(values))
		for i, v := range values {
			list[i] = clean(v)
		}
		a.Headers[clean(name)] = list
	}
	a.Truncated = a.Truncated || err != nil // the status stands, even where the body was cut short
	a.Body = textOf(body[:min(len(body), bodyKept)])
	if h.cfg.Store == "all" || h.cfg.Store == "errors" && !a.ok() {
		kept, encodeErr := encode(a)
		if encodeErr != nil {
			return a, encodeErr
		}
		a.kept = kept
	}
	return a, err
}

// encode writes JSON without HTML escapes: answers are read by people.
func encode(v any) (json.RawMessage, error) {
	var buf bytes.Buffer
	encoder := json.NewEncoder(&buf)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, fmt.Errorf("write result: %w", err)
	}
	return bytes.TrimSpace(buf.Bytes()), nil
}

// textOf makes a body fit for jsonb: valid UTF-8 without NUL. A character cut off at the end goes.
func textOf(body []byte) string {
	return strings.ReplaceAll(strings.ToValidUTF8(string(body), "�"), "\x00", "�")
}

func (a *answer) ok() bool { return a.Status >= 200 && a.Status <= 299 }

// outcome turns a status into a handler's ending.
func (a *answer) outcome(spec *spec) error {
	if a.ok() {
		return nil
	}
	err := fmt.Errorf("%s: %s", spec, clean(a.text))
	switch {
	case a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable:
		if after, ok := parseRetryAfter(a.retryAfter, time.Now()); ok {
			return RetryAfter(after, err)
		}
		return err
	case a.Status == http.StatusRequestTimeout || a.Status == http.StatusTooEarly || a.Status >= 500:
		return err
	}
	return Permanent(err)
}

// parseRetryAfter reads a Retry-After header, in seconds or as a date.
func parseRetryAfter(value string, now time.Time) (time.Duration, bool) {
	if seconds, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, retryAfterMost), true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), retryAfterMost), true
}
