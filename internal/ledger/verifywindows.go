package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
)

// windows adds up what one limit gave out, as its attempts start: at each start, what counts by the version that is in
// force then, in its way: where it counts otherwise than the one before, usage was counted anew for it. So what may
// still count is kept, but only while a version is to come that counts otherwise.
type windows struct {
	v        *verifier
	versions history // in which it was in force; while it is taken away, the one before holds what runs on
	now      int     // the version in force; -1: none yet
	tally    *tally
	kept     []spent
	keeps    bool    // a version is to come that counts otherwise
	keptMost int     // when to look through kept
	starting []spent // at the same moment
	use      []LimitUse
	over     []Violation
	overs    int // of the version in force
}

// spent is what an attempt took of a limit.
type spent struct {
	CallID  int64
	Attempt int32
	Key     string
	At      time.Time // its start
	Claimed time.Time
	Ended   *time.Time
	Cost    int64      // what was claimed
	Settled int64      // what was settled, or claimed
	Until   *time.Time // nil: not known yet
}

func (v *verifier) windowsOf(name string) *windows {
	w := v.windows[name]
	if w == nil {
		w = &windows{v: v, versions: slices.DeleteFunc(slices.Clone(v.versions[name]), func(r version) bool { return r.Taken }), now: -1}
		for _, r := range w.versions {
			w.use = append(w.use, LimitUse{Limit: r.Limit, Version: r.Version, From: r.From, Rate: r.Rate, Window: r.Window, Shape: r.Shape})
		}
		v.windows[name] = w
	}
	return w
}

// enter adds an attempt. It is called in the order of the starts.
func (w *windows) enter(a *attempt, until *time.Time) {
	if len(w.starting) > 0 && !w.starting[0].At.Equal(a.At) {
		w.flush()
	}
	w.starting = append(w.starting, spent{a.CallID, a.Attempt, a.Key, a.At, a.Claimed, a.Finished, a.Cost, a.really(), until})
}

// flush counts what started at one moment, all of it together.
func (w *windows) flush() {
	if len(w.starting) == 0 {
		return
	}
	t := w.starting[0].At
	w.inForceAt(t)
	if w.tally == nil { // before the first version
		w.kept, w.starting = append(w.kept, w.starting...), w.starting[:0]
		return
	}
	w.tally.advance(t)
	for _, s := range w.starting {
		w.tally.enter(s)
	}
	for _, s := range w.starting {
		w.judge(s)
	}
	if w.keeps {
		w.kept = append(w.kept, w.starting...)
		w.forget(t)
	}
	w.starting = w.starting[:0]
}

// inForceAt goes on to the version that is in force at t.
func (w *windows) inForceAt(t time.Time) {
	now := w.versions.at(t)
	if now == w.now {
		return
	}
	w.now, w.overs = now, 0
	r := w.versions[now]
	w.keeps = slices.ContainsFunc(w.versions[now+1:], func(later version) bool { return formOf(later) != formOf(r) })
	if w.tally != nil && w.tally.form == formOf(r) {
		return
	}
	w.tally = newTally(r, w.v.gains)
	for _, s := range w.kept {
		w.tally.advance(s.At)
		w.tally.enter(s)
	}
	if !w.keeps {
		w.kept = nil
	}
}

// forget drops what counts in no window any more of the versions to come.
func (w *windows) forget(t time.Time) {
	if len(w.kept) < max(w.keptMost, 1000) {
		return
	}
	var reach time.Duration
	for _, r := range w.versions[w.now:] {
		reach = max(reach, r.Window)
	}
	since := t.Add(-reach - w.v.gains.All())
	w.kept = slices.DeleteFunc(w.kept, func(s spent) bool { return s.Until != nil && s.Until.Before(since) })
	w.keptMost = 2 * len(w.kept)
}

// judge holds one start against the version in force. What came before and what after is not to be told of a time that a clock
// which was set back showed twice.
func (w *windows) judge(s spent) {
	if w.v.since != nil && s.At.Before(*w.v.since) {
		return
	}
	r, use := w.versions[w.now], &w.use[w.now]
	if w.v.shownTwice(s.At) {
		use.Starts++
		return
	}
	known, settled, key := w.tally.taken(s)
	most, own := r.Overrides[key]
	if !own {
		most = r.inForce().Most()
		use.Most, use.MostSettled = max(use.Most, known), max(use.MostSettled, settled)
	}
	use.Starts++
	if r.CountCost {
		use.Above += max(0, s.Settled-s.Cost)
	}
	if known <= most {
		return
	}
	if w.overs++; w.overs > violationsMost {
		return
	}
	detail := fmt.Sprintf("started at %s as number %d of %d", stamp(s.At), known, most)
	if key != "" {
		detail += " for key " + key
	}
	w.over = append(w.over, Violation{Limit: r.Limit, CallID: s.CallID, Attempt: s.Attempt, Detail: detail})
}

// uses are what the versions saw, of those that were in force since.
func (w *windows) uses() []LimitUse {
	if w.v.since == nil {
		return w.use
	}
	return w.use[min(max(w.versions.at(*w.v.since), 0), len(w.use)):]
}

// form is how a version counts, whatever its rate is; of a token bucket how fast it fills, too.
type form struct {
	window         time.Duration
	shape          limit.Shape
	units          int64
	perKey, byCost bool
}

func formOf(r version) form {
	f := form{window: r.Window, shape: r.Shape, perKey: r.PerKey, byCost: r.CountCost}
	f.shape.Burst = 0
	if r.Shape.Algorithm == limit.TokenBucket {
		f.units = r.Rate
	}
	return f
}
