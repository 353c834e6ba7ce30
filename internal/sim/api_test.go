package sim

import (
	"fmt"
	"time"
)

// api is the third party: it records what arrives, in true time, and holds it against the limits.
// Of callq it knows the numbers of the limits in force, nothing else.
type api struct {
	w        *world
	limits   map[string]*rateRecord
	requests map[attemptID]*request
	starts   int
	arrived  int
}

type attemptID struct {
	call    int64
	attempt int32
}

func (a attemptID) String() string { return fmt.Sprintf("%d/%d", a.call, a.attempt) }

// rateRecord is a limit as operators have set it, and what arrived under it.
type rateRecord struct {
	name     string
	perKey   bool
	byCost   bool
	versions []rateVersion
	arrivals map[string][]arrival // by key, in order
	running  map[string]map[attemptID]int64
}

type rateVersion struct {
	units  int64
	window time.Duration // 0: at once
}

type arrival struct {
	id    attemptID
	at    time.Duration
	units int64
}

// request is an attempt that has started, and what the API saw of it.
type request struct {
	attemptID
	order     int            // of its start among all
	versions  map[string]int // of the limits, when it started
	limits    []string
	key       string
	cost      int64
	arrivals  int
	answered  bool // with 2xx
	startedAt time.Duration
}

// started notes that an attempt's start was carried out. From then on a lower rate no longer keeps
// it from being sent.
func (a *api) started(id attemptID) {
	if a.requests[id] != nil {
		return
	}
	a.starts++
	c := a.w.calls[id.call]
	r := &request{
		attemptID: id, order: a.starts, versions: map[string]int{}, limits: a.w.set.queue(c.queue).Limits,
		key: c.key, cost: c.cost, startedAt: a.w.now,
	}
	for _, name := range r.limits {
		r.versions[name] = len(a.limits[name].versions) - 1
	}
	a.requests[id] = r
}

// arrive takes a request in, and fails the world where it should not have come.
func (a *api) arrive(id attemptID) *request {
	r := a.requests[id]
	if r == nil {
		a.w.fail("nothing is sent before its start", id.call, "", "attempt %s arrived", id)
	}
	r.arrivals++
	a.arrived++
	a.w.note(id.call, "", "attempt %d arrives at the API", id.attempt)
	if r.arrivals > 1 {
		a.w.fail("an attempt sends one request", id.call, "", "attempt %s arrived %d times", id, r.arrivals)
	}
	for _, name := range r.limits {
		l := a.limits[name]
		key, units := "", int64(1)
		if l.perKey {
			key = r.key
		}
		if l.byCost {
			units = r.cost
		}
		a.w.note(0, name, "%d for key %q: attempt %s, started at %s", units, key, id, r.startedAt)
		l.arrivals[key] = append(l.arrivals[key], arrival{id, a.w.now, units})
		if l.running[key] == nil {
			l.running[key] = map[attemptID]int64{}
		}
		l.running[key][id] = units
		a.check(l, key)
	}
	return r
}

// leave notes that the API is done with a request.
func (a *api) leave(r *request) {
	for _, name := range r.limits {
		for _, running := range a.limits[name].running {
			delete(running, r.attemptID)
		}
	}
}

// check adds up the window that ends now, for each version of the limit. The version that counts is
// the one in force when the last of the window's attempts started: what started under an earlier
// one had been admitted by that.
func (a *api) check(l *rateRecord, key string) {
	for i, v := range l.versions {
		var sum int64
		var lastStarted *request
		count := func(id attemptID, units int64) {
			sum += units
			if r := a.requests[id]; lastStarted == nil || r.order > lastStarted.order {
				lastStarted = r
			}
		}
		if v.window == 0 {
			for id, units := range l.running[key] {
				count(id, units)
			}
		} else {
			list := l.arrivals[key]
			for n := len(list) - 1; n >= 0 && list[n].at > a.w.now-v.window; n-- {
				count(list[n].id, list[n].units)
			}
		}
		if sum > v.units && lastStarted.versions[l.name] == i {
			a.w.fail("no limit is exceeded", 0, l.name, "%d units of %d in %s, key %q", sum, v.units, v.window, key)
		}
	}
}

// inForce notes a rate that an operator's call, which has just returned, has set.
func (a *api) inForce(name string, v rateVersion) {
	l := a.limits[name]
	if n := len(l.versions); n > 0 && l.versions[n-1] == v {
		return
	}
	l.versions = append(l.versions, v)
	a.w.note(0, name, "%d per %s are in force", v.units, v.window)
}

// publish notes the limits that the world begins with.
func (a *api) publish() {
	for _, l := range a.w.set.rules.Limits {
		a.limits[l.Name] = &rateRecord{
			name: l.Name, perKey: l.PerKey, byCost: l.CountCost,
			arrivals: map[string][]arrival{}, running: map[string]map[attemptID]int64{},
		}
		a.inForce(l.Name, rateVersion{l.Rate.Units, l.Rate.Window})
	}
}
