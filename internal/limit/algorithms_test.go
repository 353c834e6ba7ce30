package limit

import (
	"fmt"
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
		{"10/s", TokenBucket, 100, "", Rate{10, 200 * time.Second, Shape{Algorithm: TokenBucket, Period: "1s", Burst: 100}}, "10 per 1s, token bucket, burst 100"},
		{"10_000/1d", FixedWindow, 0, "America/New_York", Rate{10_000, 27 * time.Hour, Shape{Algorithm: FixedWindow, Period: "1d", Timezone: "America/New_York"}}, "10000 per 1d, fixed window, America/New_York"},
		{"5/mo", FixedWindow, 0, "", Rate{5, 31 * 24 * time.Hour, Shape{Algorithm: FixedWindow, Period: "1mo"}}, "5 per 1mo, fixed window, UTC"},
		{"10/s", LeakyBucket, 0, "", Rate{1, 100 * time.Millisecond, Shape{Algorithm: LeakyBucket}}, "1 per 100ms, leaky bucket"},
		{"3/s", LeakyBucket, 0, "", Rate{1, 333334 * time.Microsecond, Shape{Algorithm: LeakyBucket}}, "1 per 333.334ms, leaky bucket"},
		{"1000/s", LeakyBucket, 0, "", Rate{1, time.Millisecond, Shape{Algorithm: LeakyBucket}}, "1 per 1ms, leaky bucket"},
		{"1001/s", LeakyBucket, 0, "", Rate{}, "less than 1ms"},
		{"100/s", SlidingWindowCounter, 0, "", Rate{1, 10102 * time.Microsecond, Shape{Algorithm: SlidingWindowCounter, Period: "1s", Counted: 100}}, "100 per 1s, sliding window counter"},
		{"100 per 1s, sliding window counter", SlidingWindowCounter, 0, "", Rate{1, 10102 * time.Microsecond, Shape{Algorithm: SlidingWindowCounter, Period: "1s", Counted: 100}}, "100 per 1s, sliding window counter"},
		{"1/m", SlidingWindowCounter, 0, "", Rate{1, 2 * time.Minute, Shape{Algorithm: SlidingWindowCounter, Period: "1m", Counted: 1}}, "1 per 1m, sliding window counter"},
		{"2/3600s", SlidingWindowCounter, 0, "", Rate{1, time.Hour, Shape{Algorithm: SlidingWindowCounter, Period: "1h", Counted: 2}}, "2 per 1h, sliding window counter"},
		{"1001/s", SlidingWindowCounter, 0, "", Rate{1, time.Millisecond, Shape{Algorithm: SlidingWindowCounter, Period: "1s", Counted: 1001}}, "1001 per 1s, sliding window counter"},
		{"1002/s", SlidingWindowCounter, 0, "", Rate{}, "less than 1ms"},
		{"1/184d", SlidingWindowCounter, 0, "", Rate{}, "more than 366 days"},
		{"5/mo", SlidingWindowCounter, 0, "", Rate{}, "needs algorithm: fixed_window"},
		{"100 per 1s, sliding window counter", SlidingWindow, 0, "", Rate{}, "not a rate of algorithm: sliding_window"},
		{"100 per 1s, sliding window counter", LeakyBucket, 0, "", Rate{}, "not a rate of algorithm: leaky_bucket"},
		{"1 per 333.334ms, leaky bucket", LeakyBucket, 0, "", Rate{1, 333334 * time.Microsecond, Shape{Algorithm: LeakyBucket}}, "1 per 333.334ms, leaky bucket"},
		{"1 per 10ms, leaky bucket, tolerance much", LeakyBucket, 0, "", Rate{}, "no duration"},
		{"1 per 10ms, leaky bucket, tolerance 2m", LeakyBucket, 0, "", Rate{}, "not from 0 to 1m"},
		{"2 per 10ms, leaky bucket", LeakyBucket, 0, "", Rate{}, "1 per its spacing"},
		{"1 per 1us, leaky bucket", LeakyBucket, 0, "", Rate{}, "one of ms s"},
		{"1 per 10ms, leaky bucket", TokenBucket, 5, "", Rate{}, "not a rate of algorithm: token_bucket"},
		{"100 per 1s, leaky", LeakyBucket, 0, "", Rate{}, "not a rate"},
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
		{"10/s", SlidingWindowCounter, 0, Rate{Units: 5, Window: time.Minute}, "5 per 1m, sliding window counter"},
		{"10/s", SlidingWindowCounter, 0, Rate{Units: 5, Window: 2 * time.Minute, Shape: Shape{Algorithm: LeakyBucket, Tolerance: time.Minute}}, "needs algorithm"},
		{"10/s", SlidingWindowCounter, 0, Rate{1, time.Second, Shape{Algorithm: SlidingWindowCounter, Period: "4s", Counted: 5}}, "5 per 4s, sliding window counter"},
		{"10/s", SlidingWindow, 0, Rate{1, time.Second, Shape{Algorithm: SlidingWindowCounter, Period: "4s", Counted: 5}}, "needs algorithm"},
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

// A tolerance lets as many more come at once as it has spacings. What is echoed reads back as it was.
func TestTolerance(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		text      string
		tolerance time.Duration
		zone      string
		units     int64
		window    time.Duration
		echo      string
	}{
		{"100/s", 0, "", 1, 10 * ms, "1 per 10ms, leaky bucket"},
		{"100/s", 9 * ms, "", 1, 10 * ms, "1 per 10ms, leaky bucket, tolerance 9ms"},
		{"100/s", 10 * ms, "", 2, 20 * ms, "1 per 10ms, leaky bucket, tolerance 10ms"},
		{"100/s", 50 * ms, "", 6, 60 * ms, "1 per 10ms, leaky bucket, tolerance 50ms"},
		{"100/s", 59 * ms, "", 6, 60 * ms, "1 per 10ms, leaky bucket, tolerance 59ms"},
		{"3/s", time.Second, "", 3, 3 * 333334 * time.Microsecond, "1 per 333.334ms, leaky bucket, tolerance 1s"},
		{"1000/s", time.Minute, "", 60_001, 60_001 * ms, "1 per 1ms, leaky bucket, tolerance 1m0s"},
		{"31/mo", 0, "UTC", 1, day, "1 per 1d, leaky bucket, UTC"},
		{"6/d", time.Second, "Europe/Berlin", 1, 270 * time.Minute, "1 per 270m, leaky bucket, Europe/Berlin, tolerance 1s"},
	} {
		shape := Shape{Algorithm: LeakyBucket, Timezone: c.zone, Tolerance: c.tolerance}
		r, err := ParseShape(c.text, shape)
		if want := (Rate{c.units, c.window, shape}); err != nil || r != want || r.String() != c.echo {
			t.Errorf("%s, tolerance %s: %+v (%s), %v, want %+v (%s)", c.text, c.tolerance, r, r, err, want, c.echo)
		}
		again, err := Parse(c.echo, LeakyBucket, 0, "")
		if err != nil || again != r {
			t.Errorf("%s reads back as %+v, %v, want %+v", c.echo, again, err, r)
		}
		unnamed, err := ParseAny(c.echo)
		if err != nil || unnamed != r {
			t.Errorf("%s reads back without its algorithm as %+v, %v, want %+v", c.echo, unnamed, err, r)
		}
		if set, err := r.Set(r); err != nil || set != r {
			t.Errorf("%s set to itself: %+v, %v", r, set, err)
		}
		if set, err := r.Set(Rate{Units: 2, Window: time.Second}); c.zone == "" && (err != nil || set.Tolerance != c.tolerance || set.Window != time.Duration(set.Units)*500*ms) {
			t.Errorf("%s set to 2/s: %+v, %v", r, set, err)
		}
	}
	for _, tolerance := range []time.Duration{-ms, MostTolerance + 1} {
		if r, err := ParseShape("1/s", Shape{Algorithm: LeakyBucket, Tolerance: tolerance}); err == nil {
			t.Errorf("a tolerance of %s: %s", tolerance, r)
		}
	}
}

