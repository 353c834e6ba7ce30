package httptask

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// A request is let onto a connection by a gate, so that "sent" and "not sent" are facts and not
// readings of an error. It promises:
//
//   - nothing is written to a connection but the request of the pass that was admitted to it, and
//     that begins, header and all, with one Write, by sendBy, while its context lives;
//   - a pass is admitted once, to one connection;
//   - once end has returned nothing is written for the pass any more, and if it says that nothing
//     was, then nothing was;
//   - a connection whose request was not answered in full has by then been reset.

var (
	// ErrSpent and ErrTooLate say that nothing was written.
	ErrSpent   = errors.New("the connection was closed before the request could be sent")
	ErrTooLate = errors.New("the worker took longer than send_within to begin the request")
	errShut    = errors.New("nothing may be written to this connection now")
	errNoMore  = errors.New("the attempt has had its connection")
	errSplit   = errors.New("the request's header does not fit one write")
)

const (
	// maxHeader bounds a request's header. The transport's write buffer takes it whole with room to
	// spare, so that it leaves with the first Write.
	maxHeader       = 15 << 10
	writeBuffer     = 16 << 10
	maxAnswerHeader = 64 << 10
)

// gatedConn is the plaintext side of a connection, under its gate.
type gatedConn struct {
	net.Conn              // the TLS connection, or raw itself
	raw      *net.TCPConn // with SO_LINGER 0: to close it is to reset it
	dialed   time.Time    // before the connection was asked for
	closing  sync.Once    // so that each caller of Close waits until the descriptor is closed

	rtt  time.Duration // what connecting took
	host *idleTime

	mu        sync.Mutex
	pass      *pass         // whose request may be written; nil: none
	spent     bool          // no request may begin here any more
	reason    error         // why; nil: ErrSpent
	used      bool          // the server has answered here: it has accepted the connection
	had       bool          // a pass was admitted
	reserved  bool          // for a pass that is about to be admitted
	last      time.Time     // the last byte came in; until then, when it was connected
	announced time.Duration // for how long the server keeps it idle; 0: it has not said so
	idle      *time.Timer   // closes it when it was idle for too long; nil: it was never idle
}

// pass is the leave of one attempt to send one request.
type pass struct {
	ctx    context.Context
	cancel context.CancelCauseFunc // ends the attempt when its connection has no more to give

	mu    sync.Mutex // of the next two; locked under a connection's mu, never the other way round
	conn  *gatedConn // set by admit; the rest is guarded by its mu
	ended bool       // it is admitted no more

	sendBy  time.Time                    // zero: no bound
	arrived func(acked, later time.Time) // see Grant.Arrived

	arrivals  *Arrivals // has the lock of the next two, which is locked last
	host      *arrivals // where the request goes
	overtaken time.Time // it, or a request that was written to the host after it was acknowledged, was answered

	Seen
	began   time.Time     // the first Write began
	writing bool          // a Write is under way
	probe   *time.Timer   // asks what was acknowledged
	heard   bool          // a byte was read that can be an answer
	first   []byte        // of the answer, as much as tells its status
	stray   bool          // the answer is another's
	idle    time.Duration // for how long the connection had been idle when it was admitted; 0: it is the first
}

// Seen is what the gate saw of an attempt's request.
type Seen struct {
	Used     bool      // the attempt's client was asked for one
	Wrote    bool      // a Write has begun; false: nothing was written nor will be
	Code     int       // the answer's status; 0: there was no answer
	sent     time.Time // the last Write returned, or the connection was reset under it; zero: neither
	acked    time.Time // the API's machine was seen to have all of it; zero: it was not
	later    time.Time // a request that was written after that, to the same host, was answered; zero: not seen
	answered time.Time // the answer began, and proves that the request had arrived; zero: nothing proves it
}

