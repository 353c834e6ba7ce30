package claim

import (
	"encoding/json"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/usage"
)

// shares divide what limits allow among those that have a share of them (limit.Shares). A claim of one queue leaves to the shares of
// others what is theirs, if they have calls that wait for it. Each process learns that from its own claims, and keeps its own turns:
// together, processes that are fair are fair.
type shares struct {
	cfg   *Config
	turns map[usage.Of]*limit.Turns
	seen  map[string]sight            // by queue
	due   map[string]bool             // the queues with calls that may be claimed
	left  map[string]map[string]int64 // by queue and share: units that claims of others left to it
	freed bool                        // some that were left are not wanted: others may have more
}

// sight is what a queue's last claim left waiting because limits lacked units.
type sight struct {
	at    time.Time
	lacks map[usage.Of]map[string]limit.Demand // by share
}

func newShares(cfg *Config) *shares {
	return &shares{cfg: cfg, turns: map[usage.Of]*limit.Turns{}, seen: map[string]sight{}, due: map[string]bool{}, left: map[string]map[string]int64{}}
}

// seenFor is for how long a claim says what its queue waits for, unless its limits are known to have no room.
const seenFor = time.Second

// poll notes which queues are due.
func (s *shares) poll(due []dueQueue) {
	clear(s.due)
	for _, q := range due {
		if s.due[q.Name] = q.Due; !q.Due {
			delete(s.seen, q.Name)
		}
	}
	for queue := range s.left {
		if !s.due[queue] {
			delete(s.left, queue)
			s.freed = true
		}
	}
}

// someFreed reports, once, whether queues may have more than their last claims found.
func (s *shares) someFreed() bool {
	freed := s.freed
	s.freed = false
	return freed
}

// of are the turns of a limit, or of a key of one.
func (s *shares) of(of usage.Of, l policy.LockedLimit) *limit.Turns {
	t := s.turns[of]
	if t == nil || !t.Are(l.Shares) {
		if len(s.turns) > 100_000 { // keys that are no more
			clear(s.turns)
		}
		const parts = 1 << 30
		t = limit.NewTurns(l.Shares, func() float64 { return float64(s.cfg.Random(parts)+1) / parts })
		s.turns[of] = t
	}
	return t
}

// used is what each share has of a limit's window: what this process claimed for it, or, of a limit of concurrency, what is open.
func (s *shares) used(t *limit.Turns, count *usage.Count) map[string]int64 {
	if count.Use.Rate.Window == 0 {
		return count.Shares
	}
	return t.Within(s.cfg.Now(), count.Use.Rate.Span())
}

// demand is what other queues want of a limit, by share, and which they are. Of a queue that has not been claimed from lately it is
// anything that it may have.
func (s *shares) demand(of usage.Of, l policy.LockedLimit, queue string, blocked map[string]time.Time) (demand map[string]limit.Demand, by map[string][]string) {
	demand, by = map[string]limit.Demand{}, map[string][]string{}
	now := s.cfg.Now()
	for _, other := range l.Queues {
		if other == queue || !s.due[other] {
			continue
		}
		seen, is := s.seen[other]
		lacks := seen.lacks[of]
		if !is || now.Sub(seen.at) > seenFor && !blocked[other].After(now) {
			lacks = map[string]limit.Demand{}
			for _, name := range l.Shares.Among(other) {
				lacks[name] = limit.Demand{Units: math.MaxInt32, Next: 1}
			}
		}
		for name, wants := range lacks {
			demand[name] = demand[name].And(wants)
			by[name] = append(by[name], other)
		}
	}
	return demand, by
}

// withShares yields what is counted of limits that have shares, with the limits' places.
func (h *headroom) withShares() iter.Seq2[int, *usage.Count] {
	return func(yield func(int, *usage.Count) bool) {
		for i, count := range h.counts {
			if place := h.places[i]; len(h.limits[place].Shares) > 0 && !yield(place, count) {
				return
			}
		}
	}
}

