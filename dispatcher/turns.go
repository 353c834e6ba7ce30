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

// take notes that a queue, none of whose limits is another's turn, was not served for want of units of these.
func (t turns) take(queue string, short []string, now time.Time) {
	for name, has := range t {
		if has.queue == queue {
			t[name] = turn{queue, now.Add(turnFor)}
		}
	}
	for _, name := range short {
		t[name] = turn{queue, now.Add(turnFor)}
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
	if short := h.short(*b.stuck); len(short) > 0 {
		t.take(queue, short, now)
	}
	return false
}

// short are the limits shared by keys that have no room for a held call, where they may never have it all at
// once: there are several, or they count cost.
func (h *headroom) short(c held) (names []string) {
	shared := 0
	for i, l := range h.limits {
		if l.PerKey {
			continue
		}
		units := int64(1)
		shared++
		if l.CountCost {
			units = c.cost
			shared++ // one alone may be enough
		}
		if h.Admission[i].Room[""] < units {
			names = append(names, l.Name)
		}
	}
	if shared < 2 {
		return nil
	}
	return names
}
