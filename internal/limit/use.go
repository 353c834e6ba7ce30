package limit

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"
)

// Use is what is known of a limit at a moment.
type Use struct {
	Rate     Rate
	Occupied int64     // units that cannot be given out now; of a token bucket, see Charges
	Freed    time.Time // the earliest moment that an occupied unit's until can be; zero: none is occupied, or none has started
	Charges  []Charge  // of a token bucket all, of a sliding window those that come free within Rate.Ahead
	Missing  *Missing  // nil: all that was given out is known
}

// Charge is units that were given out together.
type Charge struct {
	Until time.Time // the latest moment at which they can reach the API; far ahead while they have not started
	Units int64
}

// Missing says that units may have been given out which nobody knows of, as after a failover that lost the last commits.
// Whoever gave them out kept to the rate, so together with what was charged by KnownAt they are no more than that.
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
	if u.Rate.Algorithm == TokenBucket {
		return max(0, int64(math.Floor(u.level(now, gained))))
	}
	room := u.Rate.Units - u.Occupied
	if u.Missing != nil {
		room = min(room, u.Missing.Known-(u.Occupied-u.Missing.Former))
	}
	return max(0, room)
}

// Soon is what comes free after now and may be given out already, in that order. Until is when each may be used.
func (u Use) Soon(gained time.Duration) (soon []Charge) {
	if u.Rate.Ahead() == 0 || u.Missing != nil {
		return nil
	}
	over := u.Occupied - u.Rate.Units // as when the limit was lowered: so many come free for nobody
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
	var next time.Time
	switch c, fixed := u.Rate.calendar(); {
	case u.Missing != nil && u.Rate.Window == 0: // nothing is known of it
		return u.Rate.Passed(u.Missing.Until, gained)
	case fixed:
		next = c.End(now.Add(-c.apart() - gained)).Add(c.apart() + gained)
	case u.Rate.Algorithm == TokenBucket:
		next = u.refills(now, gained)
	default:
		next = u.Rate.Passed(cmp.Or(u.Freed, now), gained)
	}
	if u.Missing != nil {
		next = earlier(next, u.Rate.Passed(u.Missing.Until, gained))
	}
	return next
}

// lookBack is how many fill times a token bucket's charges count for. Before that the bucket is taken to have been empty:
// never too much, and too little by at most one burst of the lookBack that came in since.
const lookBack = 20

// level is how many units a token bucket holds at now: the minimum, over each moment s in the window, of
//
//	burst + rate x (now - s) - what has an until of s or later
//
// The proof is that of the sliding window in docs/design.md, with each s in the place of now - W. Clocks may run apart by a
// thousandth, so the rate is less by that, and what Postgres's clock gained fills nothing. Units that are missing left the
// bucket empty when the last of them arrived; what is charged besides came out of it later, whatever a clock says that was
// set back.
func (u Use) level(now time.Time, gained time.Duration) float64 {
	perSecond := u.Rate.perSecond()
	charges, begin := u.Charges, now.Add(-u.Rate.Window)
	if m := u.Missing; m != nil {
		if m.KnownAt == nil || now.Before(m.Until) {
			return 0
		}
		begin = m.Until
		knownBy := m.KnownAt.Add(u.Rate.Bucket()) // buckets of what was charged by KnownAt end no later, all others do
		charges = slices.DeleteFunc(slices.Clone(charges), func(c Charge) bool { return !c.Until.After(knownBy) })
		for i, c := range charges {
			if c.Until.Before(begin) {
				charges[i].Until = begin
			}
		}
	}
	slices.SortFunc(charges, func(a, b Charge) int { return a.Until.Compare(b.Until) })
	level, at := 0.0, begin
	fill := func(until time.Time) {
		if until.After(at) {
			level, at = min(float64(u.Rate.Burst), level+perSecond*until.Sub(at).Seconds()), until
		}
	}
	for _, c := range charges {
		if !c.Until.Before(begin) {
			fill(earlier(c.Until, now))
			level -= float64(c.Units)
		}
	}
	// Whenever the clock gained, the bucket is as full as if that had been since the last charge: it fills that much later.
	level += perSecond * max(0, now.Sub(at).Seconds())
	return min(float64(u.Rate.Burst), level-perSecond*gained.Seconds())
}

func (r Rate) perSecond() float64 { return float64(r.Units) / r.Span().Seconds() * 1000 / 1001 }

