package limit

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseAlgorithms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text      string
		algorithm Algorithm
		burst     int64
		zone      string
		want      Rate // nothing: refused
		echo      string
	}{
		{"100/h", SlidingWindow, 0, "", Rate{Units: 100, Window: time.Hour}, "100 per 1h, sliding window"},
		{"10/s", TokenBucket, 100, "", Rate{10, 200 * time.Second, Shape{TokenBucket, "1s", 100, ""}}, "10 per 1s, token bucket, burst 100"},
		{"10_000/1d", FixedWindow, 0, "America/New_York", Rate{10_000, 27 * time.Hour, Shape{FixedWindow, "1d", 0, "America/New_York"}}, "10000 per 1d, fixed window, America/New_York"},
		{"5/mo", FixedWindow, 0, "", Rate{5, 31 * 24 * time.Hour, Shape{FixedWindow, "1mo", 0, ""}}, "5 per 1mo, fixed window, UTC"},
		{"10/s", LeakyBucket, 0, "", Rate{1, 100 * time.Millisecond, Shape{Algorithm: LeakyBucket}}, "1 per 100ms, leaky bucket"},
		{"3/s", LeakyBucket, 0, "", Rate{1, 333334 * time.Microsecond, Shape{Algorithm: LeakyBucket}}, "1 per 333.334ms, leaky bucket"},
		{"1000/s", LeakyBucket, 0, "", Rate{}, "less than 10ms"},
		{"10/s", TokenBucket, 0, "", Rate{}, "a burst of 0"},
		{"1/d", TokenBucket, 1000, "", Rate{}, "a burst of 1000"},
		{"10/2d", FixedWindow, 0, "", Rate{}, "of a calendar"},
		{"10/d", FixedWindow, 0, "Nowhere", Rate{}, "not a time zone"},
		{"0/d", FixedWindow, 0, "", Rate{}, "pause the limit"},
		{"5/mo", SlidingWindow, 0, "", Rate{}, "needs algorithm: fixed_window"},
		{"5/mo", TokenBucket, 5, "", Rate{}, "needs algorithm: fixed_window"},
	} {
		got, err := Parse(c.text, c.algorithm, c.burst, c.zone)
		if c.want.Units == 0 {
			if err == nil || !strings.Contains(err.Error(), c.echo) {
				t.Errorf("%s, %s: %v, %v, want an error with %q", c.text, c.algorithm, got, err, c.echo)
			}
			continue
		}
		if err != nil || got != c.want || got.String() != c.echo {
			t.Errorf("%s, %s: %+v (%s), %v, want %+v (%s)", c.text, c.algorithm, got, got, err, c.want, c.echo)
		}
	}
}

func TestSetKeepsTheAlgorithm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text      string
		algorithm Algorithm
		burst     int64
		to        Rate
		want      string
	}{
		{"10/s", TokenBucket, 100, Rate{Units: 5, Window: time.Second}, "5 per 1s, token bucket, burst 100"},
		{"10/s", LeakyBucket, 0, Rate{Units: 5, Window: time.Second}, "1 per 200ms, leaky bucket"},
		{"10/d", FixedWindow, 0, Rate{Units: 5, Window: time.Hour}, "5 per 1h, fixed window, Asia/Tokyo"},
		{"10/d", FixedWindow, 0, Rate{Units: 5, Shape: Shape{Algorithm: FixedWindow, Period: "1mo"}}, "5 per 1mo, fixed window, Asia/Tokyo"},
		{"10/s", SlidingWindow, 0, Rate{Units: 5, Window: time.Hour}, "5 per 1h, sliding window"},
		{"10/s", SlidingWindow, 0, Rate{Units: 5, Shape: Shape{Algorithm: FixedWindow, Period: "1mo"}}, "needs algorithm"},
		{"10/d", FixedWindow, 0, Rate{Units: 5, Window: 500 * time.Millisecond}, "of a calendar"},
	} {
		r, err := Parse(c.text, c.algorithm, c.burst, "Asia/Tokyo")
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.Set(c.to)
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && got.String() != c.want {
			t.Errorf("%s set to %+v: %s, %v, want %s", r, c.to, got, err, c.want)
		}
	}
}

// Requests whenever there is room, which arrive at once or as late as their until: never more than burst +
// rate x t of them in any t, and, where many wait, nearly so many.
//
//callq:guarantee 1
func TestTokenBucketNeverOver(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		r, err := Parse([]string{"10/s", "1/s", "100/s", "3/10s"}[seed%4], TokenBucket, 1+random.Int64N(40), "")
		if err != nil {
			t.Fatal(err)
		}
		type arrival struct {
			at    time.Time
			units int64
		}
		var arrivals []arrival
		var charges []Charge
		begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		now := begin
		unit := time.Duration(float64(time.Second) / r.perSecond())
		var used int64
		for i := range 600 {
			use := Use{Rate: r, Charges: charges}
			if room := use.Room(now, 0); room > 0 && random.IntN(10) > 0 {
				units := 1 + random.Int64N(room)
				travel := time.Duration(random.Int64N(int64(2 * unit)))
				charges = append(charges, Charge{now.Add(travel), units})
				arrivals = append(arrivals, arrival{now.Add(time.Duration(random.Int64N(int64(travel) + 1))), units})
				used += units
			} else if room == 0 && i%3 == 0 { // which costs most
				switch next := use.NextLook(now, 0); {
				case use.Room(next.Add(2*unit), 0) == 0 && use.Room(next.Add(8*unit), 0) == 0: // it was when all had arrived at once
					t.Fatalf("seed %d, %s: nothing came free at %s", seed, r, next)
				case use.Room(next.Add(-time.Millisecond), 0) > 0:
					t.Fatalf("seed %d, %s: there was room before %s", seed, r, next)
				}
			}
			now = now.Add(time.Duration(random.Int64N(int64(2 * unit))))
			if random.IntN(100) == 0 {
				now = now.Add(time.Duration(random.Int64N(r.Burst)) * unit)
			}
		}
		slices.SortFunc(arrivals, func(a, b arrival) int { return a.at.Compare(b.at) })
		for i, from := range arrivals {
			var sum int64
			for _, to := range arrivals[i:] {
				sum += to.units
				allowed := float64(r.Burst) + float64(r.Units)/r.Span().Seconds()*to.at.Sub(from.at).Seconds()
				if float64(sum) > allowed+1e-6 {
					t.Fatalf("seed %d, %s: %d units within %s, %.3f are allowed", seed, r, sum, to.at.Sub(from.at), allowed)
				}
			}
		}
		if least := 0.3 * now.Sub(begin).Seconds() * r.perSecond(); float64(used) < least {
			t.Errorf("seed %d, %s: %d units were used, at least %.0f could be", seed, r, used, least)
		}
	}
}

