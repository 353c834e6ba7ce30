package advise

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
)

// For each limiter the advice is the limit that fits, and the limiter refuses nothing that keeps to it.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, api := range apis() {
		for how, closes := range map[string]bool{"closing": true, "retrying": false} {
			t.Run(api.name+", "+how, func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(3) {
					random := rand.New(rand.NewPCG(seed, 2))
					a := For(hundred(t), drive(api.serve(), 1000, closes, random))
					if api.ambiguous == "-" && a.Refused < 10*fewRefusals {
						continue // bursts a second apart are as good as none before
					}
					if a.Verdict != Change || !slices.ContainsFunc(append(api.fits, api.ambiguous), a.near) {
						t.Fatalf("seed %d: want %q:\n%s", seed, api.fits, a.Text())
					}
					if a.near(api.ambiguous) && !strings.HasPrefix(api.ambiguous, "leaky") &&
						!slices.ContainsFunc(a.Others, func(p Proposal) bool { return *p.Rate == "100/s" && *p.Algorithm == "token_bucket" }) {
						t.Errorf("seed %d: want %q besides:\n%s", seed, api.fits, a.Text())
					}
					if refused := kept(t, api.serve(), a.Proposal, random); refused > 0 {
						t.Errorf("seed %d: %d of those that keep to it are refused:\n%s", seed, refused, a.Text())
					}
				}
			})
		}
	}
}

// kept returns how many requests an API refuses that come as fast as the limit allows: at once, evenly, or after a pause.
func kept(t *testing.T, api limiter, p Proposal, random *rand.Rand) (refused int) {
	t.Helper()
	var burst int64
	if p.Burst != nil {
		burst = *p.Burst
	}
	r, err := limit.Parse(*p.Rate, limit.Algorithm(*p.Algorithm), burst, "")
	if err != nil {
		t.Fatal(err)
	}
	var sent []time.Time
	var full time.Time // when a bucket is full again
	now := noon.Add(time.Duration(random.Int64N(1e9)))
	each := r.Span() / time.Duration(r.Units)
	for i := range 2000 {
		if *p.Rate != "100/2s" { // its API wants bursts
			switch {
			case i%500 == 499:
				now = now.Add(time.Duration(random.Int64N(3e9)))
			case i/200%3 == 1:
				now = now.Add(time.Duration(random.Int64N(2 * int64(each))))
			}
		}
		switch {
		case r.Algorithm == limit.TokenBucket:
			if may := full.Add(-time.Duration(burst-1) * each); now.Before(may) {
				now = may
			}
			if full.Before(now) {
				full = now
			}
			full = full.Add(each)
		case int64(len(sent)) >= r.Units:
			if may := sent[int64(len(sent))-r.Units].Add(r.Window); now.Before(may) {
				now = may
			}
		}
		sent = append(sent, now)
		if api(now) {
			refused++
		}
	}
	return refused
}

