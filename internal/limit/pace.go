package limit

import (
	"slices"
	"time"
)

// A run is calls that one claim gives one worker, more than a limit has room for: the worker lets them through one after another, as
// soon as those before them have arrived and their units are free again. A unit's way through a claim takes longer than a narrow window.

const (
	// RunFor is for how long a run goes on, about: a call that is more urgent waits for so long.
	RunFor = 2 * time.Second
	// SharedRunFor is the same where the limit has shares: a call of another waits for so long.
	SharedRunFor = RunFor / 8
	// RunLate is how much later than its worker expects the turn of a run's call may come. Others go back.
	RunLate = 500 * time.Millisecond

	// AskedAheadSQL is how long before its turn the start of a run's call is asked for, at most. Its turn is known once it has ended.
	AskedAheadSQL = `interval '200 ms'`

	runEnds = 200 * time.Millisecond // after about so long its end would have been told

	runBelow = time.Second // windows as long or longer lose little to the way through a claim
)

// Gap is how long after it has arrived a unit of a run may be used again, if the claim had room for so many; 0: the rate has no runs.
// The worker is then to the run what a claim is to a sliding window: see [Pace].
func (r Rate) Gap(room int64) time.Duration {
	if room <= 0 {
		return 0
	}
	return r.Algorithm.rules().gap(r, room)
}

// A run goes on with the units that the claim found free, so these must be most of them.
func (slidingWindow) gap(r Rate, room int64) time.Duration {
	if r.Window == 0 || r.Window >= runBelow || 4*room < 3*r.Units {
		return 0
	}
	return r.Window + Margin(r.Window)
}

func (fixedWindow) gap(Rate, int64) time.Duration { return 0 }

// A bucket of burst b that fills at a rate allows b + rate x t in any t. The run had room of it. With room in any room/rate, it uses at
// most room + rate x t in any t: with what the others had used at its claim, that is what the bucket allows.
func (tokenBucket) gap(r Rate, room int64) time.Duration {
	each := time.Duration(float64(r.Span()) / float64(r.Units))
	if time.Duration(r.Burst)*each >= runBelow {
		return 0
	}
	fill := time.Duration(room) * each
	return fill + Margin(fill) + time.Microsecond
}

// Pace lets the calls of a run through: at most Room units in any Gap. It is a sliding window by one worker's monotonic clock: a unit
// counts until Gap has passed since the latest moment at which its request can have arrived.
type Pace struct {
	Room int64
	Gap  time.Duration

	taken []*Taken  // that still count
	since time.Time // by Postgres's clock: what has passed had done so by then
}

// Taken is units of a Pace that a call took.
type Taken struct {
	units  int64
	until  time.Time // the latest moment at which they can arrive; zero: not known yet
	ledger time.Time // the same by Postgres's clock
}

// Turn is when so many units may be taken, if nothing else takes any; zero: at once. Not known: not before more has arrived.
func (p *Pace) Turn(units int64) (at time.Time, known bool) {
	slices.SortStableFunc(p.taken, func(a, b *Taken) int {
		switch {
		case a.until.IsZero() == b.until.IsZero():
			return a.until.Compare(b.until)
		case a.until.IsZero():
			return 1
		}
		return -1
	})
	left := p.Room - units
	for _, t := range slices.Backward(p.taken) {
		if left -= t.units; left < 0 {
			return t.until.Add(p.Gap), !t.until.IsZero()
		}
	}
	return time.Time{}, true
}

// Take takes units, whose turn has come by now. since is when it had, by Postgres's clock, at the latest: what has passed before
// had passed by then. Zero: nothing has.
func (p *Pace) Take(units int64, now time.Time) (t *Taken, since time.Time) {
	p.taken = slices.DeleteFunc(p.taken, func(t *Taken) bool {
		passed := !t.until.IsZero() && !now.Before(t.until.Add(p.Gap))
		if at := t.ledger.Add(p.Gap); passed && at.After(p.since) {
			p.since = at
		}
		return passed
	})
	t = &Taken{units: units}
	p.taken = append(p.taken, t)
	return t, p.since
}

// Arrived notes until when what was taken can arrive, by the worker's clock and by Postgres's. It only becomes earlier.
func (p *Pace) Arrived(t *Taken, until, ledger time.Time) {
	if t.until.IsZero() || until.Before(t.until) {
		t.until, t.ledger = until, ledger
	}
}

// Unsent gives back what was taken and never sent.
func (p *Pace) Unsent(t *Taken) {
	p.taken = slices.DeleteFunc(p.taken, func(other *Taken) bool { return other == t })
}