// A spread of the calendar keeps to its longest window, whatever it is set to. A tolerance is not set.
func TestSetSpread(t *testing.T) {
	t.Parallel()
	spread, err := ParseShape("6/d", Shape{Algorithm: LeakyBucket, Timezone: "Europe/Berlin"})
	if err != nil {
		t.Fatal(err)
	}
	leaky, err := Parse("100/s", LeakyBucket, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		rate     Rate
		to, want string
	}{
		{spread, "3/d", "1 per 9h, leaky bucket, Europe/Berlin"},
		{spread, "31/mo", "1 per 24h5m48.387097s, leaky bucket, Europe/Berlin"},
		{spread, "3/2d", "of a calendar"},
		{leaky, "31/mo", "needs algorithm: fixed_window"},
		{leaky, "1 per 20ms, leaky bucket", "1 per 20ms, leaky bucket"},
		{leaky, "1 per 20ms, leaky bucket, tolerance 50ms", "its tolerance is 0s"},
		{Rate{Units: 5, Window: time.Second}, "1 per 20ms, leaky bucket", "needs algorithm: leaky_bucket"},
	} {
		to, err := ParseAny(c.to)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.rate.Set(to)
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && got.String() != c.want {
			t.Errorf("%s set to %s: %s, %v, want %s", c.rate, c.to, got, err, c.want)
		}
	}
}

