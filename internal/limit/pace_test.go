package limit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Whatever the order in which requests arrive and however long that takes, no window of the gap holds more units than the room.
func TestPaceNeverOver(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 40))
		p := Pace{Room: 1 + random.Int64N(5), Gap: time.Duration(1+random.Int64N(50)) * time.Millisecond}
		type sent struct {
			*Taken
			arrives, known time.Time
		}
		var arrivals []sent
		var open []sent
		now := time.Now()
		learn := func() { // the next that becomes known
			next := slices.MinFunc(open, func(a, b sent) int { return a.known.Compare(b.known) })
			open = slices.DeleteFunc(open, func(s sent) bool { return s.Taken == next.Taken })
			now = slices.MaxFunc([]time.Time{now, next.known}, time.Time.Compare)
			p.Arrived(next.Taken, next.known, next.known)
		}
		for range 300 {
			units := 1 + random.Int64N(p.Room)
			at, known := p.Turn(units)
			for ; !known; at, known = p.Turn(units) {
				learn()
			}
			now = slices.MaxFunc([]time.Time{now, at}, time.Time.Compare)
			taken, since := p.Take(units, now)
			if since.After(now) {
				t.Fatalf("seed %d: what has passed by %s had passed by %s", seed, now, since)
			}
			if random.IntN(10) == 0 {
				p.Unsent(taken)
				continue
			}
			arrives := now.Add(time.Duration(random.Int64N(int64(40 * time.Millisecond))))
			s := sent{taken, arrives, arrives.Add(time.Duration(random.Int64N(int64(40 * time.Millisecond))))}
			arrivals, open = append(arrivals, s), append(open, s)
		}
		for _, from := range arrivals {
			units := int64(0)
			for _, a := range arrivals {
				if in := a.arrives.Sub(from.arrives); in >= 0 && in < p.Gap {
					units += a.units
				}
			}
			if units > p.Room {
				t.Fatalf("seed %d: %d units within %s, room for %d", seed, units, p.Gap, p.Room)
			}
		}
	}
}

// Only narrow windows have runs.
func TestGap(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		rate      string
		algorithm Algorithm
		burst     int64
		room      int64
		want      time.Duration
	}{
		{"100/s", LeakyBucket, 0, 1, 10*ms + 10*time.Microsecond},
		{"1 per 10ms, leaky bucket, tolerance 50ms", LeakyBucket, 0, 5, 60*ms + 60*time.Microsecond},
		{"1 per 10ms, leaky bucket, tolerance 50ms", LeakyBucket, 0, 4, 0},
		{"101/s", SlidingWindowCounter, 0, 1, 10*ms + 10*time.Microsecond},
		{"2/s", LeakyBucket, 0, 1, 500*ms + 500*time.Microsecond},
		{"10/100ms", SlidingWindow, 0, 7, 0},
		{"10/100ms", SlidingWindow, 0, 8, 100*ms + 100*time.Microsecond},
		{"100/s", SlidingWindow, 0, 4, 0},
		{"5/s", "", 0, 0, 0},
		{"1/m", LeakyBucket, 0, 1, 0},
		{"100/s", TokenBucket, 5, 3, 30*ms + 31*time.Microsecond},
		{"100/s", TokenBucket, 100, 3, 0},
		{"100/s", FixedWindow, 0, 4, 0},
	} {
		r, err := Parse(c.rate, c.algorithm, c.burst, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Gap(c.room); got != c.want {
			t.Errorf("%s with room for %d: %s, want %s", r, c.room, got, c.want)
		}
	}
}
