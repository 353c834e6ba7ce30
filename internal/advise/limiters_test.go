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