// admit lets the pass's request, and nothing else, onto the connection until end. An error means
// that it stays shut. The pass before it may not have ended yet: net/http gives a connection
// away as soon as it has written a request and read its answer, both to their ends.
func (c *gatedConn) admit(p *pass, sendBy time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.conn != nil || p.ended:
		return errNoMore
	case c.spent:
		return c.why()
	}
	now := time.Now()
	if c.tooLate(now) {
		c.spend(errIdleLong)
		return c.why()
	}
	if c.had {
		p.idle = now.Sub(c.last)
	}
	p.conn, p.sendBy, c.pass = c, sendBy, p
	c.had, c.reserved = true, false
	return nil
}

// Write writes for the pass that was admitted.
func (c *gatedConn) Write(b []byte) (int, error) {
	p, err := c.begin(b)
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.acked.IsZero() { // more of the request is on its way
		p.arrivals.rewritten(p)
	}
	p.writing, p.sent, p.acked = false, now, time.Time{}
	if p.heard && p.answered.IsZero() && err == nil { // this goroutine was slower than the answer
		p.answered = now
	}
	if c.pass == p && err == nil {
		c.probeIn(p, firstProbe)
	}
	if err != nil && !p.heard {
		p.cancel(cmp.Or(c.lost(p, err, now), fmt.Errorf("write the request: %w", err)))
	}
	return n, err
}

// begin returns for which pass b may be written. From here on it counts as written, whatever happens.
func (c *gatedConn) begin(b []byte) (*pass, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pass
	if p == nil {
		return nil, errShut
	}
	if !p.Wrote {
		if err := c.refusal(p, b); err != nil {
			p.cancel(err) // else net/http would use another connection
			return nil, err
		}
		p.began = time.Now()
	}
	p.Wrote, p.writing = true, true
	return p, nil
}

func (c *gatedConn) refusal(p *pass, b []byte) error {
	switch {
	case p.ctx.Err() != nil:
		return context.Cause(p.ctx)
	case c.spent:
		return c.why()
	case !bytes.Contains(b, []byte("\r\n\r\n")):
		return errSplit
	case !p.sendBy.IsZero() && time.Now().After(p.sendBy): // last: the nearer to the write the better
		return ErrTooLate
	}
	return nil
}

