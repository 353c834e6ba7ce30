package verify

import (
	"container/heap"
	"fmt"
	"math"
	"time"

	"github.com/callq/callq/internal/limit"
)

// windows adds up one limit's attempts in the order of their starts, and judges each start by the version in force. When a
// version counts in another form, callq counts all usage anew; so there is a tally of each form, from the first attempt on.
type windows struct {
	v        *verifier
	versions history // without removals: while a limit is removed, the version before counts what still runs
	tallies  map[form]*tally
	starting []spent // at the same moment
	use      []LimitUse
}

// spent is an attempt that consumed units of a limit.
type spent struct {
	attempt
	Until *time.Time // nil: not known yet
}

// form is how a version counts, whatever its rate is. A token bucket's form includes how fast it fills.
type form struct {
	limit.Rate
	perKey, countCost bool
}

func (r version) form() form {
	f := form{r.Rate, r.PerKey, r.CountCost}
	if f.Burst = 0; f.Algorithm != limit.TokenBucket {
		f.Units = 0
	}
	return f
}

func (v *verifier) windowsOf(name string) *windows {
	if w := v.windows[name]; w != nil {
		return w
	}
	w := &windows{v: v, tallies: map[form]*tally{}}
	for _, r := range v.versions[name] {
		if r.Removed {
			continue
		}
		if w.tallies[r.form()] == nil {
			w.tallies[r.form()] = newTally(r, v.gains)
		}
		w.versions = append(w.versions, r)
		w.use = append(w.use, LimitUse{Limit: r.Limit, Version: r.Version, From: r.From, Rate: r.Rate})
	}
	v.windows[name] = w
	return w
}

// enter adds an attempt. Callers add attempts in the order of their starts.
func (w *windows) enter(a *attempt, until *time.Time) {
	if len(w.starting) > 0 && !w.starting[0].At.Equal(a.At) {
		w.flush()
	}
	w.starting = append(w.starting, spent{*a, until})
}

// flush counts the attempts that started at one moment together.
func (w *windows) flush() {
	if len(w.starting) == 0 {
		return
	}
	t := w.starting[0].At
	for _, tally := range w.tallies {
		tally.advance(t)
		for _, s := range w.starting {
			tally.enter(s)
		}
	}
	if now := w.versions.at(t); now >= 0 && (w.v.since == nil || !t.Before(*w.v.since)) {
		for _, s := range w.starting {
			if !s.unsure() { // when it was sent, if it was, is not known
				w.judge(s, w.versions[now], &w.use[now])
			}
		}
	}
	w.starting = w.starting[:0]
}

// judge compares the window that ends with a start with the version in force.
func (w *windows) judge(s spent, r version, use *LimitUse) {
	use.Starts++
	if shownTwice(w.v.losses, s.At) { // what came before it is unknown
		return
	}
	units, key := w.tallies[r.form()].countsWith(s)
	most, has := r.Overrides[key]
	if !has {
		most = r.Rate.Most()
		use.Most = max(use.Most, units)
	}
	if r.CountCost {
		use.Above += max(0, s.reported()-s.Cost)
	}
	if units <= most {
		return
	}
	detail := fmt.Sprintf("started at %s as number %d of %d", s.At.UTC(), units, most)
	if key != "" {
		detail += " for key " + key
	}
	w.v.found(Violation{
		Rule: "no window holds more than the rate", Limit: r.Limit, CallID: s.CallID, Attempt: s.Attempt, Detail: detail,
	})
}

// tally is what a limit counts, in one form, as time goes on.
//
// An attempt counts with its claimed cost until it ends, and then with the lower of its claimed and reported cost: the last
// claim of a window came before its own start, so it counted each other attempt with at least that. Fixed windows and token
// buckets count the lower cost from the start on.
//
// A sliding window counts an attempt until a window after its until, a fixed window until the end of the calendar window that
// holds its until. Both count it longer by what Postgres's clock gained meanwhile. A token bucket counts the most it lacked:
// for each moment s in the window it adds what had started by now and has an until of s or later, and subtracts what has
// filled in since s.
//
// In a run the worker gives the turns, one after another has arrived. What is not known to have had one is no part of what came before
// another of its run: the worker that was lost had stopped there.
type tally struct {
	version
	gains     limit.Gains
	calendar  *limit.Calendar // of a fixed window of a known time zone
	perSecond float64         // of a token bucket, else 0
	zero      time.Time       // the first start
	keys      map[string]*level
	leaving   leavings
}

