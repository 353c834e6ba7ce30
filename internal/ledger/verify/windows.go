package verify

import (
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
)

// windows adds up one limit's attempts in the order of their starts, and judges each start by the version in force. When a
// version counts in another form than the one before, callq counts all usage anew; so there is a tally of each form, from
// the first attempt on.
type windows struct {
	v        *verifier
	versions history  // without removals: while a limit is removed, the version before counts what still runs
	now      int      // the version in force; -1: none yet
	tallies  []*tally // of the versions: of one form they share one
	counting []*tally // those of the version in force and of later ones
	starting []spent  // at the same moment
	use      []LimitUse
}

// spent is an attempt that consumed units of a limit.
type spent struct {
	attempt
	Until *time.Time // nil: not known yet
}

func (v *verifier) windowsOf(name string) *windows {
	if w := v.windows[name]; w != nil {
		return w
	}
	w := &windows{v: v, now: -1}
	for _, r := range v.versions[name] {
		if r.Removed {
			continue
		}
		if i := slices.IndexFunc(w.versions, r.countsAs); i >= 0 {
			w.tallies = append(w.tallies, w.tallies[i])
		} else {
			w.tallies = append(w.tallies, newTally(r, v.gains))
		}
		w.versions = append(w.versions, r)
		w.use = append(w.use, LimitUse{Limit: r.Limit, Version: r.Version, From: r.From, Rate: r.Rate, Window: r.Window, Shape: r.Shape})
	}
	w.counting = distinct(w.tallies)
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
	if now := w.versions.at(t); now != w.now {
		w.now, w.counting = now, distinct(w.tallies[now:])
	}
	for _, tally := range w.counting {
		tally.advance(t)
		for _, s := range w.starting {
			tally.enter(s)
		}
	}
	if w.now >= 0 && (w.v.since == nil || !t.Before(*w.v.since)) {
		for _, s := range w.starting {
			w.judge(s)
		}
	}
	w.starting = w.starting[:0]
}

// judge compares the window that ends with a start with the version in force.
func (w *windows) judge(s spent) {
	r, use := w.versions[w.now], &w.use[w.now]
	use.Starts++
	if shownTwice(w.v.losses, s.At) { // what came before it is unknown
		return
	}
	claimed, reported, key := w.tallies[w.now].countsWith(s)
	most, has := r.Overrides[key]
	if !has {
		most = r.inForce().Most()
		use.Most, use.MostSettled = max(use.Most, claimed), max(use.MostSettled, reported)
	}
	if r.CountCost {
		use.Above += max(0, s.reported()-s.Cost)
	}
	if claimed <= most {
		return
	}
	detail := fmt.Sprintf("started at %s as number %d of %d", stamp(s.At), claimed, most)
	if key != "" {
		detail += " for key " + key
	}
	w.v.found("no window holds more than the rate", Violation{Limit: r.Limit, CallID: s.CallID, Attempt: s.Attempt, Detail: detail})
}

// uses are what the versions saw that were in force since Options.Since.
func (w *windows) uses() []LimitUse {
	if w.v.since == nil {
		return w.use
	}
	return w.use[min(max(w.versions.at(*w.v.since), 0), len(w.use)):]
}

// countsAs reports whether two versions count in one form, whatever their rates are. A token bucket's form includes how
// fast it fills.
func (r version) countsAs(other version) bool {
	a, b := r.Shape, other.Shape
	a.Burst, b.Burst = 0, 0
	return a == b && r.Window == other.Window && r.PerKey == other.PerKey && r.CountCost == other.CountCost &&
		(a.Algorithm != limit.TokenBucket || r.Rate == other.Rate)
}

func distinct(tallies []*tally) (set []*tally) {
	for _, t := range tallies {
		if !slices.Contains(set, t) {
			set = append(set, t)
		}
	}
	return set
}
