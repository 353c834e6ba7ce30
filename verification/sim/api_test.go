package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
)

// api is the third party: it records what arrives, in true time, and holds it against the limits.
// Of callq it knows the numbers of the limits in force, nothing else.
type api struct {
	w        *world
	limits   []*rateRecord
	requests map[attemptID]*request
	answered map[answer]bool
	arrivals []*request // in order
	running  map[*request]bool
	starts   int
	stalled  time.Duration // it stands still until then
	queue    []func()      // what reads the requests that have come meanwhile

	shutUntil time.Duration // it refuses all that it reads until then
	bare      bool          // and does not name that
}

// answer is how the API answered an attempt.
type answer struct {
	callAttempt
	ending
}

// attemptID names an attempt: a server that has lost its last commits gives their numbers out again.
type attemptID struct {
	callAttempt
	epoch string
}

type callAttempt struct {
	call    int64
	attempt int32
}

func (a attemptID) String() string { return fmt.Sprintf("%d/%d of %s", a.call, a.attempt, a.epoch) }

// rateRecord is a limit as operators have set it.
type rateRecord struct {
	name     string
	versions []rateVersion
}

type rateVersion struct {
	units  int64
	window time.Duration // 0: at once
	burst  int64         // of a token bucket, into which units come in a period; else 0
	period time.Duration
	perKey bool
	byCost bool
	queues string // that are under it
}

// request is an attempt that has started, and what the API saw of it.
type request struct {
	attemptID
	order    int            // of its start among all
	versions map[string]int // of the limits, when it started
	limits   []string
	queue    string
	key      string
	cost     int64
	at       time.Duration // when it arrived
	shown    time.Time     // and what Postgres's clock showed
	arrived  int
}

// started notes that an attempt's start was carried out. From then on a lower rate no longer keeps
// it from being sent.
func (a *api) started(id attemptID, c *callRecord, at time.Time, again bool) {
	w := a.w
	if a.requests[id] != nil {
		return
	}
	a.starts++
	r := &request{
		attemptID: id, order: a.starts, versions: map[string]int{}, limits: w.set.queue(c.queue).Limits,
		queue: c.queue, key: c.key, cost: c.cost,
	}
	for _, l := range a.limits {
		r.versions[l.name] = len(l.versions) - 1
	}
	a.requests[id] = r
	w.startedBefore(w.saved)
	switch {
	case again:
	case w.calls[c.id] != c:
		w.fail("what starts is the call it was loaded for", c.id, "", "attempt %s has the data of a call that was lost", id)
	case c.cancelled:
		w.fail("what is cancelled does not start", c.id, "", "attempt %s started", id)
	case w.set.closed(c.queue, at):
		w.fail("nothing starts outside of its queue's hours", c.id, "", "attempt %s started at %s", id, at)
	case w.paused(r):
		w.fail("what is paused does not start", c.id, "", "attempt %s started", id)
	}
}

// arrive takes a request in, and fails the world where it should not have come. settled is what it takes of
// limits by cost; nil: its cost.
func (a *api) arrive(id attemptID, settled *int64) *request {
	r := a.requests[id]
	if r == nil {
		a.w.fail("nothing is sent before its start", id.call, "", "attempt %s arrived", id)
	}
	r.arrived++
	r.at, r.shown = a.w.now, a.w.postgres()
	if settled != nil {
		r.cost = *settled
	}
	a.w.note(id.call, "", "attempt %d arrives at the API", id.attempt)
	if r.arrived > 1 {
		a.w.fail("an attempt sends one request", id.call, "", "attempt %s arrived %d times", id, r.arrived)
	}
	a.arrivals = append(a.arrivals, r)
	a.running[r] = true
	for _, l := range a.limits {
		if l.counts(r, len(l.versions)-1) {
			a.w.note(0, l.name, "%d for key %q: attempt %s", r.cost, r.key, id)
		}
		for i := range l.versions {
			if l.counts(r, i) {
				a.check(l, i, r)
			}
		}
	}
	return r
}

// read has the program read a request: at once, or when it goes on, in the order in which they came.
func (a *api) read(request func()) {
	if a.w.now < a.stalled {
		a.queue = append(a.queue, request)
		return
	}
	request()
}

// standStill stops the program for a while.
func (a *api) standStill(d time.Duration) {
	w := a.w
	until := min(w.now+d, w.set.span)
	if until <= a.stalled || until <= w.now {
		return
	}
	a.stalled = until
	w.note(0, "", "the API stands still until %s", until)
	w.at(until, func() {
		if a.stalled > until {
			return
		}
		w.note(0, "", "the API goes on, and reads %d requests", len(a.queue))
		queue := a.queue
		a.queue = nil
		for _, request := range queue {
			request()
		}
	})
}

// refuseAll has the API refuse all that it reads for a while.
func (a *api) refuseAll(d time.Duration) {
	a.shutUntil, a.bare = min(max(a.shutUntil, a.w.now+d), a.w.set.span), a.w.chance(0.5)
	a.w.note(0, "", "the API refuses everything until %s, and names that: %t", a.shutUntil, !a.bare)
}

