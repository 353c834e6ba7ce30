// Package limit is the arithmetic of limits: until when a request may still arrive, how many units may go now, and when
// the next may.
//
// It is pure: it does no I/O and has no clock of its own. Times are Postgres's clock unless a name differs.
// docs/design.md explains what a limit promises, and why this arithmetic keeps it.
package limit

import (
	"math"
	"slices"
	"time"
)

// Use is what is known of a limit at a moment.
type Use struct {
	Rate     Rate
	Occupied int64 // units that cannot be given out now; of a token bucket, see Charges
	// FirstUntil is the earliest until of an occupied unit, which comes free at Rate.Passed of that; zero: none is occupied, or has started.
	FirstUntil time.Time
	LastSent   time.Time // when the latest of those occupied started or arrived; zero: none has
	Charges    []Charge  // of a token bucket all, of a sliding window those that come free within Rate.Ahead
	InRuns     int64     // of those occupied, what is in runs
	Unsent     int64     // of those occupied, what has not started
	Missing    *Missing  // nil: all that was given out is known
}

// Charge is units that were given out together.
type Charge struct {
	Until time.Time // the latest moment at which they can reach the API; far ahead while they have not started
	Units int64
}

// Missing means that units may have been given out that are not known, as after a failover that lost the last commits.
// The server that gave them out kept to the rate, so together with what was charged by KnownAt they are no more than that.
type Missing struct {
	Until   time.Time  // they had arrived by then
	KnownAt *time.Time // nil: nothing bounds how many they are
	Known   int64      // units that were charged by KnownAt, and counted then (see Rate.KnownSince)
	Former  int64      // of those occupied, what was open then: its units may have been given out again
}

// MissingAt is what may be missing at now of what had arrived by until, or nil if that cannot count any more.
func MissingAt(r Rate, until, knownAt *time.Time, now time.Time, gained time.Duration) *Missing {
	if until == nil || !r.Since(now, gained).Before(*until) {
		return nil
	}
	return &Missing{Until: *until, KnownAt: knownAt}
}

// Room is how many units may be given out now. gained is what Postgres's clock gained of late (see Gains).
func (u Use) Room(now time.Time, gained time.Duration) int64 {
	return u.Rate.Algorithm.rules().room(u, now, gained)
}

// Soon is what comes free after now and may be given out already, in that order. Until is when each may be used.
func (u Use) Soon(gained time.Duration) (soon []Charge) {
	if u.Rate.Ahead() == 0 || u.Missing != nil {
		return nil
	}
	over := u.Occupied - u.Rate.Units // as when the limit was lowered: so many come free unused
	for _, c := range slices.SortedFunc(slices.Values(u.Charges), func(a, b Charge) int { return a.Until.Compare(b.Until) }) {
		if units := min(c.Units, c.Units-over); units > 0 {
			soon = append(soon, Charge{u.Rate.Passed(c.Until, gained), units})
		}
		over -= c.Units
	}
	return soon
}

