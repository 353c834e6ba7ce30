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
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/callq/callq/internal/limit"
)

// Config is what the built-in task http may do. Zero values mean the defaults.
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
	Secrets        map[string]Secret
	ConnectTimeout time.Duration // of DNS, TCP and TLS together; default 10 s
	TLS            *tls.Config   // default: the system's certificates
	Resolver       *net.Resolver // default: the system's
}

// Task makes requests. It is safe for concurrent use.
type Task struct {
	cfg       Config
	hosts     hosts // that may be called; empty: all
	secrets   secrets
	addresses *addresses
	transport *http.Transport
	arrivals  *Arrivals
	idle      *idleTimes
	drainFor  time.Duration // how long the rest of an answer is read so that its connection can be reused
}

// New checks cfg and makes a Task, which keeps at most so many connections to a host, idle or not. arrivals are those of
// all tasks of the worker.
func New(cfg Config, connections int, arrivals *Arrivals) (*Task, error) {
	cfg.Store = cmp.Or(cfg.Store, "errors")
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, 10*time.Second)
	cfg.TLS = cmp.Or(cfg.TLS, &tls.Config{}).Clone()
	cfg.TLS.NextProtos = []string{"http/1.1"}
	if cfg.TLS.ClientSessionCache == nil {
		cfg.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	s, err := newSecrets(cfg.Secrets)
	if err != nil {
		return nil, err
	}
	t := &Task{cfg: cfg, hosts: newHosts(cfg.Hosts), secrets: s, addresses: newAddresses(cfg), arrivals: arrivals, idle: newIdleTimes(), drainFor: 250 * time.Millisecond}
	t.transport = t.newTransport(connections)
	return t, nil
}

// Close closes idle connections.
func (t *Task) Close() { t.transport.CloseIdleConnections() }

// Call is what a request is made from.
type Call struct {
	ID             int64
	Attempt        int
	IdempotencyKey string
	Data           json.RawMessage // call_data
	Store          string          // which answers to keep; empty: as Config.Store
	StoreMax       int             // bytes of an answer's body to keep, 0: maxBody, which is the most
}

// Grant is a durable start, on the monotonic clock.
type Grant struct {
	M0     time.Time // read before the start was asked for
	SendBy time.Time // the request must have begun by then; zero: no bound
	// Arrived is told where an attempt takes long when its request was acknowledged (zero: unknown), and when that, or one that
	// was written later to the same host, was answered (zero: it was not). It must not block, and may be nil.
	Arrived func(acked, later time.Time)
}

// StartFunc asks for the start. An error means: do not send.
type StartFunc func(ctx context.Context) (Grant, error)

// Sending is what became of an attempt.
type Sending struct {
	Seen
	Err    error           // nil: done; its text has no secrets
	Note   string          // what is wrong with the answer of one that is done: its body was cut off; likewise without secrets
	Result json.RawMessage // the answer without secrets; nil: none, or not to be kept
	Host   string          // where the request went
	Answer *Answer         // nil: none came
}

// Since turns what the gate saw into offsets from m0.
func (s Seen) Since(m0 time.Time) limit.Sending {
	ended := time.Since(m0)
	since := func(t time.Time) *time.Duration {
		if t.IsZero() {
			return nil
		}
		return new(t.Sub(m0))
	}
	// A write that never returned ended with its connection.
	return limit.Sending{Sent: cmp.Or(since(s.sent), &ended), Acked: since(s.acked), Later: since(s.later), Answered: since(s.answered), Ended: ended}
}

// From reports whether the request went to one of these hosts; none: to any.
func (s Sending) From(hosts []string) bool { return Among(s.Host, hosts) }

// Run makes the request of one attempt. It connects, asks for the start once it has a connection,
// and sends at most one request, within timeout (or call_data's, if smaller) of the start. When it
// returns nothing more is written for the attempt, and a connection without an answer is reset.
func (t *Task) Run(ctx context.Context, call *Call, timeout time.Duration, start StartFunc) (s Sending) {
	r, err := t.read(call)
	if err != nil {
		return Sending{Err: err}
	}
	if r.timeout > 0 {
		timeout = min(timeout, r.timeout)
	}
	secrets := t.secrets.needles(r.request.URL)
	client := &Client{task: t, ctx: ctx, start: start, timeout: timeout}
	answer, err := client.try(r.request.WithContext(ctx), r.private)
	if err != nil {
		err = fmt.Errorf("%s: %w", r.shown, err)
		// An API's words can be among net/http's.
		return Sending{Seen: client.End(), Err: secrets.redacted(err), Host: hostOf(r.request.URL).String()}
	}
	kept := readResponse(answer, secrets, min(cmp.Or(call.StoreMax, maxBody), maxBody))
	_ = answer.Body.Close()
	// The status decides, even where the body was cut off: the API has done what was asked. But what was asked for may be the body.
	said := &Answer{Status: answer.StatusCode, Header: answer.Header, At: time.Now(), what: secrets.redact(r.shown, false)}
	err = said.Verdict(said.Refusal(Forms{}))
	store := cmp.Or(call.Store, t.cfg.Store)
	note := ""
	if err == nil && kept.Cut {
		cut := fmt.Errorf("%s: %s", r.shown, kept.cut())
		if reads := r.request.Method == http.MethodGet || r.request.Method == http.MethodHead; reads && store == "all" {
			err = cut
		} else {
			note = secrets.redacted(cut).Error()
		}
	}
	s = Sending{Seen: client.End(), Err: secrets.redacted(err), Note: note, Host: hostOf(r.request.URL).String(), Answer: said}
	if store == "all" || store == "errors" && err != nil {
		s.Result, _ = json.Marshal(kept) // strings and numbers always can
	}
	return s
}
