package ledger

import (
	"container/heap"
	"math"
	"time"

	"github.com/callq/callq/internal/limit"
)

// tally is what counts of a limit, as one form of it counts, while time goes on.
//
// An attempt counts with the cost that was claimed until it ends, and then with what was settled. The claim
// that came last of a window's counted each of the others with that at least, for it came before its own start;
// where more was settled than claimed, with the claimed cost, for it may have been there first. Of a fixed window and a
// token bucket what was settled counts from the start on.
//
// Of a sliding window all counts until it is a window after its until, of a fixed one until the window of the calendar
// ends that it is in; and longer by what Postgres's clock gained between. Of a token bucket it is how far from full it
// was, the most, over each moment s within the window, of what had started by then and has an until of s or later, less
// what came in since s.
type tally struct {
	form      form
	gains     limit.Gains
	calendar  *limit.Calendar // of a fixed window
	never     bool            // of an unknown time zone: as a window that never ends
	perSecond float64         // of a token bucket
	zero      time.Time
	keys      map[string]*level
	leaving   leavings
}

// level is what counts of one key, as claims could know it, and with all that was settled.
type level struct {
	key            string
	known, settled taken
	attempts       int // that count
}

// taken is a sum. Of a token bucket, units are all that had started; before is what of that was over, and best are
// moments of the last window, the greatest first: none later is greater than one before.
type taken struct {
	units, before int64
	best          []moment
}

type moment struct {
	at    time.Time
	value float64 // what had come in by then, less what was over before
}

// leaving is when an attempt, or a part of what it took, counts no longer.
type leaving struct {
	at             time.Time
	of             *level
	known, settled int64
	last           bool // with it the attempt leaves
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

// enter adds what started just now, after advance.
func (t *tally) enter(s spent) {
	if t.zero.IsZero() {
		t.zero = s.At
	}
	cost, settled := int64(1), int64(1)
	if t.form.byCost {
		cost, settled = s.Cost, s.Settled
	}
	least := min(cost, settled)
	leaves := t.leaves(s)
	if t.calendar != nil || t.never || t.perSecond > 0 {
		cost = least
	} else if leaves != nil && !leaves.After(s.At) {
		return // it was over at once
	}
	of := t.keys[t.keyOf(s)]
	if of == nil {
		of = &level{key: t.keyOf(s)}
		t.keys[of.key] = of
	}
	of.known.units += cost
	of.settled.units += settled
	of.attempts++
	if leaves == nil {
		return
	}
	if cost > least && s.Ended != nil && s.Ended.Before(*leaves) {
		heap.Push(&t.leaving, leaving{at: *s.Ended, of: of, known: cost - least})
		cost = least
	}
	heap.Push(&t.leaving, leaving{*leaves, of, cost, settled, true})
}

func (t *tally) keyOf(s spent) string {
	if t.form.perKey {
		return s.Key
	}
	return ""
}

// leaves is from when on the attempt does not count; nil: that is not known, or never.
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

// advance has leave what does not count at now.
func (t *tally) advance(now time.Time) {
	for len(t.leaving) > 0 && !t.leaving[0].at.After(now) {
		l := heap.Pop(&t.leaving).(leaving)
		if l.last {
			l.of.attempts--
		}
		if t.perSecond > 0 {
			came := t.came(l.at, l.at)
			l.of.known.over(l.at, came, l.known)
			l.of.settled.over(l.at, came, l.settled)
			continue
		}
		l.of.known.units -= l.known
		l.of.settled.units -= l.settled
		if l.of.attempts == 0 {
			delete(t.keys, l.of.key)
		}
	}
}

func (b *taken) over(at time.Time, came float64, cost int64) {
	m := moment{at, came - float64(b.before)}
	for len(b.best) > 0 && b.best[len(b.best)-1].value <= m.value {
		b.best = b.best[:len(b.best)-1]
	}
	b.best = append(b.best, m)
	b.before += cost
}

// taken is how much was taken with s, which has entered with all else that started at its moment.
func (t *tally) taken(s spent) (known, settled int64, key string) {
	of := t.keys[t.keyOf(s)]
	if of == nil {
		return 0, 0, t.keyOf(s)
	}
	if t.perSecond == 0 {
		return of.known.units, of.settled.units, of.key
	}
	came, since := t.came(s.At, s.Claimed), s.At.Add(-t.form.window)
	return of.known.ofBucket(came, since), of.settled.ofBucket(came, since), of.key
}

func (b *taken) ofBucket(came float64, since time.Time) int64 {
	for len(b.best) > 0 && b.best[0].at.Before(since) {
		b.best = b.best[1:]
	}
	greatest := came - float64(b.before)
	if len(b.best) > 0 {
		greatest = max(greatest, b.best[0].value)
	}
	return int64(math.Ceil(float64(b.units) - came + greatest - 1e-6))
}

// came is what had come into a token bucket by at: nothing in what Postgres's clock had gained, as far as that was known.
func (t *tally) came(at, known time.Time) float64 {
	passed := at.Sub(t.zero)
	for _, gain := range t.gains {
		if gain.At.After(t.zero) && !gain.At.After(at) && !gain.At.After(known) {
			passed -= gain.By
		}
	}
	return t.perSecond * passed.Seconds()
}

// leavings is a heap of them, the next first.
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
