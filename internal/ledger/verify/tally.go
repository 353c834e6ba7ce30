package verify

import (
	"container/heap"
	"math"
	"time"

	"github.com/callq/callq/internal/limit"
)

// tally is what a limit counts, in one form, as time goes on.
//
// An attempt counts with its claimed cost until it ends, and then with the lower of its claimed and reported cost.
// The last claim of a window came before its own start, so it counted each other attempt with at least that. Fixed
// windows and token buckets count the lower cost from the start on.
//
// A sliding window counts an attempt until a window after its until. A fixed window counts it until the end of the
// calendar window that holds its until. Both count it longer by what Postgres's clock gained meanwhile.
//
// A token bucket counts the most it lacked. For each moment s in the window it adds what had started by now and has an
// until of s or later, and subtracts what has filled in since s; the greatest sum counts.
type tally struct {
	version
	gains     limit.Gains
	calendar  *limit.Calendar // of a fixed window; nil: its time zone is unknown, and its window never ends
	perSecond float64         // of a token bucket, else 0
	zero      time.Time       // the first start
	keys      map[string]*level
	leaving   leavings
}

// level is what counts of one key: as far as claims could know it, and with the reported costs.
type level struct {
	claimed, reported sum
	attempts          int // that count
}

// sum is a number of units. A token bucket's units are all that ever started, and over those of which the until has
// passed. best are moments of the last window, by falling value.
type sum struct {
	units, over int64
	best        []moment
}

type moment struct {
	at    time.Time
	value float64 // what had filled in by then, less what was over before
}

// leaving is when an attempt, or a part of its cost, stops counting.
type leaving struct {
	at                time.Time
	key               string
	claimed, reported int64
	last              bool // the whole attempt stops counting
}

func newTally(r version, gains limit.Gains) *tally {
	t := &tally{version: r, gains: gains, keys: map[string]*level{}}
	switch r.Shape.Algorithm {
	case limit.FixedWindow:
		if c, err := limit.ParseCalendar(r.Shape.Period, r.Shape.Timezone); err == nil {
			t.calendar = &c
		}
	case limit.TokenBucket:
		t.perSecond = float64(r.Rate) / r.inForce().Span().Seconds()
	}
	return t
}

// enter adds what starts now, after advance.
func (t *tally) enter(s spent) {
	if t.zero.IsZero() {
		t.zero = s.At
	}
	key, cost := t.claims(&s.attempt)
	reported := int64(1)
	if t.CountCost {
		reported = s.reported()
	}
	lower := min(cost, reported)
	leaves := t.leaves(s)
	if t.Shape.Algorithm == limit.FixedWindow || t.perSecond > 0 {
		cost = lower
	} else if leaves != nil && !leaves.After(s.At) {
		return // it was over at once
	}
	of := t.keys[key]
	if of == nil {
		of = &level{}
		t.keys[key] = of
	}
	of.claimed.units += cost
	of.reported.units += reported
	of.attempts++
	if leaves == nil {
		return
	}
	if cost > lower && s.Finished != nil && s.Finished.Before(*leaves) {
		heap.Push(&t.leaving, leaving{at: *s.Finished, key: key, claimed: cost - lower})
		cost = lower
	}
	heap.Push(&t.leaving, leaving{*leaves, key, cost, reported, true})
}

// leaves is the moment from which the attempt does not count; nil: unknown, or never.
func (t *tally) leaves(s spent) *time.Time {
	if s.Until == nil {
		return nil
	}
	at := *s.Until
	switch {
	case t.perSecond > 0:
		return &at
	case t.calendar != nil:
		at = t.calendar.End(at)
	case t.Shape.Algorithm == limit.FixedWindow:
		return nil
	default:
		at = at.Add(t.Window)
	}
	for _, gain := range t.gains {
		if gain.At.After(*s.Until) && !gain.At.After(at) {
			at = at.Add(gain.By)
		}
	}
	return &at
}

// advance removes what does not count at now.
func (t *tally) advance(now time.Time) {
	for len(t.leaving) > 0 && !t.leaving[0].at.After(now) {
		l := heap.Pop(&t.leaving).(leaving)
		of := t.keys[l.key]
		if t.perSecond > 0 {
			filled := t.filled(l.at, l.at)
			of.claimed.pass(l.at, filled, l.claimed)
			of.reported.pass(l.at, filled, l.reported)
			continue
		}
		of.claimed.units -= l.claimed
		of.reported.units -= l.reported
		if l.last {
			of.attempts--
		}
		if of.attempts == 0 {
			delete(t.keys, l.key)
		}
	}
}

// pass notes that the until of some units has passed.
func (b *sum) pass(at time.Time, filled float64, units int64) {
	m := moment{at, filled - float64(b.over)}
	for len(b.best) > 0 && b.best[len(b.best)-1].value <= m.value {
		b.best = b.best[:len(b.best)-1]
	}
	b.best = append(b.best, m)
	b.over += units
}

// countsWith is what counts at a start, with all else that entered at its moment.
func (t *tally) countsWith(s spent) (claimed, reported int64, key string) {
	key, _ = t.claims(&s.attempt)
	of := t.keys[key]
	if of == nil {
		return 0, 0, key
	}
	if t.perSecond == 0 {
		return of.claimed.units, of.reported.units, key
	}
	filled, since := t.filled(s.At, s.Claimed), s.At.Add(-t.Window)
	return of.claimed.lacks(filled, since), of.reported.lacks(filled, since), key
}

// lacks is the most that a token bucket lacked over the moments since then.
func (b *sum) lacks(filled float64, since time.Time) int64 {
	for len(b.best) > 0 && b.best[0].at.Before(since) {
		b.best = b.best[1:]
	}
	greatest := filled - float64(b.over)
	if len(b.best) > 0 {
		greatest = max(greatest, b.best[0].value)
	}
	return int64(math.Ceil(float64(b.units) - filled + greatest - 1e-6))
}

// filled is what has come into a token bucket by at. Time that Postgres's clock gained, as far as it was known, fills nothing.
func (t *tally) filled(at, known time.Time) float64 {
	passed := at.Sub(t.zero)
	for _, gain := range t.gains {
		if gain.At.After(t.zero) && !gain.At.After(at) && !gain.At.After(known) {
			passed -= gain.By
		}
	}
	return t.perSecond * passed.Seconds()
}

// leavings is a heap, the earliest first.
type leavings []leaving

func (l leavings) Len() int           { return len(l) }
func (l leavings) Less(i, j int) bool { return l[i].at.Before(l[j].at) }
func (l leavings) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *leavings) Push(x any)        { *l = append(*l, x.(leaving)) }
func (l *leavings) Pop() any {
	last := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return last
}
