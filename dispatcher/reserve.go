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

// after notes what became of a queue's claim, and says whether that ended reservations of it. A queue that lacked units reserves
// limits; none of them is reserved by another. A limit is reserved for no longer than two of its own windows, and not at all if
// nobody knows for how long: users of a rate per second do not wait for a unit of a rate per hour, or for a call to end. Nor do
// slots wait for long.
func (t reservations) after(queue string, h *headroom, b *batch, now time.Time) (ended bool) {
	if b.stuck == nil || len(b.chosen) > 0 {
		before := len(t)
		maps.DeleteFunc(t, func(_ string, has reservation) bool { return has.queue == queue })
		return len(t) < before
	}
	lacks, wait, ofSlots := h.deficit(*b.stuck)
	for _, l := range h.limits {
		has := t[l.Name].queue == queue
		switch brief := l.Window == 0 && wait <= reserveFor || l.Window > 0 && wait <= 2*l.Rate().Span() && !ofSlots; {
		case len(lacks) == 0 || !lacks[l.Name] && !has:
		case brief:
			t[l.Name] = reservation{queue, now.Add(reserveFor)}
		case has:
			delete(t, l.Name)
		}
	}
	return false
}

// deficit returns the limits shared by all keys that have no room for a held call, if it may never get all units at once: there
// are several, or they count cost. wait is until units of each rate among them come free. ofSlots means that calls at once are
// among them: nobody knows how long a call runs.
func (h *headroom) deficit(c held) (lacks map[string]bool, wait time.Duration, ofSlots bool) {
	lacks = map[string]bool{}
	shared := 0
	for i, l := range h.limits {
		if l.PerKey {
			continue
		}
		shared++
		units, free := int64(1), h.next[limitKey{l.Name, ""}].Sub(h.now)
		if l.CountCost {
			units, free = c.cost, l.Rate().Span()
			shared++ // one alone may be enough
		}
		if h.Admission[i].Room[""] >= units {
			continue
		}
		lacks[l.Name] = true
		if l.Window == 0 {
			ofSlots = true
		} else {
			wait = max(wait, free)
		}
	}
	if shared < 2 {
		return nil, 0, false
	}
	return lacks, wait, ofSlots
}
