package claim

import (
	"maps"
	"time"

	"github.com/callq/callq/internal/policy"
)

// reservations keep a queue from waiting for ever for limits that it shares. Its next call may need several units at once, while
// other queues take each as it comes free. So the queue reserves what it lacks: others leave that limit alone until the call
// was claimed. Each process sees the same queues wait, and keeps its own reservations. A queue that has to leave one of its
// limits to another is not claimed from, and reserves nothing: no two wait for each other.
type reservations map[string]reservation // by limit

type reservation struct {
	queue string
	until time.Time // a queue that still waits is polled, and reserves again, before
}

const reserveFor = 5 * time.Second

// byOthers returns for how long a queue must leave its limits to others.
func (t reservations) byOthers(queue string, limits []policy.LockedLimit, now time.Time) (wait time.Duration) {
	for _, l := range limits {
		if has := t[l.Name]; has.queue != queue {
			wait = max(wait, has.until.Sub(now))
		}
	}
	return wait
}

// after notes what became of a queue's claim, and reports whether that ended reservations of it. A queue that lacked units reserves
// the limits that all keys share, unless it needs one unit of one. A limit is reserved for no longer than two of its own windows,
// and not at all if it is not known for how long: users of a rate per second do not wait for a unit of a rate per hour, or for a
// call to end. Nor do slots wait for long.
func (t reservations) after(queue string, h *headroom, b *batch, now time.Time) (ended bool) {
	if b.stuck == nil || len(b.chosen) > 0 {
		before := len(t)
		maps.DeleteFunc(t, func(_ string, has reservation) bool { return has.queue == queue })
		return len(t) < before
	}
	h = h.shared() // another key's call may go next
	if len(h.limits) == 1 && !h.limits[0].CountCost {
		return false
	}
	lacks := map[string]bool{}
	wait, known := h.wait(*b.stuck)
	for of, l := range h.lacking(*b.stuck) {
		if lacks[of.Limit] = true; l.CountCost { // all of a window's units, perhaps
			wait = max(wait, l.Rate().Span())
		}
	}
	for _, l := range h.limits {
		has := t[l.Name].queue == queue
		switch brief := l.Window == 0 && wait <= reserveFor || l.Window > 0 && wait <= 2*l.Rate().Span() && known; {
		case !lacks[l.Name] && !has, len(l.Shares) > 0: // their turns see to it
		case brief:
			t[l.Name] = reservation{queue, now.Add(reserveFor)}
		case has:
			delete(t, l.Name)
		}
	}
	return false
}
