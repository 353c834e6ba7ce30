package forecast

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Request is a call that was made under a limit.
type Request struct {
	Due   time.Duration // when it could be made, from the beginning
	Key   string        // of a limit per key
	Units float64
	Holds time.Duration // how long it ran
	Fills bool          // when it could be made is not known: it takes units, and its wait is not told
}

// Replayed is what would have come of requests under a limit.
type Replayed struct {
	P50, P99, Longest time.Duration // that they waited
	Most              int64         // of them that waited at once
	Used              float64       // of what the limit had, from the first that was due to the last that started, from 0 to 1; of one per key, of the busiest
}

// Turnaround is how much longer than it had to, at most mostTurnaround, a unit was away each time, so that the median wait under a limit was
// what it was: the way through a claim, a hand-over and a worker, until the request had arrived. A replay under another rate has it too.
func Turnaround(l Limit, own map[string]int64, begin time.Time, requests []Request, median time.Duration) time.Duration {
	low, high := time.Duration(0), mostTurnaround
	for range 12 {
		middle := (low + high) / 2
		if Replay(l, own, begin, requests, middle).P50 > median {
			high = middle
		} else {
			low = middle
		}
	}
	return low
}

const mostTurnaround = time.Second

// Replay has requests made as a limit lets them, in the order in which they were due, all of its units free at the beginning. A unit is away
// for lag longer than it has to (Turnaround). own has the units of keys that have others.
func Replay(l Limit, own map[string]int64, begin time.Time, requests []Request, lag time.Duration) Replayed {
	requests = slices.SortedStableFunc(slices.Values(requests), func(a, b Request) int { return cmp.Compare(a.Due, b.Due) })
	supplies, units, before := map[string]*supply{}, map[string]float64{}, map[string]time.Duration{}
	waits, starts := make([]time.Duration, 0, len(requests)), make([]time.Duration, 0, len(requests))
	var last time.Duration
	for _, r := range requests {
		s := supplies[r.Key]
		if s == nil {
			state := State{Units: float64(l.Rate.Units), Room: float64(l.Rate.Most())}
			if n, is := own[r.Key]; is && l.PerKey {
				state.Units, state.Room = float64(n), float64(n)
			}
			s = newSupply(&l, state, 1, r.Units, false, begin, r.Holds+lag)
			supplies[r.Key] = s
		}
		at := max(r.Due, before[r.Key], s.when(r.Units))
		before[r.Key] = at
		s.take(at, r.Units, r.Holds+lag, lag)
		starts, last = append(starts, at), max(last, at)
		if !r.Fills {
			waits = append(waits, at-r.Due)
		}
		if units[r.Key] += r.Units; l.Rate.Window == 0 {
			units[r.Key] += r.Units * (r.Holds.Seconds() - 1) // seconds of a unit
		}
	}
	result := Replayed{Most: mostAtOnce(requests, starts)}
	for key, n := range units {
		has := float64(l.Rate.Units)
		if own, is := own[key]; is && l.PerKey {
			has = float64(own)
		}
		over := (last - requests[0].Due).Seconds()
		if l.Rate.Window > 0 { // what it begins with, and what comes free
			has = float64(l.Rate.Most()) + has*over/l.Rate.Span().Seconds()
		} else {
			has *= over
		}
		result.Used = max(result.Used, n/max(has, math.SmallestNonzeroFloat64))
	}
	slices.Sort(waits)
	if n := len(waits); n > 0 {
		result.P50, result.P99, result.Longest = waits[n/2], waits[n*99/100], waits[n-1]
	}
	return result
}

// mostAtOnce is how many requests were due and had not started, at most.
func mostAtOnce(requests []Request, starts []time.Duration) (most int64) {
	starts = slices.Sorted(slices.Values(starts))
	begun := 0
	for i, r := range requests {
		for begun < len(starts) && starts[begun] <= r.Due {
			begun++
		}
		most = max(most, int64(i+1-begun))
	}
	return most
}
