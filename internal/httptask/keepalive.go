package httptask

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// idleTimes knows for how long connections to each host may be idle. A server closes connections that are idle for long; a request
// that is written just then is lost, and its unit with it. It promises: a connection gets no new request once it was idle for
// longer than its bound, which is below
//
//   - what the server announced, as in "Keep-Alive: timeout=5", by a second and the round trip;
//   - four fifths of the shortest idle time after which the host closed a connection, less the round trip, or 50 ms;
//   - of a host of which nothing is known a second, or twice the longest idle time that it is known to bear.
//
// It does not promise that no request is lost: a server may close a connection at any time.
type idleTimes struct {
	mu    sync.Mutex
	hosts map[string]*idleTime // at most maxHosts
}

// idleTime is what is known of one host.
type idleTime struct {
	mu       sync.Mutex    // locked last
	proven   time.Duration // the longest idle time after which a connection was answered
	closed   time.Duration // the shortest after which the server closes one, as it seems; 0: unknown
	closedAt time.Time     // when that was learnt
	odd      time.Duration // an idle time shorter than proven, after which it closed one; 0: none
	oddAt    time.Time     // when that was
	used     time.Time     // guarded by idleTimes.mu
}

const (
	maxIdle      = 30 * time.Second // the longest bound
	firstIdle    = time.Second      // the bound of hosts of which nothing is known
	leastMargin  = 50 * time.Millisecond
	noTimeout    = 100 * time.Millisecond // no server's timeout is as short: who hangs up so soon hangs up on the request
	sameMoment   = time.Second            // a server that stops closes all its connections within so long
	closedMemory = 5 * time.Minute        // for so long a bound stays short: a new server may be there since
)

var (
	errClosedIdle = fmt.Errorf("the server closed an idle connection: %w", ErrSpent)
	errIdleLong   = fmt.Errorf("the connection was idle for too long: %w", ErrSpent)
)

func newIdleTimes() *idleTimes { return &idleTimes{hosts: map[string]*idleTime{}} }

// of is what is known of a host. Of more than maxHosts, the half that was used longest ago is forgotten.
func (t *idleTimes) of(host string, now time.Time) *idleTime {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[host]
	if h == nil {
		if len(t.hosts) >= maxHosts {
			names := slices.SortedFunc(maps.Keys(t.hosts), func(x, y string) int { return t.hosts[x].used.Compare(t.hosts[y].used) })
			for _, name := range names[:len(names)/2] {
				delete(t.hosts, name)
			}
		}
		h = &idleTime{}
		t.hosts[host] = h
	}
	h.used = now
	return h
}

// bound is for how long a connection may be idle whose server announced so much (0: nothing), and is so far away.
func (h *idleTime) bound(announced, rtt time.Duration, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed > 0 && now.Sub(h.closedAt) > closedMemory {
		h.closed, h.proven = 0, 0
	}
	most := maxIdle
	switch {
	case announced > 0:
		most = min(most, announced-time.Second-rtt)
	case h.closed == 0:
		most = min(most, max(firstIdle, 2*h.proven))
	}
	if h.closed > 0 && h.closed < most || announced == 0 && h.closed > 0 {
		most = min(most, h.closed*4/5-max(rtt, leastMargin))
	}
	return max(most, 0)
}

// answered notes that a connection was answered that had been idle for d.
func (h *idleTime) answered(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.proven = max(h.proven, d)
	if d >= h.odd {
		h.odd = 0
	}
}

// closedAfter notes that the server closed a connection that was idle for d. One that has borne longer stops, perhaps: only
// if it does so again, at another moment, that is its timeout.
func (h *idleTime) closedAfter(d time.Duration, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d < h.proven {
		since := now.Sub(h.oddAt)
		if h.odd == 0 || since > closedMemory {
			h.odd, h.oddAt = max(d, 1), now
			return
		}
		if since < sameMoment {
			return
		}
	}
	h.learn(d, now)
}

// lost notes that the server closed a connection under a request, which was written after so long.
func (h *idleTime) lost(idle time.Duration, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.learn(idle/2, now)
}

func (h *idleTime) learn(d time.Duration, now time.Time) {
	if d = max(d, 1); h.closed == 0 || d < h.closed {
		h.closed = d
	}
	h.closedAt, h.proven, h.odd = now, min(h.proven, d), 0
}

