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
	form      form
	gains     limit.Gains
	calendar  *limit.Calendar // of a fixed window
	never     bool            // its time zone is unknown: its window never ends
	perSecond float64         // of a token bucket
	zero      time.Time
	keys      map[string]*level
	leaving   leavings
}

// level is what counts of one key: as far as claims could know it, and with the reported costs.
type level struct {
	key               string
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
	of                *level
	claimed, reported int64
	last              bool // the whole attempt stops counting
}

func newTally(r version, gains limit.Gains) *tally {
	t := &tally{form: formOf(r), gains: gains, keys: map[string]*level{}}
	switch r.Shape.Algorithm {
	case limit.FixedWindow:
		if c, err := limit.ParseCalendar(r.Shape.Period, r.Shape.Timezone); err == nil {
			t.calendar = &c
		} else {
			t.never = true
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
	cost, reported := int64(1), int64(1)
	if t.form.byCost {
		cost, reported = s.Cost, s.Reported
	}
	lower := min(cost, reported)
	leaves := t.leaves(s)
	if t.calendar != nil || t.never || t.perSecond > 0 {
		cost = lower
	} else if leaves != nil && !leaves.After(s.At) {
		return // it was over at once
	}
	of := t.keys[t.keyOf(s)]
	if of == nil {
		of = &level{key: t.keyOf(s)}
		t.keys[of.key] = of
	}
	of.claimed.units += cost
	of.reported.units += reported
	of.attempts++
	if leaves == nil {
		return
	}
	if cost > lower && s.Ended != nil && s.Ended.Before(*leaves) {
		heap.Push(&t.leaving, leaving{at: *s.Ended, of: of, claimed: cost - lower})
		cost = lower
	}
	heap.Push(&t.leaving, leaving{*leaves, of, cost, reported, true})
}

func (t *tally) keyOf(s spent) string {
	if t.form.perKey {
		return s.Key
	}
	return ""
}

// leaves is the moment from which the attempt does not count; nil: unknown, or never.
func (t *tally) leaves(s spent) *time.Time {
	if s.Until == nil || t.never {
		return nil
	}
	at := *s.Until
	switch {
	case t.perSecond > 0:
		return &at
	case t.calendar != nil:
		at = t.calendar.End(at)
	default:
		at = at.Add(t.form.window)
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
		if l.last {
			l.of.attempts--
		}
		if t.perSecond > 0 {
			filled := t.filled(l.at, l.at)
			l.of.claimed.pass(l.at, filled, l.claimed)
			l.of.reported.pass(l.at, filled, l.reported)
			continue
		}
		l.of.claimed.units -= l.claimed
		l.of.reported.units -= l.reported
		if l.of.attempts == 0 {
			delete(t.keys, l.of.key)
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
	of := t.keys[t.keyOf(s)]
	if of == nil {
		return 0, 0, t.keyOf(s)
	}
	if t.perSecond == 0 {
		return of.claimed.units, of.reported.units, of.key
	}
	filled, since := t.filled(s.At, s.Claimed), s.At.Add(-t.form.window)
	return of.claimed.lacks(filled, since), of.reported.lacks(filled, since), of.key
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