// Where the ledger cannot tell, the advice has no limit, and names why and what to try.
func TestCannotTell(t *testing.T) {
	t.Parallel()
	random := func() *rand.Rand { return rand.New(rand.NewPCG(3, 4)) }
	rate := func(text string) limit.Rate {
		r, err := limit.ParseRate(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	through := limiter(func(time.Time) bool { return false })
	others := func() limiter { // another client uses most of it now and then
		r := random()
		return func(time.Time) bool { return r.IntN(3) == 0 }
	}
	coarse := drive(gcra(10*time.Millisecond, 1), 1000, true, random())
	for i, r := random(), 0; r < len(coarse); r++ {
		coarse[r].Earliest = coarse[r].Earliest.Add(-time.Duration(i.Int64N(8e9)))
		coarse[r].Latest = coarse[r].Latest.Add(time.Duration(i.Int64N(8e9)))
	}
	for name, c := range map[string]struct {
		rate     limit.Rate
		requests []Request
		verdict  Verdict
		why, try string
	}{
		"at once":        {limit.Rate{Units: 5}, drive(others(), 100, true, random()), CannotTell, "it counts calls at once", "second limit"},
		"no requests":    {rate("100/s"), nil, CannotTell, "no request", "run 200 calls"},
		"few requests":   {rate("100/s"), drive(gcra(10*time.Millisecond, 1), 30, true, random()), CannotTell, "too few to tell", "run 200 calls"},
		"few refusals":   {rate("100/s"), drive(exactLog(99, time.Second, false), 110, true, random()), CannotTell, "of 110 requests under it 1 was refused", "run 200 calls"},
		"all refused":    {rate("100/s"), drive(func(time.Time) bool { return true }, 1000, false, random()), CannotTell, "0 were let through", "once it takes some"},
		"others use it":  {rate("100/s"), drive(others(), 1000, true, random()), CannotTell, "the limiter that fits best", "see whether others use"},
		"it is in force": {rate("60/s"), drive(exactLog(60, time.Second, false), 1000, false, random()), CannotTell, "the limit in force never exceeds it", "see whether others use"},
		"coarse timings": {rate("100/s"), coarse, CannotTell, "when requests arrived is known to", "nearer to the API"},
		"none refused":   {rate("100/s"), drive(through, 1000, true, random()), Fits, "none of 1,000 requests was refused", "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := For(Limit{Name: "acme", Rate: c.rate}, c.requests)
			if a.Verdict != c.verdict || !strings.Contains(a.Evidence, c.why) || !strings.Contains(a.Try, c.try) {
				t.Errorf("want %s, %q, %q:\n%s", c.verdict, c.why, c.try, a.Text())
			}
			if (a.Config == nil) != (c.verdict == CannotTell) {
				t.Errorf("config: %v", a.Config)
			}
		})
	}
}

// What was sent before the limit changed does not count, if enough was sent since.
func TestSinceChanged(t *testing.T) {
	t.Parallel()
	requests := drive(limitReq(0), 1000, true, rand.New(rand.NewPCG(5, 6)))
	l := Limit{Name: "acme", Rate: hundred(t).Rate}
	for i := range requests { // none is refused any longer
		if i >= 500 {
			requests[i].Answer = LetThrough
		}
	}
	l.Changed = requests[500].Earliest.Add(-time.Millisecond)
	if a := For(l, requests); a.Verdict != Fits || a.Requests < 490 || a.Requests > 510 {
		t.Errorf("since it changed:\n%s", a.Text())
	}
	l.Changed = requests[999].Earliest
	if a := For(l, requests); a.Requests != 1000 {
		t.Errorf("too few since it changed:\n%s", a.Text())
	}
}

// The line to write keeps what else the limit has.
func TestLines(t *testing.T) {
	t.Parallel()
	parse := func(text string, algorithm limit.Algorithm, burst int64) limit.Rate {
		r, err := limit.Parse(text, algorithm, burst, "")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	minute := func(at time.Time) time.Time { return at.Truncate(time.Minute) }
	hits := map[time.Time]int{}
	var requests []Request // 100 within a minute, and 60 in each minute of the clock are let through
	for i := range 600 {
		at := noon.Add(time.Duration(i/100)*61*time.Second + 25*time.Second + time.Duration(i%100)*400*time.Millisecond)
		r := Request{Earliest: at, Latest: at.Add(2 * time.Millisecond)}
		if hits[minute(at)]++; hits[minute(at)] > 60 {
			r.Answer = Refused
		}
		requests = append(requests, r)
	}
	dear := drive(exactLog(20, time.Second, false), 500, false, rand.New(rand.NewPCG(7, 8)))
	for i := range dear {
		dear[i].Cost = 5
	}
	for name, c := range map[string]struct {
		limit    Limit
		requests []Request
		want     string
		rests    string
	}{
		"windows of the clock": {
			Limit{Name: "acme", Rate: parse("100/m", limit.SlidingWindow, 0)},
			requests,
			"acme: {rate: 60/m, algorithm: fixed_window}", "",
		},
		"a bucket in force": {
			Limit{Name: "acme", Rate: parse("100/s", limit.TokenBucket, 100)},
			drive(gcra(10*time.Millisecond, 20), 1000, false, rand.New(rand.NewPCG(9, 1))),
			"acme: {rate: 100/s, algorithm: token_bucket, burst: 20}", "that of the limit in force",
		},
		"per key, one of several rates": {
			Limit{Name: "acme/1s", Rate: parse("100/s", limit.SlidingWindow, 0), PerKey: true, OwnRate: true},
			drive(limitReq(0), 1000, true, rand.New(rand.NewPCG(9, 2))),
			"acme-1s: {rate: 100/s, algorithm: leaky_bucket, per: key}", "one of a list of rates",
		},
		"an estimate": {
			Limit{Name: "acme", Rate: parse("100/s", limit.SlidingWindow, 0), PerKey: true},
			drive(httprate(100, 330*time.Millisecond), 1000, true, rand.New(rand.NewPCG(9, 3))),
			"acme: {rate: 100/s, algorithm: sliding_window_counter, per: key}", "calls go evenly, as often as no estimate exceeds",
		},
		"an estimate, by cost": {
			Limit{Name: "acme", Rate: parse("100/s", limit.SlidingWindow, 0), CountCost: true},
			drive(httprate(50, 330*time.Millisecond), 1000, true, rand.New(rand.NewPCG(9, 3))),
			"acme: {rate: 10/250ms, algorithm: sliding_window, count: cost}", "a shorter window, or half the rate",
		},
		"by cost": {
			Limit{Name: "acme", Rate: parse("500/s", limit.SlidingWindow, 0), CountCost: true},
			dear,
			"acme: {rate: 100/s, algorithm: sliding_window, count: cost}", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := For(c.limit, c.requests)
			if a.Verdict != Change || *a.Config != c.want || !strings.Contains(strings.Join(a.RestsOn, "\n"), c.rests) {
				t.Errorf("want %q, %q:\n%s", c.want, c.rests, a.Text())
			}
		})
	}
}

func BenchmarkFor(b *testing.B) {
	r, err := limit.ParseRate("100/s")
	if err != nil {
		b.Fatal(err)
	}
	requests := drive(httprate(100, 0), 10_000, true, rand.New(rand.NewPCG(1, 2)))
	for b.Loop() {
		For(Limit{Name: "acme", Rate: r}, requests)
	}
}

// A limit whose calls go in runs is used but for what each takes to arrive; others wait for their way through a claim.
func TestShare(t *testing.T) {
	t.Parallel()
	for algorithm, most := range map[limit.Algorithm][2]float64{
		limit.LeakyBucket:          {0.88, 0.95},
		limit.SlidingWindowCounter: {0.88, 0.95},
		limit.SlidingWindow:        {0.80, 0.87},
	} {
		r, err := limit.Parse("100/s", algorithm, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := share(r, held{claim: 170 * time.Millisecond, start: time.Millisecond}, 100); got < most[0] || got > most[1] {
			t.Errorf("%s uses %.2f of the API's rate, want %.2f to %.2f", algorithm, got, most[0], most[1])
		}
	}
	r, err := limit.ParseShape("100/s", limit.Shape{Algorithm: limit.LeakyBucket})
	if err != nil {
		t.Fatal(err)
	}
	if got := share(r, held{claim: time.Second, start: 10 * time.Millisecond}, 100); got < 0.45 || got > 0.55 {
		t.Errorf("answers of 10 ms leave %.2f of it, want a half", got)
	}
}
