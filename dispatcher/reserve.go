package dispatcher

import (
	"maps"
	"time"

	"github.com/callq/callq/internal/policy"
)

// reservations keep a queue from waiting for ever for limits that it shares. Its next call may need several units, or units
// of several limits at once, while other queues take each as it comes free. So the queue reserves what it lacks: others leave
// that limit alone until the call was claimed. Each process keeps its own reservations, and each sees the same queues wait. A
// queue reserves nothing while another has reserved one of its limits, so no two wait for each other.
type reservations map[string]reservation // by limit

type reservation struct {
	queue string
	until time.Time // a queue that still waits is polled, and reserves again, before
}

const reserveFor = 5 * time.Second

// byOthers says for how long a queue must leave its limits to others.
func (t reservations) byOthers(queue string, limits []policy.LockedLimit, now time.Time) time.Duration {
	var wait time.Duration
	for _, l := range limits {
		if has := t[l.Name]; has.queue != queue {
			wait = max(wait, has.until.Sub(now))
		}
	}
	return wait
}

// take reserves limits for a queue that lacked units; none of its limits is reserved by another. A limit is reserved for no
// longer than two of its own windows, and not at all if nobody knows for how long: users of a rate per second do not wait for
// a unit of a rate per hour, or for a call to end. Nor do slots wait for long.
func (t reservations) take(queue string, limits []policy.LockedLimit, s deficit, now time.Time) {
	for _, l := range limits {
		has := t[l.Name].queue == queue
		if !s.of[l.Name] && !has {
			continue
		}
		if l.Window == 0 && s.wait <= reserveFor || l.Window > 0 && s.wait <= 2*l.Rate().Span() && !s.ofSlots {
			t[l.Name] = reservation{queue, now.Add(reserveFor)}
		} else if has {
			delete(t, l.Name)
		}
	}
}

// end ends the reservations of a queue, and says whether it had any.
func (t reservations) end(queue string) bool {
	had := false
	maps.DeleteFunc(t, func(_ string, has reservation) bool {
		had = had || has.queue == queue
		return has.queue == queue
	})
	return had
}

// after notes what became of a queue's claim, and says whether that ended reservations of it.
func (t reservations) after(queue string, h *headroom, b *batch, now time.Time) bool {
	if b.stuck == nil || len(b.chosen) > 0 {
		return t.end(queue)
	}
	if s := h.deficit(*b.stuck); len(s.of) > 0 {
		t.take(queue, h.limits, s, now)
	}
	return false
}

// deficit is what a queue lacks.
type deficit struct {
	of      map[string]bool // limits
	wait    time.Duration   // until units of each rate among them come free
	ofSlots bool            // calls at once are among them: nobody knows how long a call runs
}

// deficit is the limits shared by all keys that have no room for a held call, if it may never get all units at once: there
// are several, or they count cost.
func (h *headroom) deficit(c held) deficit {
	s := deficit{of: map[string]bool{}}
	shared := 0
	for i, l := range h.limits {
		if l.PerKey {
			continue
		}
		shared++
		units, wait := int64(1), h.next[limitKey{l.Name, ""}].Sub(h.now)
		if l.CountCost {
			units, wait = c.cost, l.Rate().Span()
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
		return deficit{}
	}
	return s
}
