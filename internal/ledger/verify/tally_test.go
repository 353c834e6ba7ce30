package verify

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
)

// The running sums are what an oracle adds up by the definitions, moment by moment.
//
//callq:guarantee 6
func TestTally(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		text, algorithm, burst := "3/s", limit.TokenBucket, 1+random.Int64N(5)
		if seed%2 == 0 {
			text, algorithm, burst = "3/10s", limit.FixedWindow, 0
		}
		rate, err := limit.Parse(text, algorithm, burst, "")
		if err != nil {
			t.Fatal(err)
		}
		zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		at := zero
		var list []spent
		for range 40 {
			at = at.Add(time.Duration(random.IntN(40)) * 100 * time.Millisecond)
			s := spent{attempt: attempt{At: at, Cost: 1 + random.Int64N(3)}}
			if random.IntN(10) > 0 {
				s.Until = new(at.Add(time.Duration(random.IntN(30)) * 100 * time.Millisecond))
			}
			list = append(list, s)
		}
		got := countAll(rate, list)
		for i := range list {
			if want := countOne(rate, list, i); got[i] != want {
				t.Fatalf("seed %d, %s, start %d: %d, want %d", seed, rate, i, got[i], want)
			}
		}
	}
}

// countAll is what counts at each start of the sorted list; starts of one moment count together.
func countAll(rate limit.Rate, list []spent) []int64 {
	sums := newTally(version{Rate: rate, Counting: limit.Counting{CountCost: true}}, nil)
	var all []int64
	for i := 0; i < len(list); {
		j := i
		for j < len(list) && list[j].At.Equal(list[i].At) {
			j++
		}
		sums.advance(list[i].At)
		for _, s := range list[i:j] {
			sums.enter(s)
		}
		for _, s := range list[i:j] {
			known, _ := sums.countsWith(s)
			all = append(all, known)
		}
		i = j
	}
	return all
}

func countOne(rate limit.Rate, list []spent, i int) int64 {
	now := list[i].At
	since := func(s time.Time) (sum int64) {
		for _, c := range list {
			if !c.At.After(now) && (c.Until == nil || !c.Until.Before(s)) {
				sum += c.Cost
			}
		}
		return sum
	}
	if rate.Algorithm == limit.FixedWindow {
		return since(now.Truncate(10 * time.Second))
	}
	most := math.Inf(-1)
	moments := []time.Time{now}
	for _, c := range list {
		if c.Until != nil {
			moments = append(moments, *c.Until)
		}
	}
	for _, s := range moments {
		if !s.After(now) && !s.Before(now.Add(-rate.Window)) {
			most = max(most, float64(since(s))-float64(rate.Units)*now.Sub(s).Seconds())
		}
	}
	return int64(math.Ceil(most - 1e-6))
}

// A calendar window ends at midnight of its time zone, and a start whose request may arrive later counts in the next.
func TestTallyOfACalendar(t *testing.T) {
	t.Parallel()
	rate, err := limit.Parse("2/1d", limit.FixedWindow, 0, "America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	midnight := time.Date(2026, 3, 5, 5, 0, 0, 0, time.UTC)
	list := []spent{}
	for _, d := range []time.Duration{-time.Hour, -time.Minute, -time.Second, time.Second, time.Minute} {
		list = append(list, spent{attempt{At: midnight.Add(d), Cost: 1}, new(midnight.Add(d))})
	}
	list[2].Until = new(midnight) // it may have arrived in the next window
	if got := countAll(rate, list); !slices.Equal(got, []int64{1, 2, 3, 2, 3}) {
		t.Errorf("%v", got)
	}
}
