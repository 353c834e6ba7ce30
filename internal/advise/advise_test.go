package advise

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
)

// The limiters are written after their sources, and share no code with the models.

// limiter decides whether a request that arrives is refused. It is asked in the order of arrivals.
type limiter func(at time.Time) (refused bool)

// limitReq is nginx's limit_req of 100 a second: thousandths of a request, whole milliseconds.
func limitReq(burst int64) limiter {
	var excess, last int64
	return func(at time.Time) bool {
		ms := at.UnixMilli()
		now := max(0, excess-100*(ms-last)+1000)
		if last == 0 {
			now = 0
		}
		if now > burst*1000 {
			return true
		}
		excess, last = now, ms
		return false
	}
}

// gcra keeps a theoretical arrival time.
func gcra(each time.Duration, burst int) limiter {
	var tat time.Time
	return func(at time.Time) bool {
		if tat.Before(at) {
			tat = at
		}
		if tat.Add(each).Sub(at) > time.Duration(burst)*each {
			return true
		}
		tat = tat.Add(each)
		return false
	}
}

// haproxy is http_req_rate(1s) gt n: two counters of milliseconds, and all requests count.
func haproxy(n uint64) limiter {
	const period = 1000
	var former, using uint64
	var tick int64
	return func(at time.Time) bool {
		now := at.UnixMilli()
		switch {
		case now-tick >= 2*period:
			former, using, tick = 0, 0, now
		case now-tick >= period:
			former, using, tick = using, 0, tick+period
		}
		using++
		return using+former*uint64(period-(now-tick))/period > n
	}
}

// httprate takes its windows from a clock that is ahead by so much.
func httprate(n int, skew time.Duration) limiter {
	counts := map[time.Time]int{}
	return func(at time.Time) bool {
		at = at.Add(skew).UTC()
		window := at.Truncate(time.Second)
		part := 1 - float64(at.Sub(window))/float64(time.Second)
		rate := float64(counts[window.Add(-time.Second)])*part + float64(counts[window])
		if int(math.Round(rate)) >= n {
			return true
		}
		counts[window]++
		return false
	}
}

// fromTheFirst is express-rate-limit's.
func fromTheFirst(n int, window time.Duration) limiter {
	var ends time.Time
	hits := 0
	return func(at time.Time) bool {
		if !at.Before(ends) {
			ends, hits = at.Add(window), 0
		}
		hits++
		return hits > n
	}
}

// secondOfTheClock is envoyproxy/ratelimit's.
func secondOfTheClock(n int, skew time.Duration) limiter {
	hits := map[int64]int{}
	return func(at time.Time) bool {
		hits[at.Add(skew).Unix()]++
		return hits[at.Add(skew).Unix()] > n
	}
}

func exactLog(n int, window time.Duration, all bool) limiter {
	var log []time.Time
	return func(at time.Time) bool {
		log = slices.DeleteFunc(log, func(t time.Time) bool { return at.Sub(t) >= window })
		refused := len(log) >= n
		if !refused || all {
			log = append(log, at)
		}
		return refused
	}
}

// elasticExpiry is Flask-Limiter's.
func elasticExpiry(n int, window time.Duration) limiter {
	var last time.Time
	hits := 0
	return func(at time.Time) bool {
		if at.Sub(last) >= window {
			hits = 0
		}
		hits, last = hits+1, at
		return hits > n
	}
}

// api is one of which a sliding window of 100 per second is refused, and what fits it.
type api struct {
	name      string
	serve     func() limiter
	fits      []string // any of these
	ambiguous string   // what bursts alone do not tell from it
}