// leave notes that the API is done with a request.
func (a *api) leave(r *request) { delete(a.running, r) }

// counts says whether a version of a limit counts a request: it started under the limit, or its queue
// is under it by now.
func (l *rateRecord) counts(r *request, version int) bool {
	return slices.Contains(r.limits, l.name) || strings.Contains(l.versions[version].queues, r.queue+" ")
}

// check adds up the window that ends with an arrival, under one version of a limit. The version that
// counts is the one in force when the last of the window's attempts started: what started under an
// earlier one had been admitted by that.
func (a *api) check(l *rateRecord, version int, last *request) {
	exceeded := a.exceeded(l, version, last, nil)
	if exceeded != "" && a.w.set.queues {
		exceeded = a.exceeded(l, version, last, a.w.assumed())
	}
	if exceeded != "" {
		a.w.fail("no limit is exceeded", 0, l.name, "%s", exceeded)
	}
}

// exceeded says by how much a version of a limit is, not counting requests that had been assumed to have arrived before they did:
// where an API answers nothing for arrive_within, callq assumes that of one request after the other. Of the rest it promises as
// much as ever. The one of them that was claimed last saw all others, for whatever until they have is no earlier than
// their arrival.
func (a *api) exceeded(l *rateRecord, version int, last *request, assumed map[callAttempt]time.Time) string {
	v := l.versions[version]
	var sum int64
	lastStarted := last
	count := func(r *request) {
		if v.perKey && r.key != last.key || !l.counts(r, version) {
			return
		}
		if at, some := assumed[r.callAttempt]; some && at.Before(r.shown) {
			return
		}
		if v.byCost {
			sum += r.cost
		} else {
			sum++
		}
		if r.order > lastStarted.order {
			lastStarted = r
		}
	}
	if v.burst > 0 {
		// At most burst + units x t / period arrive in any time t. What is older than it takes to fill the bucket
		// twenty times no longer counts once a rate was changed.
		for n := len(a.arrivals) - 1; n >= 0 && a.arrivals[n].at > a.w.now-v.window; n-- {
			count(a.arrivals[n])
			if came := float64(v.units) * float64(a.w.now-a.arrivals[n].at) / float64(v.period); float64(sum-v.burst) > came+1e-6 && lastStarted.versions[l.name] == version {
				return fmt.Sprintf("%d units in %s, of %d and %.3f that came in, key %q", sum, a.w.now-a.arrivals[n].at, v.burst, came, last.key)
			}
		}
		return ""
	}
	if v.window == 0 {
		for r := range a.running {
			count(r)
		}
	} else {
		for n := len(a.arrivals) - 1; n >= 0 && a.arrivals[n].at > a.w.now-v.window; n-- {
			count(a.arrivals[n])
		}
	}
	if sum > v.units && lastStarted.versions[l.name] == version {
		return fmt.Sprintf("%d units of %d in %s, key %q", sum, v.units, v.window, last.key)
	}
	return ""
}

// assumed is when attempts counted as arrived without a proof.
func (w *world) assumed() map[callAttempt]time.Time {
	rows, err := w.lane.workers.Query(w.ctx, `SELECT call_id, attempt, arrived_by FROM call_attempts WHERE proof = 'assumed'`)
	w.must(err)
	assumed := map[callAttempt]time.Time{}
	var of callAttempt
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&of.call, &of.attempt, &at}, func() error {
		assumed[of] = at
		return nil
	})
	w.must(err)
	return assumed
}

// inForce notes what an operator's call, which has just returned, has put in force.
func (a *api) inForce(name string, v rateVersion) {
	i := slices.IndexFunc(a.limits, func(l *rateRecord) bool { return l.name == name })
	if i < 0 {
		i = len(a.limits)
		a.limits = append(a.limits, &rateRecord{name: name})
	}
	l := a.limits[i]
	if n := len(l.versions); n > 0 && l.versions[n-1] == v {
		return
	}
	l.versions = append(l.versions, v)
	a.w.note(0, name, "%+v is in force", v)
}

// publish notes the limits of the config, under what operators have set.
func (a *api) publish() {
	for _, l := range a.w.set.rules.Limits {
		a.inForce(l.Name, a.w.version(l))
	}
}

func (w *world) version(l policy.Limit) rateVersion {
	v := rateVersion{units: l.Rate.Units, window: l.Rate.Window, perKey: l.PerKey, byCost: l.CountCost, burst: l.Rate.Burst}
	if v.burst > 0 {
		v.period = spanOf(l)
	}
	if set, ok := w.overrides[l.Name]; ok {
		v.units, v.window, v.burst = set.Units, set.Window, set.Burst
	}
	for _, q := range w.set.rules.Queues {
		if slices.Contains(q.Limits, l.Name) {
			v.queues += q.Name + " "
		}
	}
	return v
}