// refills is the earliest moment at which the bucket can hold a unit: its level only rises if nobody takes one, and what can
// still arrive may have arrived by now.
func (u Use) refills(now time.Time, gained time.Duration) time.Time {
	u.Charges = slices.Clone(u.Charges)
	for i := range u.Charges {
		u.Charges[i].Until = earlier(u.Charges[i].Until, now)
	}
	const tick = 100 * time.Microsecond
	ticks := sort.Search(int((u.Rate.Window+gained+time.Second)/tick), func(n int) bool {
		return u.level(now.Add(time.Duration(n)*tick), gained) >= 1
	})
	return now.Add(time.Duration(ticks) * tick)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// AheadMost is how long before a unit comes free it is given out, at most.
const AheadMost = 200 * time.Millisecond

// LateMostSQL is ResendMost and AheadMost together, for statements.
const LateMostSQL = `interval '5.2 seconds'`

// Ahead is how long before a unit comes free it may be given out: then it is used once it is free, and not when a claim has
// come that far. A claim costs as much as several calls, and half of this passes between claims, so it is for about sixteen
// units; 0: nobody knows so early.
func (r Rate) Ahead() time.Duration {
	if r.Window == 0 || r.Algorithm == FixedWindow || r.Algorithm == TokenBucket {
		return 0
	}
	const least = 80 * time.Millisecond
	return min(max(16*(r.Window/time.Duration(max(r.Units, 1))), least), AheadMost, r.Window/5)
}

// Bucket is how wide the buckets are in which usage is kept: what a charge's until is rounded up to. Where few units are used,
// narrow ones are no more. A limit that is raised keeps those that it has (bucket_width).
func (r Rate) Bucket() time.Duration {
	switch c, ok := r.calendar(); {
	case ok:
		return c.bucket()
	case r.Algorithm == TokenBucket: // a fortieth of what fills it
		return r.Window / (lookBack * 40)
	case r.Units <= 500:
		return r.Window / 1000
	}
	return r.Window / 200
}

// calendar is a fixed window's. Without its time zone the limit is a sliding window no shorter than any of the calendar's,
// which is stricter.
func (r Rate) calendar() (c Calendar, ok bool) {
	if r.Algorithm != FixedWindow {
		return c, false
	}
	c, err := ParseCalendar(r.Period, r.Timezone)
	return c, err == nil
}

// Since is the moment after which an until counts at now, if Postgres's clock gained so much.
func (r Rate) Since(now time.Time, gained time.Duration) time.Time {
	if c, ok := r.calendar(); ok { // the API may still be in the window before
		return c.Start(now.Add(-c.apart() - gained)).Add(-c.apart())
	}
	return now.Add(-r.Window - Margin(r.Window) - gained)
}

// Passed is the first moment at which an until of t no longer counts, by Since.
func (r Rate) Passed(t time.Time, gained time.Duration) time.Time {
	if c, ok := r.calendar(); ok {
		return c.End(t.Add(c.apart())).Add(c.apart() + gained)
	}
	return t.Add(r.Window + Margin(r.Window) + gained)
}

// KnownSince is the moment after which an until counted beyond doubt for whoever gave units out last, until knownAt. The
// clock of a Postgres that failed over may have been ahead by a second of the one that took over, and a claim by AheadMost.
func (r Rate) KnownSince(knownAt time.Time) time.Time {
	return r.Since(knownAt.Add(time.Second+AheadMost), 0)
}

// Later is when the window begins that is so many after the one that begins at t, or about then if they are many.
func (r Rate) Later(t time.Time, windows float64) time.Time {
	c, ok := r.calendar()
	for ; ok && windows >= 1 && windows < 10_000; windows-- {
		t = c.End(t.Add(-c.apart())).Add(c.apart())
	}
	return t.Add(time.Duration(windows * float64(r.Window)))
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
	Room map[string]int64    // what may be given out
	Soon map[string][]Charge // of that, what comes free later: see Use.Soon
}

// usableAt is when the last unit that was taken may be used, if so much is left; zero: at once. The first to come free is
// the first to be taken. So at any time no more are used than have come free.
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
	if !q.CountCost {
		cost = 1
	}
	return key, cost
}

// Most is the largest number of calls of a key that could be admitted now.
func (a Admission) Most(key string) int64 {
	most := int64(math.MaxInt64)
	for _, q := range a {
		of, _ := q.takes(key, 1)
		most = min(most, q.Room[of])
	}
	return max(0, most)
}

// Fits reports whether every limit has a call's units. shared: a limit that all keys share has not, so other keys are no
// better off.
func (a Admission) Fits(key string, cost int64) (fits, shared bool) {
	fits = true
	for _, q := range a {
		if of, units := q.takes(key, cost); q.Room[of] < units {
			fits, shared = false, shared || !q.PerKey
		}
	}
	return fits, shared
}

// Admit takes a call's units from every limit if it fits, and else takes nothing. It reports what Fits does, and from when on
// the call may be made; zero: at once.
func (a Admission) Admit(key string, cost int64) (at time.Time, ok, shared bool) {
	ok, shared = a.Fits(key, cost)
	for _, q := range a {
		if of, units := q.takes(key, cost); ok {
			q.Room[of] -= units
			at = slices.MaxFunc([]time.Time{at, q.usableAt(of, q.Room[of])}, time.Time.Compare)
		}
	}
	return at, ok, shared
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