// level is what counts of one key. Of a token bucket, units are all that ever started, and over those of which the until
// has passed. best are moments of the last window, by falling value.
type level struct {
	units, over int64
	unsure      map[int64]int64 // units, by their run
	best        []moment
}

type moment struct {
	at    time.Time
	value float64 // what had filled in by then, less what was over before
}

// leaving is when an attempt, or a part of its cost, stops counting.
type leaving struct {
	at     time.Time
	key    string
	units  int64
	unsure *int64 // the run that they are an unsure part of; nil: they are none
}

func newTally(r version, gains limit.Gains) *tally {
	t := &tally{version: r, gains: gains, keys: map[string]*level{}}
	if c, err := limit.ParseCalendar(r.Rate.Period, r.Rate.Timezone); err == nil && r.Rate.Algorithm == limit.FixedWindow {
		t.calendar = &c
	}
	if r.Rate.Algorithm == limit.TokenBucket {
		t.perSecond = float64(r.Rate.Units) / r.Rate.Span().Seconds()
	}
	return t
}

// enter adds what starts now, after advance.
func (t *tally) enter(s spent) {
	if t.zero.IsZero() {
		t.zero = s.At
	}
	key, cost := t.claims(&s.attempt)
	lower := cost
	if t.CountCost {
		lower = min(cost, s.reported())
	}
	leaves := t.leaves(s)
	if t.Rate.Algorithm == limit.FixedWindow || t.perSecond > 0 {
		cost = lower
	} else if leaves != nil && !leaves.After(s.At) {
		return // it was over at once
	}
	of := t.keys[key]
	if of == nil {
		of = &level{}
		t.keys[key] = of
	}
	of.units += cost
	var unsure *int64
	if s.unsure() {
		if unsure = s.Run; of.unsure == nil {
			of.unsure = map[int64]int64{}
		}
		of.unsure[*unsure] += cost
	}
	if leaves == nil {
		return
	}
	if cost > lower && s.Finished != nil && s.Finished.Before(*leaves) {
		heap.Push(&t.leaving, leaving{*s.Finished, key, cost - lower, unsure})
		cost = lower
	}
	heap.Push(&t.leaving, leaving{*leaves, key, cost, unsure})
}

// leaves is the moment from which the attempt does not count; nil: unknown.
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
	default:
		at = at.Add(t.Rate.Window)
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
		switch {
		case of == nil: // it took no unit, and was the last
		case t.perSecond > 0:
			of.pass(l.at, t.filled(l.at, l.at), l.units)
		default:
			if l.unsure != nil {
				of.unsure[*l.unsure] -= l.units
			}
			if of.units -= l.units; of.units == 0 {
				delete(t.keys, l.key)
			}
		}
	}
}

// pass notes that the until of some units has passed.
func (b *level) pass(at time.Time, filled float64, units int64) {
	m := moment{at, filled - float64(b.over)}
	for len(b.best) > 0 && b.best[len(b.best)-1].value <= m.value {
		b.best = b.best[:len(b.best)-1]
	}
	b.best = append(b.best, m)
	b.over += units
}

// countsWith is what counts at a start, with all else that entered at its moment.
func (t *tally) countsWith(s spent) (units int64, key string) {
	key, _ = t.claims(&s.attempt)
	of := t.keys[key]
	switch {
	case of == nil:
		return 0, key
	case t.perSecond > 0:
		units = of.lacks(t.filled(s.At, s.Claimed), s.At.Add(-t.Rate.Window))
	default:
		units = of.units
	}
	if s.Run != nil {
		units -= of.unsure[*s.Run]
	}
	return units, key
}

// lacks is the most that a token bucket lacked over the moments since then.
func (b *level) lacks(filled float64, since time.Time) int64 {
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