// leave takes from the headroom of a claim what is for shares of other queues only.
func (s *shares) leave(c *candidates, blocked map[string]time.Time) {
	h := c.head
	for place, count := range h.withShares() {
		l, q := h.limits[place], h.Admission[place]
		others, by := s.demand(count.Of, l, c.queue.Name, blocked)
		if len(others) == 0 || q.Room[count.Key] == 0 {
			continue
		}
		own := c.waiting(count.Of, l, s.seen[c.queue.Name])
		for name, wants := range own {
			others[name] = others[name].And(wants)
		}
		turns := s.of(count.Of, l)
		for name, units := range turns.Split(count.Use.Rate, others, q.Room[count.Key], s.used(turns, count)) {
			if own[name].Units > 0 || units == 0 {
				continue
			}
			q.EndRun(count.Key) // the others would wait for its end
			q.Room[count.Key] -= units
			q.Left[count.Key] += units
			for _, queue := range by[name] {
				if s.left[queue] == nil {
					s.left[queue] = map[string]int64{}
				}
				s.left[queue][name] += units
			}
		}
	}
}

// waiting is how many units of a limit the calls of this claim wait for, by share. A call that another limit lets wait for longer than
// this one's window claims no part of it, nor does one that no worker has a slot for. last is the queue's last claim.
func (c *candidates) waiting(of usage.Of, l policy.LockedLimit, last sight) map[string]limit.Demand {
	keys, demand := c.keys, map[string]limit.Demand{}
	if l.PerKey {
		keys = []string{of.Key}
	}
	for _, key := range keys {
		if c.waitsElse(key, l) {
			continue
		}
		for _, f := range c.of[key] {
			left := f.Calls - int64(f.passed)
			if left <= 0 || !c.pools.CanTake(f.Task) {
				continue
			}
			name := l.Shares.Of(c.queue.Name, f.Rank(), f.Retries())
			wants := limit.Demand{Units: left, Next: 1}
			switch {
			case !l.CountCost:
			case f.passed < len(f.calls):
				wants = limit.Demand{Units: math.MaxInt32, Next: f.first().Cost}
			default: // it has not been read
				wants = limit.Demand{Units: math.MaxInt32, Next: max(1, last.lacks[of][name].Next)}
			}
			demand[name] = demand[name].And(wants)
		}
	}
	delete(demand, "")
	return demand
}

// waitsElse reports whether another limit keeps a key's calls waiting for longer than the window of l.
func (c *candidates) waitsElse(key string, l policy.LockedLimit) bool {
	for of, other := range c.head.lacking(held{key: key, cost: 1}) {
		if other.Name != l.Name && c.head.nextLook[of].Sub(c.head.now) > max(l.Rate().Span(), seenFor) {
			return true
		}
	}
	return false
}

// divide divides what the claim may use among its own calls, where they are of several shares of a limit.
func (s *shares) divide(c *candidates) {
	h := c.head
	for place, count := range h.withShares() {
		l, q := h.limits[place], h.Admission[place]
		turns := s.of(count.Of, l)
		h.shares[count.Of] = &part{turns: turns, span: count.Use.Rate.Span()}
		if own := c.waiting(count.Of, l, s.seen[c.queue.Name]); len(own) > 1 {
			units := q.Room[count.Key] + q.Beyond[count.Key]
			h.shares[count.Of].units, h.shares[count.Of].some = turns.Split(count.Use.Rate, own, units, s.used(turns, count)), true
		}
	}
}

// part is what the calls of a claim may use of a limit, by share.
type part struct {
	turns *limit.Turns
	span  time.Duration    // of the limit's window
	some  bool             // they are of several shares
	units map[string]int64 // then: what each may use
	short map[string]held  // and those that had a call which needs more
	lent  map[string]bool  // to which what was left has been given
}

// shareOf is the share of a limit that a flow is of, and what its calls may use of it; nil: there are none.
func (c *candidates) shareOf(f *flow, place int) (string, *part) {
	l := c.head.limits[place]
	if len(l.Shares) == 0 {
		return "", nil
	}
	of := usage.Of{Limit: l.Name}
	if l.PerKey {
		of.Key = f.Key
	}
	return l.Shares.Of(c.queue.Name, f.Rank(), f.Retries()), c.head.shares[of]
}