// A bucket that was left alone for a while is full; a clock that gained gives nothing for what it gained.
func TestTokenBucketLevel(t *testing.T) {
	t.Parallel()
	r, err := Parse("10/s", TokenBucket, 100, "")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	far := now.Add(time.Hour)
	for _, c := range []struct {
		name    string
		charges []Charge
		gained  time.Duration
		room    int64
		next    time.Duration // roughly, of 1 s / 10
	}{
		{"nothing used", nil, 0, 100, 0},
		{"just used", []Charge{{now, 100}}, 0, 0, 100 * time.Millisecond},
		{"used, and not started", []Charge{{far, 99}}, 0, 1, 0},
		{"more than there is, the rate was lowered", []Charge{{far, 109}}, 0, 0, time.Second},
		{"used 5 s ago", []Charge{{now.Add(-5 * time.Second), 100}}, 0, 49, 0},
		{"used long ago", []Charge{{now.Add(-11 * time.Second), 100}}, 0, 100, 0},
		{"the clock gained 3 s", []Charge{{now.Add(-5 * time.Second), 100}}, 3 * time.Second, 19, 0},
		{"in another order", []Charge{{now, 50}, {now.Add(-5 * time.Second), 60}}, 0, 39, 0},
	} {
		use := Use{Rate: r, Charges: c.charges}
		if got := use.Room(now, c.gained); got != c.room {
			t.Errorf("%s: room for %d, want %d", c.name, got, c.room)
		}
		if got := use.NextLook(now, c.gained).Sub(now); got < c.next || got > c.next+c.next/100+time.Millisecond {
			t.Errorf("%s: next look after %s, want %s", c.name, got, c.next)
		}
	}
}

func TestFixedWindowRoom(t *testing.T) {
	t.Parallel()
	r, err := Parse("10/1d", FixedWindow, 0, "Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	midnight := instant(t, "2026-03-04T23:00:00Z")
	for _, c := range []struct {
		at     time.Time
		gained time.Duration
		since  time.Time
		next   time.Time
	}{
		{midnight.Add(time.Hour), 0, midnight.Add(-time.Minute), midnight.Add(24*time.Hour + time.Minute)},
		{midnight.Add(30 * time.Second), 0, midnight.Add(-24*time.Hour - time.Minute), midnight.Add(time.Minute)}, // the API may be behind
		{midnight.Add(-time.Second), 0, midnight.Add(-24*time.Hour - time.Minute), midnight.Add(time.Minute)},
		{midnight.Add(time.Hour), 2 * time.Hour, midnight.Add(-24*time.Hour - time.Minute), midnight.Add(2*time.Hour + time.Minute)},
	} {
		if got := r.Since(c.at, c.gained); !got.Equal(c.since) {
			t.Errorf("at %s counts what is later than %s, want %s", c.at, got.UTC(), c.since)
		}
		use := Use{Rate: r, Occupied: 10, Freed: midnight}
		if got := use.NextLook(c.at, c.gained); !got.Equal(c.next) {
			t.Errorf("at %s the next look is at %s, want %s", c.at, got.UTC(), c.next)
		}
		if got := use.Room(c.at, c.gained); got != 0 {
			t.Errorf("room for %d", got)
		}
	}
	unknown := Rate{Units: 10, Window: 27 * time.Hour, Shape: Shape{Algorithm: FixedWindow, Period: "1d", Timezone: "Europe/New"}}
	if got := midnight.Sub(unknown.Since(midnight, 0)); got < 27*time.Hour {
		t.Errorf("of an unknown time zone only %s count", got)
	}
}

// A clock that gains all the time fills a bucket later, and never less: else a call that takes all of a burst would wait for ever.
func TestBucketFillsWhileTheClockGains(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	rate, err := Parse("2/10s", TokenBucket, 3, "")
	if err != nil {
		t.Fatal(err)
	}
	const gained = 100 * time.Millisecond
	fills := 15*time.Second + 15*time.Millisecond + gained // by a clock that may run a thousandth too fast
	for _, c := range []struct {
		charges []Charge
		want    int64
	}{
		{nil, 3},
		{[]Charge{{now.Add(-fills), 3}}, 3},
		{[]Charge{{now.Add(-fills + time.Millisecond), 3}}, 2},
		{[]Charge{{now.Add(-2 * fills), 3}, {now.Add(-time.Millisecond), 1}}, 1},
		{[]Charge{{now, 3}}, 0},
	} {
		if got := (Use{Rate: rate, Charges: c.charges}).Room(now, gained); got != c.want {
			t.Errorf("room after %v is %d, want %d", c.charges, got, c.want)
		}
	}
}
