package claim

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/usage"
	"github.com/jackc/pgx/v5"
)

// headroom is what a queue's limits allow now, in all or to each of some keys, and when they allow more.
type headroom struct {
	limit.Admission // in the order of limits
	limits          []policy.LockedLimit
	now             time.Time
	counts          []*usage.Count
	places          []int                  // of these, the places of their limits
	ahead           time.Duration          // see aheadOf
	beyond          map[usage.Of]int64     // what runs may use besides the room
	doors           []door                 // to be probed
	resets          map[usage.Of]time.Time // until when less remains at the API
	shares          map[usage.Of]*part     // of limits that have some
	nextLook        map[usage.Of]time.Time // the earliest moment at which a unit can come free
}

// headroom has a batch count the occupied units of the queue's limits, of those per key for these keys. It needs the limits' locks.
func (c *Claimer) headroom(b *pgx.Batch, s *underLocks, keys []string) *headroom {
	h := &headroom{limits: s.queue.Limits, now: s.now, nextLook: map[usage.Of]time.Time{}, beyond: map[usage.Of]int64{}, shares: map[usage.Of]*part{}, ahead: aheadOf(s.queue.Limits)}
	if s.closes != nil {
		h.ahead = min(h.ahead, s.closes.Sub(s.now)) // then nothing starts any more
	}
	for i, l := range h.limits {
		h.Admission = append(h.Admission, limit.Quota{
			PerKey: l.PerKey, CountCost: l.CountCost, Most: l.MaxCost(), MostOf: l.Overrides,
			Room: map[string]int64{}, Left: map[string]int64{}, Soon: map[string][]limit.Charge{}, Beyond: map[string]int64{}, Paces: map[string]limit.Pace{},
		})
		of := []string{""}
		if l.PerKey {
			of = keys
		}
		for _, key := range of {
			count := usage.New(l, key, s.now, c.clock.gains)
			count.ListAhead(s.now.Add(h.ahead))
			h.counts, h.places = append(h.counts, count), append(h.places, i)
		}
	}
	usage.Read(b, h.counts, s.from)
	return h
}

// overOverride reports whether a call costs more than a limit ever has while an operator's rate is in force: it waits for the
// configured one.
func (h *headroom) overOverride(key string, cost int64) bool {
	return slices.ContainsFunc(h.limits, func(l policy.LockedLimit) bool {
		if _, own := l.Overrides[key]; own && l.PerKey {
			return false
		}
		return l.CountCost && l.Config != nil && cost > l.Rate().Most()
	})
}

// counted works out what the limits allow, once their units are counted.
func (h *headroom) counted(ctx context.Context, db ledger.DB) error {
	if slices.ContainsFunc(h.counts, func(c *usage.Count) bool { return c.At.Before(h.now) }) {
		return errClockSetBack
	}
	if err := usage.AddKnown(ctx, db, h.counts); err != nil {
		return err
	}
	for i, c := range h.counts {
		q, soon := h.Admission[h.places[i]], c.Use.Soon(c.Gained)
		q.Room[c.Key], q.Soon[c.Key] = c.Use.Room(h.now, c.Gained), soon
		for _, freed := range soon {
			q.Room[c.Key] += freed.Units
		}
		next := c.Use.NextLook(h.now, c.Gained)
		if from, paced := h.evenly(c, q); paced {
			next = from
		}
		next = next.Add(-h.ahead / 2) // so that what is given out reaches a worker in time
		if reset, lowered := h.resets[c.Of]; lowered && reset.Before(next) {
			next = reset
		}
		h.nextLook[c.Of] = next
	}
	return nil
}

// aheadOf is how long before they come free a queue's claims give out units. A call that waits for its time at a worker would
// hold a unit of a limit of concurrency.
func aheadOf(limits []policy.LockedLimit) (ahead time.Duration) {
	for i, l := range limits {
		if of := l.Rate().Ahead(); i == 0 || of < ahead {
			ahead = of
		}
	}
	return ahead
}

// errClockSetBack: what started since the claim read the clock may seem to be long over.
var errClockSetBack = errors.New("the clock of Postgres was set back within a claim")

// lacking yields the limits that have no room for a held call, with its key where they are per key.
func (h *headroom) lacking(c held) iter.Seq2[usage.Of, policy.LockedLimit] {
	return func(yield func(usage.Of, policy.LockedLimit) bool) {
		for i, l := range h.limits {
			of, units := usage.Of{Limit: l.Name}, int64(1)
			if l.PerKey {
				of.Key = c.key
			}
			if l.CountCost {
				units = c.cost
			}
			if h.Admission[i].Room[of.Key] < units && !yield(of, l) {
				return
			}
		}
	}
}

// shared is the headroom of the limits that all keys share.
func (h *headroom) shared() *headroom {
	s := &headroom{now: h.now, nextLook: h.nextLook}
	for i, l := range h.limits {
		if !l.PerKey {
			s.limits, s.Admission = append(s.limits, l), append(s.Admission, h.Admission[i])
		}
	}
	return s
}

// wait is how long a held call cannot be admitted. When a unit of a concurrency limit comes free is not known: what frees
// it wakes the dispatchers.
func (h *headroom) wait(c held) (wait time.Duration, known bool) {
	known = true
	for of, l := range h.lacking(c) {
		if l.Window == 0 && l.Missing(h.now, 0) == nil {
			known = false
			continue
		}
		wait = max(wait, MinGap, h.nextLook[of].Sub(h.now))
	}
	return wait, known
}