// shareNames are the shares of its queue's limits that a call of a flow's priority is of, in JSON; nil: they have none.
func (c *candidates) shareNames(priority int16) *string {
	if names, known := c.named[priority]; known {
		return names
	}
	f, of := backlog.Flow{Priority: priority}, map[string]string{}
	for _, l := range c.queue.Limits {
		if name := l.Shares.Of(c.queue.Name, f.Rank(), f.Retries()); name != "" {
			of[l.Name] = name
		}
	}
	var names *string
	if len(of) > 0 {
		text, _ := json.Marshal(of) // of strings
		names = new(string(text))
	}
	c.named[priority] = names
	return names
}

// hasPart reports whether the next call of a flow fits what its shares may use.
func (c *candidates) hasPart(f *flow) bool {
	for i, q := range c.head.Admission {
		name, p := c.shareOf(f, i)
		if p == nil || !p.some || name == "" {
			continue
		}
		if units := q.Units(f.first().Cost); p.units[name] < units {
			if p.short == nil {
				p.short = map[string]held{}
			}
			p.short[name] = held{f.Key, f.first().Cost, f.Priority}
			return false
		}
	}
	return true
}

// tookPart notes that the next call of a flow was chosen.
func (c *candidates) tookPart(f *flow, now time.Time) {
	for i, q := range c.head.Admission {
		if name, p := c.shareOf(f, i); p != nil && name != "" {
			units := q.Units(f.first().Cost)
			p.turns.Took(name, units, now, p.span)
			if p.some {
				p.units[name] -= units
			}
		}
	}
}

// lend gives what is left of the parts to the share whose turn is first among those that have more calls, and reports whether it gave
// something. Where a share's call needs more than there is, the queue waits for that.
func (h *headroom) lend(b *batch) (lent bool) {
	for i, count := range h.counts {
		p := h.shares[count.Of]
		if p == nil || len(p.short) == 0 {
			continue
		}
		q := h.Admission[h.places[i]]
		all := q.Room[count.Key] + q.Beyond[count.Key]
		var names []string
		for name, waits := range p.short {
			switch {
			case !p.lent[name]:
				names = append(names, name)
			case q.Units(waits.cost) <= all:
			case q.PerKey:
				b.blocked = append(b.blocked, waits)
			default:
				b.stuck = &waits
			}
		}
		if p.short = nil; len(names) == 0 || b.stuck != nil {
			continue
		}
		if p.lent == nil {
			p.lent = map[string]bool{}
		}
		// The others keep what they have left: its turn may be first at one limit, and another's at another limit of the queue.
		next := p.turns.First(names)
		p.units[next], p.lent[next], lent = all, true, true
	}
	return lent
}

// note notes what a claim of a queue leaves waiting. Nil: nothing that only limits with shares keep waiting.
func (s *shares) note(c *candidates, queue string, chosen int) {
	seen := sight{at: s.cfg.Now(), lacks: map[usage.Of]map[string]limit.Demand{}}
	if c != nil {
		for place, count := range c.head.withShares() {
			l := c.head.limits[place]
			if wants := c.waiting(count.Of, l, s.seen[queue]); len(wants) > 0 && c.short(count.Of, l, c.head.Admission[place]) {
				seen.lacks[count.Of] = wants
			}
		}
	}
	s.seen[queue] = seen
	unwanted := int64(0)
	for name, units := range s.left[queue] {
		if !seen.wants(name) {
			unwanted += units
		}
	}
	s.freed = s.freed || unwanted > int64(chosen)
	delete(s.left, queue)
}

// wants reports whether calls of a share wait.
func (s sight) wants(name string) bool {
	for _, lacks := range s.lacks {
		if lacks[name].Units > 0 {
			return true
		}
	}
	return false
}

// short reports whether a limit lacks units for some next call.
func (c *candidates) short(of usage.Of, l policy.LockedLimit, q limit.Quota) bool {
	if !l.CountCost {
		return q.Room[of.Key] < 1
	}
	keys := c.keys
	if l.PerKey {
		keys = []string{of.Key}
	}
	return q.Room[of.Key] < 1 || slices.ContainsFunc(keys, func(key string) bool {
		return slices.ContainsFunc(c.of[key], func(f *flow) bool {
			return f.passed < len(f.calls) && q.Room[of.Key] < f.first().Cost
		})
	})
}
