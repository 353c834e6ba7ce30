package dispatcher

import (
	"maps"
	"time"
)

// turns keep a queue from waiting for ever for limits that it shares, because its next call needs several units
// or units of several limits at once, and other queues take each as it comes free. What it is short of is its
// turn: others leave that limit alone until it was served. Each process minds its own, and each sees the same
// queues wait. A queue takes none while another has one of any of its limits, so no two wait for each other.
type turns map[string]turn // by limit

type turn struct {
	queue string
	until time.Time // monotonic; a queue that waits still is looked at, and takes it again, before
}

const turnFor = 5 * time.Second

// others says for how long a queue must leave its limits to others.
func (t turns) others(queue string, limits []lockedLimit, now time.Time) time.Duration {
	var wait time.Duration
	for _, l := range limits {
		if has := t[l.Name]; has.queue != queue {
			wait = max(wait, has.until.Sub(now))
		}
	}
	return wait
}

// take notes that a queue, none of whose limits is another's turn, was not served for want of units. A limit is
// left to it for no longer than two of the limit's own windows, and while nobody knows for how long, for none:
// the others of a rate per second do not wait for a unit of a rate per hour, or for a call to end. Nor do slots
// wait for long.
func (t turns) take(queue string, limits []lockedLimit, s shortage, now time.Time) {
	for _, l := range limits {
		has := t[l.Name].queue == queue
		if !s.of[l.Name] && !has {
			continue
		}
		if l.Window == 0 && s.wait <= turnFor || l.Window > 0 && s.wait <= 2*l.rate().Span() && !s.ofSlots {
			t[l.Name] = turn{queue, now.Add(turnFor)}
		} else if has {
			delete(t, l.Name)
		}
	}
}

// end ends the turns of a queue, and says whether it had any.
func (t turns) end(queue string) bool {
	had := false
	maps.DeleteFunc(t, func(_ string, has turn) bool {
		had = had || has.queue == queue
		return has.queue == queue
	})
	return had
}

// after notes what became of a queue's claim, and says whether that ended turns of it.
func (t turns) after(queue string, h *headroom, b *batch, now time.Time) bool {
	if b.stuck == nil || len(b.chosen) > 0 {
		return t.end(queue)
	}
	if s := h.short(*b.stuck); len(s.of) > 0 {
		t.take(queue, h.limits, s, now)
	}
	return false
}

// shortage is what a queue is short of.
type shortage struct {
	of      map[string]bool // limits
	wait    time.Duration   // until units of each rate among them come free
	ofSlots bool            // calls at once are among them: nobody knows how long a call runs
}

// short are the limits shared by keys that have no room for a held call, where it may never have it all at
// once: there are several, or they count cost.
func (h *headroom) short(c held) shortage {
	s := shortage{of: map[string]bool{}}
	shared := 0
	for i, l := range h.limits {
		if l.PerKey {
			continue
		}
		shared++
		units, wait := int64(1), h.next[limitKey{l.Name, ""}].Sub(h.now)
		if l.CountCost {
			units, wait = c.cost, l.rate().Span()
			shared++ // one alone may be enough
		}
		switch {
		case h.Admission[i].Room[""] >= units:
			continue
		case l.Window == 0:
			s.ofSlots = true
		default:
			s.wait = max(s.wait, wait)
		}
		s.of[l.Name] = true
	}
	if shared < 2 {
		return shortage{}
	}
	return s
}