// announcedIdle reads Keep-Alive: for how long the server keeps idle connections. 0: it does not say so.
func announcedIdle(header http.Header) time.Duration {
	for _, line := range header["Keep-Alive"] {
		for field := range strings.FieldsFuncSeq(line, func(r rune) bool { return r == ',' || r == ';' }) {
			name, value, _ := strings.Cut(field, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "timeout") {
				continue
			}
			seconds, err := strconv.ParseUint(strings.Trim(value, " \t\""), 10, 64)
			if err != nil && !errors.Is(err, strconv.ErrRange) {
				continue
			}
			return max(time.Duration(min(seconds, 3600))*time.Second, 1) // 0 s: none is to be used again
		}
	}
	return 0
}

// announce notes an answer's header.
func (c *gatedConn) announce(header http.Header) {
	c.mu.Lock()
	c.announced = announcedIdle(header)
	c.mu.Unlock()
}

// bound is for how long the connection may be idle. One without any request so far may be a while longer. The caller holds mu.
func (c *gatedConn) bound(now time.Time) time.Duration {
	bound := c.host.bound(c.announced, c.rtt, now)
	if !c.had {
		bound = max(bound, firstIdle)
	}
	return bound
}

// park starts the time after which the idle connection is closed. The caller holds mu.
func (c *gatedConn) park(now time.Time) {
	if c.spent || c.reserved {
		return
	}
	left := c.bound(now) - now.Sub(c.last)
	if c.idle == nil {
		c.idle = time.AfterFunc(left, c.expire)
	} else {
		c.idle.Reset(left)
	}
}

// expire closes the connection if it is still idle and its time is over. net/http sees that, and uses it no more.
func (c *gatedConn) expire() {
	now := time.Now()
	c.mu.Lock()
	if c.pass != nil || c.reserved || c.spent {
		c.mu.Unlock()
		return
	}
	if now.Sub(c.last) < c.bound(now) { // the host has proven to bear more meanwhile
		c.park(now)
		c.mu.Unlock()
		return
	}
	c.spend(errIdleLong)
	c.mu.Unlock()
	_ = c.Close()
}

// reserve takes the connection for a request, which is to ask for its start now. An error means that the connection takes none
// any more. The request before it is over: else net/http would not have given the connection away.
func (c *gatedConn) reserve(pooled bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle != nil {
		c.idle.Stop()
	}
	c.pass = nil
	if now := time.Now(); pooled && now.Sub(c.last) >= c.bound(now) {
		c.spend(errIdleLong)
	}
	if c.spent {
		return c.why()
	}
	c.reserved = true
	return nil
}

// tooLate reports whether the connection was idle for too long by now, as the start took long. The caller holds mu.
func (c *gatedConn) tooLate(now time.Time) bool {
	if !c.had {
		return false
	}
	bound := c.bound(now)
	return now.Sub(c.last) > bound+max(min(bound/8, 500*time.Millisecond), leastMargin)
}

// spend lets no request begin here any more; the first reason stays. The caller holds mu.
func (c *gatedConn) spend(why error) {
	if !c.spent {
		c.spent, c.reason = true, why
	}
}

func (c *gatedConn) why() error { return cmp.Or(c.reason, ErrSpent) }

// spoil notes what came in without a request: nothing that could pass for an answer to the next. The caller holds mu.
func (c *gatedConn) spoil(b []byte, err error, now time.Time) error {
	switch {
	case isHTTP2(b):
		c.spend(errHTTP2Only)
	case len(b) == 0 && hungUp(err) && !c.spent:
		c.spend(errClosedIdle)
		if d := now.Sub(c.last); c.had && (c.announced == 0 || d < c.announced-time.Second-c.rtt) {
			c.host.closedAfter(d, now)
		}
	default:
		c.spend(ErrSpent)
	}
	return c.why()
}

// lost is how an attempt ends whose connection the server closed, it seems, while the request was on its way there; nil: it
// is not so. The caller holds mu.
func (c *gatedConn) lost(p *pass, err error, now time.Time) error {
	if !hungUp(err) || p.idle < noTimeout || now.Sub(p.began) > time.Second+2*c.rtt {
		return nil
	}
	c.host.lost(p.idle, now)
	return fmt.Errorf("no answer: the server closed the connection, which had been idle for %s: %w", p.idle.Round(time.Millisecond), err)
}

// hungUp reports whether the other side closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