// An API with a tolerance, as GCRA is written, refuses nothing that comes as soon as the limit allows it, whatever its gaps. It refuses
// some of what comes with one unit more.
//
//callq:guarantee 1
func TestToleranceNeverOver(t *testing.T) {
	t.Parallel()
	refused := func(seed uint64, more int64) (refused int) {
		random := rand.New(rand.NewPCG(seed, 17))
		s := time.Duration(1+random.Int64N(40)) * time.Millisecond
		tolerance := time.Duration(random.Int64N(int64(10 * s)))
		r, err := ParseShape("1 per "+s.String()+", leaky bucket", Shape{Algorithm: LeakyBucket, Tolerance: tolerance})
		if err != nil {
			t.Fatal(err)
		}
		units := int(r.Units + more)
		var sent []time.Duration
		var expected, now time.Duration // when the API expects the next: its theoretical arrival time
		for range 500 {
			if random.IntN(4) == 0 {
				now += time.Duration(random.Int64N(int64(2 * r.Window)))
			}
			if len(sent) >= units {
				now = max(now, sent[len(sent)-units]+r.Window)
			}
			sent = append(sent, now)
			if now < expected-tolerance {
				refused++
				continue
			}
			expected = max(expected, now) + s
		}
		return refused
	}
	for seed := range uint64(200) {
		if n := refused(seed, 0); n > 0 {
			t.Errorf("seed %d: %d are refused", seed, n)
		}
		if refused(seed, 1) == 0 {
			t.Errorf("seed %d: one unit more is refused nowhere", seed)
		}
	}
}

// An API that estimates from two windows never has more than it allows, wherever its windows begin and whatever the gaps, if none is
// shorter than the limit's. If they are a hundredth shorter, it has.
//
//callq:guarantee 1
func TestSlidingWindowCounterNeverOver(t *testing.T) {
	t.Parallel()
	const window = time.Second
	// estimate is the largest, where a window begins at that moment.
	estimate := func(sent []time.Duration, begins time.Duration) (most float64) {
		counts := map[time.Duration]float64{}
		for _, at := range sent {
			at += window - begins%window
			begin := at.Truncate(window)
			counts[begin]++
			most = max(most, counts[begin]+counts[begin-window]*(1-float64(at-begin)/float64(window)))
		}
		return most
	}
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 18))
		n := 1 + random.Int64N(30)
		r, err := Parse(fmt.Sprintf("%d/1s", n), SlidingWindowCounter, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		// worst is the largest of some phases: a window begins with a request, just after one, or whenever.
		worst := func(gap, more time.Duration) (most float64) {
			var sent []time.Duration
			for at := time.Duration(0); at < 6*window; at += gap {
				if more > 0 && random.IntN(3) == 0 {
					at += time.Duration(random.Int64N(int64(more)))
				}
				sent = append(sent, at)
			}
			for _, at := range sent {
				for _, begins := range []time.Duration{at, at + 1, time.Duration(random.Int64N(int64(window)))} {
					most = max(most, estimate(sent, begins))
				}
			}
			return most
		}
		for _, more := range []time.Duration{0, r.Window / 10, 3 * r.Window} {
			if got := worst(r.Window, more); got > float64(n)+1e-9 {
				t.Errorf("seed %d: %d in %s, one each %s and up to %s more: the estimate is %f", seed, n, window, r.Window, more, got)
			}
		}
		if got := worst(r.Window-r.Window/100, 0); got <= float64(n) {
			t.Errorf("seed %d: %d in %s, one a hundredth more often than each %s: the estimate is %f", seed, n, window, r.Window, got)
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
		use := Use{Rate: r, Occupied: 10, FirstUntil: midnight}
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