// NextLook is the earliest moment at which a unit can come free, unless an attempt turns out not to have been sent.
func (u Use) NextLook(now time.Time, gained time.Duration) time.Time {
	if u.Missing != nil && u.Rate.Window == 0 { // nothing is known of it
		return u.Rate.Passed(u.Missing.Until, gained)
	}
	next := u.Rate.Algorithm.rules().next(u, now, gained)
	if u.InRuns > 0 { // the end of the run is told
		rest := u.Rate.Gap(u.Rate.Units) * time.Duration(max(0, u.InRuns-u.Rate.Units)) / time.Duration(u.Rate.Units)
		next = slices.MaxFunc([]time.Time{next, now.Add(rest + runEnds)}, time.Time.Compare)
	}
	if u.Missing != nil {
		next = earlier(next, u.Rate.Passed(u.Missing.Until, gained))
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// AheadMost is how long before a unit comes free it is given out, at most.
const AheadMost = 200 * time.Millisecond

// LateMostSQL is ResendMost, AheadMost and RunLate together, for statements.
const LateMostSQL = `interval '5.7 seconds'`

// Ahead is how long before a unit comes free it may be given out: then it is used once it is free, and not when a claim has
// come that far. A claim costs as much as several calls, and half of this passes between claims, so it is for about sixteen
// units; 0: it is not known so early.
func (r Rate) Ahead() time.Duration { return r.Algorithm.rules().ahead(r) }

// Bucket is how wide the buckets are in which usage is kept: what a charge's until is rounded up to. A limit that is raised
// keeps those that it has (bucket_width).
func (r Rate) Bucket() time.Duration { return r.Algorithm.rules().bucket(r) }

// Since: a charge counts at now if its until is later than this, where Postgres's clock gained so much.
func (r Rate) Since(now time.Time, gained time.Duration) time.Time {
	return r.Algorithm.rules().since(r, now, gained)
}

// Passed is the first moment at which an until of t no longer counts, by Since.
func (r Rate) Passed(t time.Time, gained time.Duration) time.Time {
	return r.Algorithm.rules().passed(r, t, gained)
}

// RecentSince: units with a later until are still lacking, about. A bucket is full before it forgets a charge.
func (r Rate) RecentSince(now time.Time, gained time.Duration) time.Time {
	if r.Returns() == Evenly {
		return now.Add(-gained - time.Duration(float64(r.Burst)/float64(r.Units)*float64(r.Span())))
	}
	return r.Since(now, gained)
}

// KnownSince is the moment after which an until counted beyond doubt for the server that gave units out last, until knownAt. The
// clock of a Postgres that failed over may have been ahead by a second of the one that took over, and a claim by AheadMost.
func (r Rate) KnownSince(knownAt time.Time) time.Time {
	return r.Since(knownAt.Add(time.Second+AheadMost), 0)
}

// Admission gives out what a queue's limits still allow, call by call. All limits admit a call, or none is charged.
type Admission []Quota

// Quota is what a limit still allows, in all or to each key.
type Quota struct {
	PerKey    bool
	CountCost bool             // a call takes its cost, not 1
	Most      int64            // that a call may ever take
	MostOf    map[string]int64 // the same for keys of which it differs

	// By key, or by "" where the limit is not per key.
	Room   map[string]int64    // what may be given out
	Left   map[string]int64    // besides: what others may give out, after that
	Soon   map[string][]Charge // of that, what comes free later: see Use.Soon
	Beyond map[string]int64    // what a run may use besides, each unit once another has come free
	Paces  map[string]Pace     // how a run keeps to that
}

// usableAt is when the last unit that was given out may be used, if so much is left; zero: at once. The first to come free is
// the first to be given out. So at any time no more are used than have come free.
func (q Quota) usableAt(of string, left int64) time.Time {
	for _, c := range slices.Backward(q.Soon[of]) {
		if left < c.Units {
			return c.Until
		}
		left -= c.Units
	}
	return time.Time{}
}

// takes is the units that a call takes of the limit, and of which key.
func (q Quota) takes(key string, cost int64) (string, int64) {
	if !q.PerKey {
		key = ""
	}
	return key, q.Units(cost)
}

// Units is what a call of this cost takes.
func (q Quota) Units(cost int64) int64 {
	if !q.CountCost {
		return 1
	}
	return cost
}

// Most is the largest number of calls of a key that could be admitted now.
func (a Admission) Most(key string) int64 {
	most := int64(math.MaxInt64)
	for _, q := range a {
		of, _ := q.takes(key, 1)
		most = min(most, q.Room[of]+q.Beyond[of])
	}
	return max(0, most)
}

// Fits reports whether every limit has a call's units. shared: a limit that all keys share has not, so other keys are no
// better off.
func (a Admission) Fits(key string, cost int64) (fits, shared bool) {
	fits = true
	for _, q := range a {
		of, units := q.takes(key, cost)
		if q.Room[of] < units && (q.Room[of]+q.Beyond[of] < units || units > q.Paces[of].Room) {
			fits, shared = false, shared || !q.PerKey
		}
	}
	return fits, shared
}

// Admit takes a call's units from every limit if it fits, and else takes nothing. It reports what Fits does, and from when on
// the call may be made, besides what it lacks; zero: at once.
func (a Admission) Admit(key string, cost int64) (at time.Time, ok, shared bool) {
	ok, shared = a.Fits(key, cost)
	for _, q := range a {
		of, units := q.takes(key, cost)
		if !ok {
			break
		}
		if lacks := units - q.Room[of]; lacks > 0 {
			q.Room[of], q.Beyond[of] = q.Room[of]+lacks, q.Beyond[of]-lacks
		}
		q.Room[of] -= units
		at = slices.MaxFunc([]time.Time{at, q.usableAt(of, q.Room[of]+q.Left[of])}, time.Time.Compare)
	}
	return at, ok, shared
}

// Pace is how the calls of a key are paced in a run; nil: they are not.
func (q Quota) Pace(key string) *Pace {
	of, _ := q.takes(key, 1)
	if p, is := q.Paces[of]; is {
		return &p
	}
	return nil
}

// Lacks reports whether some units of a call that fits have yet to come free.
func (a Admission) Lacks(key string, cost int64) bool {
	return slices.ContainsFunc(a, func(q Quota) bool { of, units := q.takes(key, cost); return q.Room[of] < units })
}

// EndRun lets none of a key's calls go in a run.
func (q Quota) EndRun(of string) {
	delete(q.Beyond, of)
	delete(q.Paces, of)
}

// EndRuns lets no more calls go in runs.
func (a Admission) EndRuns() {
	for _, q := range a {
		clear(q.Beyond)
	}
}

// Exceeds reports whether a call of this cost could never be admitted, and the index of the limit that is why.
func (a Admission) Exceeds(key string, cost int64) (int, bool) {
	for i, q := range a {
		of, units := q.takes(key, cost)
		most, own := q.MostOf[of]
		if !own {
			most = q.Most
		}
		if units > most {
			return i, true
		}
	}
	return 0, false
}