// Read notes when an answer begins, and ends the attempt when none can come any more: net/http
// would send the request again on another connection.
func (c *gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	now := time.Now()
	if n == 0 && err == nil {
		return n, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p := c.pass; {
	case p == nil:
		_ = c.spoil(b[:n], err, now)
	case !p.Wrote:
		p.cancel(c.spoil(b[:n], err, now))
	case n == 0 && !p.heard:
		p.cancel(cmp.Or(c.lost(p, err, now), fmt.Errorf("no answer: %w", err)))
	default:
		c.hear(p, b[:n], now)
	}
	if n > 0 {
		c.last = now
	}
	return n, err
}

// hear notes a part of the pass's answer. The caller holds mu.
func (c *gatedConn) hear(p *pass, b []byte, now time.Time) {
	if more := statusBytes - len(p.first); more > 0 {
		p.first = append(p.first, b[:min(more, len(b))]...)
		if isHTTP2(p.first) { // net/http would wait for a line that never ends
			p.cancel(errHTTP2Only)
		}
	}
	if p.heard {
		return
	}
	p.heard = true
	if !p.sent.IsZero() { // else it proves nothing before the request is written
		p.answered = now
	}
	if p.idle > 0 {
		c.host.answered(p.idle)
	}
}

// status is the answer's as far as the gate has seen it, also where net/http made nothing of it. 0: there is none to go by.
func (p *pass) status() int {
	p.mu.Lock()
	c := p.conn
	p.mu.Unlock()
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.stray {
		return 0
	}
	return statusOf(p.first)
}

// answering is told that net/http is about to read the pass's answer. If nothing came in since the
// request was written, then what it reads was left over from before.
func (p *pass) answering() {
	p.mu.Lock()
	c := p.conn
	p.mu.Unlock()
	if c == nil {
		return
	}
	c.mu.Lock()
	p.stray = !p.heard
	if p.stray {
		c.spend(ErrSpent)
	}
	c.mu.Unlock()
	if p.stray {
		c.reset()
	}
}

// Close closes an idle connection politely, and resets one that has a request.
func (c *gatedConn) Close() error {
	c.mu.Lock()
	idle := c.pass == nil
	c.spend(ErrSpent)
	if c.idle != nil {
		c.idle.Stop()
	}
	c.mu.Unlock()
	if !idle {
		c.reset()
		return nil
	}
	var err error
	c.closing.Do(func() {
		_ = c.raw.SetLinger(-1) // it only makes the close polite
		err = c.Conn.Close()
	})
	return err
}

// reset drops the connection with all that the kernel has not sent yet. When it returns, no Write
// is under way and nothing more leaves.
func (c *gatedConn) reset() { c.closing.Do(func() { _ = c.raw.Close() }) }

// end takes the leave back, and returns what the gate saw. whole means that the answer was read to its end; if it was
// not, or the request is still being written, the connection is reset. Anybody may call it, while the request is made too.
func (p *pass) end(whole bool) Seen {
	p.mu.Lock()
	c := p.conn
	p.ended = true
	p.mu.Unlock()
	if c == nil {
		return Seen{}
	}
	c.mu.Lock()
	for n := 0; whole && p.writing && n < 20; n++ { // the Write of what was answered is about to return
		c.mu.Unlock()
		time.Sleep(250 * time.Microsecond)
		c.mu.Lock()
	}
	mine, cut := c.pass == p, p.writing
	reset := mine && (!whole || cut)
	if mine {
		c.pass = nil
	}
	if p.probe != nil {
		p.probe.Stop()
	}
	switch {
	case reset:
		c.spend(ErrSpent)
	case mine:
		c.park(time.Now())
	}
	c.mu.Unlock()
	if reset {
		c.reset()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cut {
		p.sent, p.acked = time.Now(), time.Time{} // it went on until the reset
	}
	p.later = p.arrivals.end(p)
	return p.Seen
}

// proves notes that the API's program answered the request, by its status.
func (p *pass) proves() {
	c := p.conn
	c.mu.Lock()
	place, answered := p.began, p.answered
	if !c.used {
		place = c.dialed
	}
	c.used = true
	c.mu.Unlock()
	if !answered.IsZero() {
		p.arrivals.answered(p, place, answered)
	}
}

// A request that was written may arrive later than slack allows for: the kernel has it, and sends what is lost again after
// 200 ms, 600 ms, 1.4 s …. So where no answer comes soon the kernel is asked until the other side has acknowledged
// all of it. That is no arrival: the API's program may read it much later. Then Arrivals sees when a later request is answered.
// Until that is known the attempt's units stay occupied; so where the answer takes long the ledger is told.
const (
	firstProbe = 20 * time.Millisecond // most answers of quick APIs are there by then; a slack as short frees units so early
	lastProbe  = time.Second
	tellAfter  = 500 * time.Millisecond // no default slack is shorter: sooner it would free no unit
)

// probeIn asks after d whether what the pass wrote was acknowledged. The caller holds mu.
func (c *gatedConn) probeIn(p *pass, d time.Duration) {
	if p.probe != nil {
		p.probe.Stop()
	}
	p.probe = time.AfterFunc(d, func() { c.ask(p, min(2*d, lastProbe)) })
}

func (c *gatedConn) ask(p *pass, next time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pass != p || p.writing {
		return
	}
	n, err := unacked(c.raw)
	if err != nil { // this system does not tell: then only an answer proves anything
		return
	}
	if n > 0 {
		c.probeIn(p, next)
		return
	}
	if p.acked.IsZero() {
		p.acked = time.Now()
		p.arrivals.acknowledged(p, p.sent, p.acked)
	}
	if left := tellAfter - time.Since(p.sent); left > 0 {
		c.probeIn(p, left)
	} else if p.arrived != nil {
		p.arrived(p.acked, p.arrivals.later(p))
	}
}
