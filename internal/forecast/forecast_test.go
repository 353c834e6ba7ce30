package forecast

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/limit"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func rate(t *testing.T, text string, algorithm limit.Algorithm, burst int64) limit.Rate {
	t.Helper()
	r, err := limit.Parse(text, algorithm, burst, "")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// full has no unit left; they come free evenly.
func full(units float64, window time.Duration) State {
	s := State{Units: units}
	for i := range int(units) {
		s.Frees = append(s.Frees, Free{At: window * time.Duration(i+1) / time.Duration(units), Units: 1})
	}
	return s
}

func empty(units float64) State { return State{Units: units, Room: units} }

// one is a queue with a key, of whose calls the last is asked about.
func one(calls int64, limits ...int) []Queue {
	return []Queue{{Limits: limits, Cost: 1, Keys: []Keys{{Count: 1, Calls: calls, Asked: &Asked{Cost: 1}}}}}
}

func TestRun(t *testing.T) {
	t.Parallel()
	second := Limit{Rate: rate(t, "1/s", limit.SlidingWindow, 0), State: empty(1)}
	ten := Limit{Rate: rate(t, "10/s", limit.SlidingWindow, 0), State: empty(10)}
	minute := Limit{Rate: rate(t, "100/m", limit.SlidingWindow, 0), State: empty(100)}
	daily := Limit{Rate: rate(t, "10/d", limit.FixedWindow, 0), State: State{Units: 10, Room: 5}}
	bucket := Limit{Rate: rate(t, "10/s", limit.TokenBucket, 100), State: State{Units: 10, Room: 100}}
	with := func(l Limit, change func(*Limit)) Limit { change(&l); return l }
	for name, c := range map[string]struct {
		limits []Limit
		queues []Queue
		want   time.Duration
		before int64
	}{
		"at once":         {[]Limit{ten}, one(10, 0), 0, 9},
		"the last of ten": {[]Limit{second}, one(10, 0), 9 * time.Second, 9},
		"of 2,484":        {[]Limit{second}, one(2484, 0), 2483 * time.Second, 2483},
		"of a million":    {[]Limit{second}, one(1e6, 0), 999_999 * time.Second, 999_999},
		"occupied":        {[]Limit{with(ten, func(l *Limit) { l.State = full(10, time.Second) })}, one(25, 0), 2500 * time.Millisecond, 24},
		"two limits":      {[]Limit{ten, minute}, one(150, 0, 1), 64 * time.Second, 149},
		"a calendar's":    {[]Limit{daily}, one(26, 0), 60*time.Hour + time.Minute, 25},
		"a bucket":        {[]Limit{bucket}, one(151, 0), 5100 * time.Millisecond, 150},
		"at most at once": {[]Limit{{Rate: limit.Rate{Units: 4}, State: empty(4)}}, []Queue{{
			Limits: []int{0}, Holds: 2 * time.Second, Keys: []Keys{{Count: 1, Calls: 9, Asked: &Asked{}}},
		}}, 4 * time.Second, 8},
		"by cost": {[]Limit{with(minute, func(l *Limit) { l.CountCost = true })}, []Queue{{
			Limits: []int{0}, Cost: 10, Keys: []Keys{{Count: 1, Calls: 10, Asked: &Asked{Cost: 20}}},
		}}, time.Minute, 9},
		"shut": {[]Limit{with(ten, func(l *Limit) { l.Opens = time.Hour })}, one(11, 0), time.Hour + time.Second, 10},
		"its turn comes before those behind it": {[]Limit{second}, []Queue{{Limits: []int{0}, Keys: []Keys{
			{Count: 3, Calls: 50}, {Count: 1, Calls: 10, Asked: &Asked{}}, {Count: 6, Calls: 2},
		}}}, 51 * time.Second, 51},
		"a key's own limit": {[]Limit{with(second, func(l *Limit) { l.PerKey = true }), ten}, []Queue{{Limits: []int{0, 1}, Keys: []Keys{
			{Count: 4, Calls: 50}, {Count: 1, Calls: 10, Asked: &Asked{}},
		}}}, 9 * time.Second, 49},
		"keys that have used theirs up": {[]Limit{with(ten, func(l *Limit) { l.PerKey = true }), second}, []Queue{{Limits: []int{0, 1}, Keys: []Keys{
			{Count: 9, Calls: 50, Of: []State{full(10, time.Hour), {}}}, {Count: 1, Calls: 10, Asked: &Asked{}},
		}}}, 9 * time.Second, 9},
		"another queue": {[]Limit{second}, append(one(10, 0), Queue{Limits: []int{0}, Keys: []Keys{{Count: 5, Calls: 100}}}), 18 * time.Second, 9},
		"hours": {[]Limit{second}, []Queue{{Limits: []int{0}, Hours: mustParse(t, "13:00-13:01 UTC"), Keys: []Keys{
			{Count: 1, Calls: 100, Asked: &Asked{}},
		}}}, 25*time.Hour + 39*time.Second, 99},
		"what falls due meanwhile": {[]Limit{second}, []Queue{{Limits: []int{0}, Keys: []Keys{
			{Count: 1, Calls: 21, Asked: &Asked{}}, {Count: 1, Calls: 100, From: 10*time.Second - 1},
		}}}, 29 * time.Second, 29},
		"it falls due later": {[]Limit{second}, []Queue{{Limits: []int{0}, Keys: []Keys{
			{Count: 1, Calls: 3, Asked: &Asked{From: time.Minute}}, {Count: 1, Calls: 10},
		}}}, time.Minute, 12},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := World{Now: noon, Limits: c.limits, Queues: c.queues}
			got := w.Run()
			if off := got.Start - c.want; !got.Known || off.Abs() > c.want/250+20*time.Millisecond || got.Before != c.before {
				t.Errorf("starts in %v, want %v, behind %d, want %d: %+v", got.Start, c.want, got.Before, c.before, got)
			}
		})
	}
}

