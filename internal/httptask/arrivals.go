package httptask

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Arrivals knows in which order requests to each host were written, acknowledged and answered. It promises: a request that it
// reports as overtaken was acknowledged before another one to its host took its place in the queue, and that one was answered.
// APIs read first in, first out, so the first had been read by then, too. A request's place is from when it was written;
// that of the first on its connection from when that was asked for: servers take connections in their order.
//
// One Arrivals serves all tasks of a worker. What other workers saw it learns from Tell.
type Arrivals struct {
	mu    sync.Mutex
	hosts map[string]*arrivals
}

// arrivals are those at one host. Guarded by Arrivals.mu.
type arrivals struct {
	name    string
	waiting []*standing // acknowledged, and neither overtaken nor ended, in the order of their acknowledgements
	newest  Answered    // whose request was written last
	used    time.Time
}

// standing is a request that may still be in the API's queue.
type standing struct {
	pass        *pass
	sent, acked time.Time
}

// Answered means that a request to a host took its place at Written or later, and was answered by Answered, on this worker's
// monotonic clock.
type Answered struct {
	Host     string
	Written  time.Time
	Answered time.Time
}

// maxHosts is how many hosts are known. Of more, those forget that were used longest ago and have nothing in doubt.
const maxHosts = 4096

// NewArrivals makes an Arrivals that knows nothing.
func NewArrivals() *Arrivals { return &Arrivals{hosts: map[string]*arrivals{}} }

// of is the host's arrivals.
func (a *Arrivals) of(host string) *arrivals {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.hosts[host]
	if h == nil {
		if len(a.hosts) >= maxHosts {
			a.forget()
		}
		h = &arrivals{name: host}
		a.hosts[host] = h
	}
	h.used = time.Now()
	return h
}

// forget forgets half of the hosts without a doubt.
func (a *Arrivals) forget() {
	idle := slices.SortedFunc(maps.Values(a.hosts), func(x, y *arrivals) int {
		return cmp.Or(cmp.Compare(min(len(x.waiting), 1), min(len(y.waiting), 1)), x.used.Compare(y.used))
	})
	for _, h := range idle[:len(idle)/2] {
		if len(h.waiting) == 0 {
			delete(a.hosts, h.name)
		}
	}
}

// acknowledged notes that the pass's request, sent so, was acknowledged.
func (a *Arrivals) acknowledged(p *pass, sent, acked time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.overtaken.IsZero() {
		p.host.waiting = append(p.host.waiting, &standing{p, sent, acked})
	}
}

// rewritten notes that more of the request was written after it was acknowledged.
func (a *Arrivals) rewritten(p *pass) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.host.remove(p)
	p.overtaken = time.Time{}
}

// answered notes that the API answered the pass's request. Other requests that were acknowledged before this one took its place
// have been read.
func (a *Arrivals) answered(p *pass, place, answered time.Time) {
	a.mu.Lock()
	h := p.host
	p.overtaken = earlier(p.overtaken, answered)
	h.remove(p)
	passed := h.overtake(answered, func(s *standing) bool { return !s.acked.After(place) })
	if place.After(h.newest.Written) {
		h.newest = Answered{h.name, place, answered}
	}
	a.mu.Unlock()
	tell(passed, answered)
}

// overtake removes the standing that are overtaken, at a time, and returns them.
func (h *arrivals) overtake(at time.Time, which func(*standing) bool) (passed []*standing) {
	if len(h.waiting) == 0 {
		return nil
	}
	h.waiting = slices.DeleteFunc(h.waiting, func(s *standing) bool {
		if !which(s) {
			return false
		}
		s.pass.overtaken = earlier(s.pass.overtaken, at)
		passed = append(passed, s)
		return true
	})
	return passed
}

// tell reports those that have been under way for long. The others are asked about when they have been (gatedConn.ask).
func tell(passed []*standing, at time.Time) {
	for _, s := range passed {
		if s.pass.arrived != nil && time.Since(s.sent) >= tellAfter {
			s.pass.arrived(s.acked, at)
		}
	}
}

func (h *arrivals) remove(p *pass) {
	h.waiting = slices.DeleteFunc(h.waiting, func(s *standing) bool { return s.pass == p })
}

// end is told that the pass has ended. It returns when its request was overtaken, or else a zero time.
func (a *Arrivals) end(p *pass) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.host.remove(p)
	return p.overtaken
}

// later is when the pass's request was overtaken, or answered itself.
func (a *Arrivals) later(p *pass) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return p.overtaken
}

// Doubtful are the hosts with requests that have been under way for long.
func (a *Arrivals) Doubtful() (hosts []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, h := range a.hosts {
		if slices.ContainsFunc(h.waiting, func(s *standing) bool { return time.Since(s.sent) >= tellAfter }) {
			hosts = append(hosts, name)
		}
	}
	slices.Sort(hosts)
	return hosts
}

// Newest is what this worker knows to have been answered of a host; false: nothing.
func (a *Arrivals) Newest(host string) (Answered, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.hosts[host]
	if h == nil {
		return Answered{}, false
	}
	return h.newest, !h.newest.Answered.IsZero()
}

// Tell hands over what another worker knows to have been answered.
func (a *Arrivals) Tell(e Answered) {
	a.mu.Lock()
	var passed []*standing
	if h := a.hosts[e.Host]; h != nil {
		passed = h.overtake(e.Answered, func(s *standing) bool { return !s.acked.After(e.Written) })
	}
	a.mu.Unlock()
	tell(passed, e.Answered)
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// Host is the host that a URL names, as Answered has it; "": none.
func Host(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host == "" {
		return ""
	}
	return hostOf(u).String()
}

func (h hostPort) String() string { return h.host + ":" + h.port }