func apis() []api {
	const ms = time.Millisecond
	estimates := []string{"sliding_window_counter 100/s"}
	return []api{
		{"nginx, 100 a second", func() limiter { return limitReq(0) }, []string{"leaky_bucket 100/s"}, ""},
		{"GCRA, one each 10 ms", func() limiter { return gcra(10*ms, 1) }, []string{"leaky_bucket 100/s"}, ""},
		{"GCRA, one each 200 ms", func() limiter { return gcra(200*ms, 1) }, []string{"leaky_bucket 1/200ms"}, "leaky_bucket 1/s"},
		{"GCRA, one each 10 ms, burst 20", func() limiter { return gcra(10*ms, 20) }, []string{"token_bucket 100/s burst 20"}, "sliding_window 20/s"},
		{"nginx, 100 a second, burst 19", func() limiter { return limitReq(19) }, []string{"token_bucket 100/s burst 20"}, "sliding_window 20/s"},
		{"HAProxy, 100 a second", func() limiter { return haproxy(100) }, estimates, ""},
		{"httprate, 100 a second", func() limiter { return httprate(100, 0) }, estimates, ""},
		{"httprate, its clock ahead", func() limiter { return httprate(100, 330*ms) }, estimates, ""},
		{"60 in a second from the first", func() limiter { return fromTheFirst(60, time.Second) }, []string{"sliding_window 60/s"}, ""},
		{"60 in a second of the clock", func() limiter { return secondOfTheClock(60, 15*ms) }, []string{"sliding_window 60/s"}, ""},
		{"60 in any second", func() limiter { return exactLog(60, time.Second, false) }, []string{"sliding_window 60/s"}, ""},
		{"100 in any 2 seconds", func() limiter { return exactLog(100, 2*time.Second, false) }, []string{"sliding_window 100/2s"}, ""},
		{"60 in any second, refused ones counted", func() limiter { return exactLog(60, time.Second, true) }, []string{"sliding_window 60/s"}, ""},
		{"100 until nothing comes for a second", func() limiter { return elasticExpiry(100, time.Second) }, []string{"sliding_window 100/2s"}, "-"},
	}
}

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// answered is a request as the API sees it, and as the ledger has it.
type answered struct {
	Request
	arrived time.Time
}

// driver sends as a dispatcher with 100 in any second does: all that may go, at once. It closes after a refusal for a spell, if it
// does, and then sends one before the others.
func drive(api limiter, n int, closes bool, random *rand.Rand) []Request {
	jitter := func(from, to float64) time.Duration {
		return time.Duration((from + random.Float64()*(to-from)) * float64(time.Millisecond))
	}
	var all []answered
	send := func(now time.Time, calls int) (last time.Time, refused bool) {
		var burst []answered
		for range calls {
			start := now.Add(jitter(0, 8))
			burst = append(burst, answered{Request{Earliest: start, Held: 170 * time.Millisecond}, start.Add(jitter(1, 4))})
		}
		slices.SortFunc(burst, func(x, y answered) int { return x.arrived.Compare(y.arrived) })
		for _, r := range burst {
			r.Latest = r.arrived.Add(jitter(0.5, 2))
			if api(r.arrived) {
				r.Answer, refused = Refused, true
			} else {
				r.Latest = r.Latest.Add(jitter(0, 6))
			}
			all = append(all, r)
			if r.Latest.After(last) {
				last = r.Latest
			}
		}
		return last, refused
	}
	now, spell := noon.Add(jitter(0, 1000)), time.Duration(0)
	for len(all) < n {
		used := 0
		for _, r := range all {
			if now.Sub(r.Latest) < time.Second {
				used++
			}
		}
		calls := min(100-used, n-len(all))
		if spell > 0 {
			calls = min(calls, 1)
		}
		if calls == 0 {
			now = now.Add(20 * time.Millisecond)
			continue
		}
		last, refused := send(now, calls)
		switch {
		case !closes:
			now = last.Add(jitter(20, 120))
		case refused:
			spell = min(max(time.Second, 2*spell), 8*time.Second)
			now = last.Add(spell)
		default:
			spell = 0
			now = last.Add(jitter(10, 60))
		}
	}
	var requests []Request
	for _, r := range all {
		requests = append(requests, r.Request)
	}
	return requests
}

func hundred(t *testing.T) Limit {
	t.Helper()
	r, err := limit.ParseRate("100/s")
	if err != nil {
		t.Fatal(err)
	}
	return Limit{Name: "acme", Rate: r}
}

// near reports whether a proposal is the one that is written so, or up to 5 % less.
func (p Proposal) near(want string) bool {
	text, _, _ := strings.Cut(p.text(), ";")
	units, window, _ := strings.Cut(*p.Rate, "/")
	for n := range 4 {
		u, _ := strconv.Atoi(units)
		if strings.ReplaceAll(strings.ReplaceAll(text, ", burst", " burst"), units+"/"+window, fmt.Sprint(u+n, "/", window)) == want && n*20 <= u+n {
			return true
		}
	}
	return false
}

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