func mustParse(t *testing.T, text string) hours.Hours {
	t.Helper()
	h, err := hours.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// In pieces it comes to nearly the same as one by one. A few worlds are exceptions: where bursts come free and a queue may have
// few calls at once, others take more of each burst than of the same units one after another.
func TestPieces(t *testing.T) {
	t.Parallel()
	exceptions := 0
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := randomWorld(t, random)
		exact, pieces := w.run(1<<40, 1<<40), w.run(1000, 2000)
		if !exact.Known {
			continue
		}
		off := float64((pieces.Start - exact.Start).Abs())
		if !pieces.Known || off > 0.05*float64(exact.Start)+float64(time.Second) {
			exceptions++
			t.Logf("seed %d: in pieces it starts in %v, one by one in %v: %+v", seed, pieces.Start, exact.Start, w)
		}
	}
	if exceptions > 2 {
		t.Errorf("of 200 worlds %d differ by more than 5%%", exceptions)
	}
}

func randomWorld(t *testing.T, random *rand.Rand) *World {
	w := &World{Now: noon}
	for range 1 + random.IntN(3) {
		r := rate(t, []string{"1/s", "7/s", "100/s", "50/10s", "300/m"}[random.IntN(5)], limit.SlidingWindow, 0)
		switch random.IntN(4) {
		case 0:
			r = rate(t, "20/s", limit.TokenBucket, 50)
		case 1:
			r = limit.Rate{Units: 1 + random.Int64N(20)}
		}
		l := Limit{Rate: r, State: State{Units: float64(r.Units), Room: float64(r.Most())}, PerKey: random.IntN(3) == 0}
		if random.IntN(2) == 0 && r.Algorithm == "" && r.Window > 0 {
			l.State = full(float64(r.Units), r.Window)
		}
		w.Limits = append(w.Limits, l)
	}
	for i := range 1 + random.IntN(2) {
		q := Queue{Cost: 1, Holds: time.Duration(random.IntN(1000)) * time.Millisecond}
		for l := range w.Limits {
			if random.IntN(3) > 0 || l == 0 {
				q.Limits = append(q.Limits, l)
			}
		}
		for range random.IntN(8) {
			q.Keys = append(q.Keys, Keys{Count: 1 + random.Int64N(10), Calls: 1 + random.Int64N(500)})
		}
		if i == 0 {
			q.Keys = append(q.Keys, Keys{Count: 1, Calls: 1 + random.Int64N(500), Asked: &Asked{Cost: 1}})
		}
		w.Queues = append(w.Queues, q)
	}
	return w
}

func BenchmarkMillion(b *testing.B) {
	w := World{Now: noon, Limits: []Limit{
		{Rate: limit.Rate{Units: 100, Window: time.Second}, State: empty(100)},
		{Rate: limit.Rate{Units: 10, Window: time.Minute}, State: empty(10), PerKey: true},
	}, Queues: []Queue{{Limits: []int{0, 1}, Cost: 1}}}
	for i := range int64(1000) {
		w.Queues[0].Keys = append(w.Queues[0].Keys, Keys{Count: 10, Calls: 50 + i%100})
	}
	w.Queues[0].Keys[500] = Keys{Count: 1, Calls: 100, Asked: &Asked{Cost: 1}}
	for b.Loop() {
		w.Run()
	}
}

// What takes longer than anybody can say is said not to be known, at once: hours of a minute a week, costs beyond all rates, times
// beyond what a duration holds.
func TestForecastEnds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	minute, err := hours.Parse("Mon 09:00-09:01 UTC")
	if err != nil {
		t.Fatal(err)
	}
	sliding := limit.Rate{Units: 1, Window: time.Hour}
	for name, w := range map[string]World{
		"a minute a week": {
			Limits: []Limit{{Rate: sliding, State: State{Units: 1, Room: 1}}},
			Queues: []Queue{{Limits: []int{0}, Hours: minute, Cost: 1, Keys: []Keys{{Count: 1_000_000, Calls: 1000}}}},
		},
		"a minute a week, for large costs": {
			Limits: []Limit{{Rate: sliding, CountCost: true, State: State{Units: 1, Room: 1}}},
			Queues: []Queue{{Limits: []int{0}, Hours: minute, Cost: 1e12, Keys: []Keys{{Count: 1000, Calls: 1000}}}},
		},
		"large costs of a bucket": {
			Limits: []Limit{{Rate: limit.Rate{Units: 1, Window: time.Hour, Shape: limit.Shape{Algorithm: limit.TokenBucket, Burst: 1, Period: "1h"}}, CountCost: true, State: State{Units: 1, Room: 1}}},
			Queues: []Queue{{Limits: []int{0}, Cost: 1e12, Keys: []Keys{{Count: 1, Calls: 1000}}}},
		},
		"a day far away": {
			Limits: []Limit{{Rate: sliding, State: State{Units: 1, Room: 1}}},
			Queues: []Queue{{Limits: []int{0}, Cost: 1, Keys: []Keys{{Count: 1, Calls: 10, From: math.MaxInt64 - 1}}}},
		},
		"an asked day far away": {
			Limits: []Limit{{Rate: sliding, State: State{Units: 1, Room: 1}}},
			Queues: []Queue{{Limits: []int{0}, Cost: 1, Hours: minute, Keys: []Keys{{Count: 1, Calls: 10, Asked: &Asked{From: math.MaxInt64, Cost: 1}}}}},
		},
	} {
		w.Now = now
		if r := w.Run(); r.Known && (r.Start < 0 || r.Start >= Horizon || r.Last[0] < 0 || r.Last[0] >= Horizon) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
