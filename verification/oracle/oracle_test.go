package oracle

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// at makes requests of queue a, one call each, at so many milliseconds.
func at(millis ...int) []Request {
	var list []Request
	for i, n := range millis {
		list = append(list, Request{At: time.Duration(n) * ms, Call: fmt.Sprint(i + 1), Attempt: "1", Queue: "a"})
	}
	return list
}

func TestOver(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name     string
		requests []Request
		most     int
		findings int
	}{
		{"nothing", nil, 0, 0},
		{"full windows", at(0, 1, 2, 1000, 1001, 1002, 2000), 3, 0},
		{"over by one", at(0, 1, 2, 999), 4, 1},
		{"one window apart to the nanosecond", []Request{
			{At: 0, Queue: "a"}, {At: 0, Queue: "a"}, {At: 0, Queue: "a"}, {At: time.Second, Queue: "a"},
		}, 3, 0},
		{"a nanosecond less than a window apart", []Request{
			{At: 0, Queue: "a"}, {At: 0, Queue: "a"}, {At: 0, Queue: "a"}, {At: time.Second - 1, Queue: "a"},
		}, 4, 1},
		{"over across the beat of the windows", at(900, 950, 1050, 1100), 4, 1},
		{"over in another order", at(5000, 999, 1, 0, 2), 4, 1},
		{"over twice", at(0, 1, 2, 3, 4, 5000, 5001, 5002, 5003), 5, 2},
		{"another queue shares the limit", append(at(0, 1, 2), Request{At: 3 * ms, Queue: "b"}), 4, 1},
		{"a queue without the limit", append(at(0, 1, 2), Request{At: 3 * ms, Queue: "c"}), 3, 0},
	}
	limit := Limit{Name: "api", Rate: 3, Window: time.Second, Queues: []string{"a", "b"}}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := limit.Most(c.requests); got != c.most {
				t.Errorf("most in a window: %d, want %d", got, c.most)
			}
			if got := limit.Over(c.requests); len(got) != c.findings {
				t.Errorf("%d findings, want %d: %v", len(got), c.findings, got)
			}
		})
	}
}

// from makes requests of queue a from one millisecond to another, one call each; to -1: they never end.
func from(spans ...[2]int) []Request {
	var list []Request
	for i, s := range spans {
		end := time.Duration(s[1]) * ms
		if s[1] < 0 {
			end = Never
		}
		list = append(list, Request{At: time.Duration(s[0]) * ms, End: end, Call: fmt.Sprint(i + 1), Attempt: "1", Queue: "a"})
	}
	return list
}

// of gives requests their keys or costs in turn.
func of[T any](requests []Request, put func(*Request, T), values ...T) []Request {
	for i := range requests {
		put(&requests[i], values[i])
	}
	return requests
}

func TestOverOfEachKind(t *testing.T) {
	t.Parallel()
	key := func(r *Request, key string) { r.Key = key }
	cost := func(r *Request, cost int) { r.Cost = cost }
	perKey := Limit{Name: "each", Rate: 2, Window: time.Second, PerKey: true, Queues: []string{"a"}}
	byCost := Limit{Name: "tokens", Rate: 100, Window: time.Second, ByCost: true, Queues: []string{"a"}}
	costPerKey := Limit{Name: "quota", Rate: 100, Window: time.Second, ByCost: true, PerKey: true, Queues: []string{"a"}}
	atOnce := Limit{Name: "lines", Rate: 2, Queues: []string{"a"}}
	atOncePerKey := Limit{Name: "line", Rate: 2, PerKey: true, Queues: []string{"a"}}
	costAtOnce := Limit{Name: "room", Rate: 100, ByCost: true, Queues: []string{"a"}}
	cases := []struct {
		name     string
		limit    Limit
		requests []Request
		most     int
		want     []string // the beginnings of what is found
	}{
		{"each key in full", perKey, of(at(0, 1, 2, 3, 4, 5), key, "x", "y", "", "x", "y", ""), 2, nil},
		{
			"one key over by one", perKey, of(at(0, 1, 2, 3, 999), key, "x", "y", "x", "y", "y"), 3,
			[]string{ruleLimit + `: limit each, key "y", allows 2 in 1s, and 3 arrived within 998ms`},
		},
		{
			"those without a key have one in common", perKey, of(at(0, 1, 2), key, "", "", ""), 3,
			[]string{ruleLimit + `: limit each, key "", allows 2`},
		},
		{"the cost in full", byCost, of(at(0, 1, 1001), cost, 60, 40, 100), 100, nil},
		{
			"over by a unit", byCost, of(at(0, 1, 999), cost, 60, 40, 1), 101,
			[]string{ruleLimit + ": limit tokens allows 100 in 1s, and 101 arrived within 999ms"},
		},
		{"one that costs more than there is", byCost, of(at(0), cost, 101), 101, []string{ruleLimit + ": limit tokens allows 100"}},
		{
			"the cost of one key over", costPerKey, of(of(at(0, 1, 2), cost, 60, 100, 41), key, "x", "y", "x"), 101,
			[]string{ruleLimit + `: limit quota, key "x", allows 100`},
		},
		{"one comes as another ends", atOnce, from([2]int{0, 10}, [2]int{5, 20}, [2]int{10, 30}), 2, nil},
		{
			"one comes before another ends", atOnce, from([2]int{0, 10}, [2]int{5, 20}, [2]int{9, 30}), 3,
			[]string{ruleAtOnce + ": limit lines allows 2 at once, and 3 were there"},
		},
		{
			"one never ends", atOnce, from([2]int{0, -1}, [2]int{5, -1}, [2]int{99_000, 99_001}), 3,
			[]string{ruleAtOnce + ": limit lines allows 2 at once"},
		},
		{"one has no length", atOnce, from([2]int{0, 10}, [2]int{1, 10}, [2]int{5, 5}), 3, []string{ruleAtOnce}},
		{
			"twice, with a time between", atOnce,
			from([2]int{0, 10}, [2]int{1, 10}, [2]int{2, 10}, [2]int{3, 10}, [2]int{20, 30}, [2]int{21, 30}, [2]int{22, 30}),
			4,
			[]string{ruleAtOnce, ruleAtOnce},
		},
		{"recorded in another order", atOnce, from([2]int{9, 30}, [2]int{5, 20}, [2]int{0, 10}), 3, []string{ruleAtOnce}},
		{
			"each key in full at once", atOncePerKey,
			of(from([2]int{0, 10}, [2]int{1, 10}, [2]int{2, 10}, [2]int{3, 10}), key, "x", "y", "x", "y"), 2, nil,
		},
		{
			"one key has too many at once", atOncePerKey,
			of(from([2]int{0, 10}, [2]int{1, 10}, [2]int{2, 10}, [2]int{3, 10}), key, "x", "y", "x", "x"), 3,
			[]string{ruleAtOnce + `: limit line, key "x", allows 2 at once, and 3 were there`},
		},
		{
			"too much at once", costAtOnce, of(from([2]int{0, 10}, [2]int{9, 20}), cost, 60, 41), 101,
			[]string{ruleAtOnce + ": limit room allows 100 at once, and 101 were there"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := c.limit.Most(c.requests); got != c.most {
				t.Errorf("most: %d, want %d", got, c.most)
			}
			got := c.limit.Over(c.requests)
			ok := len(got) == len(c.want)
			for i := 0; ok && i < len(got); i++ {
				ok = strings.HasPrefix(got[i].String(), c.want[i])
			}
			if !ok {
				t.Errorf("found %v, want %q", got, c.want)
			}
		})
	}
}

// Over and Most count in two ways; they must agree, for every kind of limit.
func TestOverAgreesWithMost(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	type kind struct{ perKey, byCost, window bool }
	found := map[kind]int{}
	for round := range 4000 {
		var requests []Request
		for range 40 {
			at := random.IntN(2000)
			r := from([2]int{at, at + random.IntN(200)})[0]
			r.Key, r.Cost = fmt.Sprint(random.IntN(3)), 1+random.IntN(3)
			requests = append(requests, r)
		}
		k := kind{round&1 > 0, round&2 > 0, round&4 > 0}
		limit := Limit{Rate: 1 + random.IntN(12), PerKey: k.perKey, ByCost: k.byCost, Queues: []string{"a"}}
		if k.window {
			limit.Window = time.Duration(1+random.IntN(400)) * ms
		}
		over := len(limit.Over(requests)) > 0
		if over != (limit.Most(requests) > limit.Rate) {
			t.Fatalf("round %d: over: %t, most %d of %+v", round, over, limit.Most(requests), limit)
		}
		if over {
			found[k]++
		}
	}
	if len(found) != 8 {
		t.Errorf("not every kind of limit was exceeded: %v", found)
	}
}

// sound is an account in which every rule holds. Call 1 was done at once, 2 at the second attempt and
// then retired, 3 gave up, 4 was deleted by the test while it ran.
func sound() Account {
	request := func(at int, call, attempt, queue string) Request {
		return Request{At: time.Duration(at) * ms, Call: call, Attempt: attempt, Queue: queue}
	}
	return Account{
		Limits: []Limit{
			{Name: "fast", Rate: 3, Window: time.Second, Queues: []string{"a", "b"}},
			{Name: "slow", Rate: 4, Window: 5 * time.Second, Queues: []string{"b"}},
		},
		Requests: []Request{
			request(0, "1", "1", "a"), request(10, "2", "1", "b"), request(20, "3", "1", "a"),
			request(1000, "2", "2", "b"), request(1030, "4", "1", "b"),
		},
		Acknowledged: []int64{1, 2, 3, 4},
		Calls: []Call{
			{ID: 1, Status: "done"},
			{ID: 2, Status: "done", Deleted: true},
			{ID: 3, Status: "failed"},
			{ID: 4, Status: "dispatched", Deleted: true, ByTest: true},
			{ID: 5, Status: "cancelled"}, // its insert was not acknowledged
		},
		Attempts: []Attempt{
			{Call: 1, Attempt: 1, Outcome: "done", Charged: 1},
			{Call: 2, Attempt: 1, Outcome: "error", Charged: 2},
			{Call: 2, Attempt: 2, Outcome: "done", Charged: 2},
			{Call: 3, Attempt: 1, Outcome: "permanent", Charged: 1},
			{Call: 3, Attempt: 2, Outcome: "not_sent"},
			{Call: 4, Attempt: 1, Outcome: "done", Charged: 2},
		},
	}
}

// Each planted violation is found, and nothing else is.
func TestFindings(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name  string
		plant func(*Account)
		want  []string // the beginnings of what is found
	}{
		{"sound", func(*Account) {}, nil},
		{"over the limit by one", func(a *Account) { a.Requests[3].At -= ms }, []string{"no window holds more than the rate: limit fast allows 3"}},
		{"over one of two limits", func(a *Account) {
			for i := range 3 {
				attempt := Attempt{Call: 6, Attempt: i + 1, Outcome: "error", Charged: 2}
				a.Attempts = append(a.Attempts, attempt)
				a.Requests = append(a.Requests, Request{At: time.Duration(2+i) * 1400 * ms, Call: "6", Attempt: fmt.Sprint(i + 1), Queue: "b"})
			}
		}, []string{"no window holds more than the rate: limit slow allows 4"}},
		{"over the cost", func(a *Account) {
			a.Limits[1].ByCost = true
			a.Requests[1].Cost, a.Requests[4].Cost = 4, 1
		}, []string{"no window holds more than the rate: limit slow allows 4 in 5s, and 5 arrived"}},
		{"over what one key may have", func(a *Account) {
			a.Limits[0].PerKey, a.Limits[0].Rate = true, 1
			for i := range a.Requests {
				a.Requests[i].Key = []string{"x", "", "x", "y", "z"}[i]
			}
		}, []string{`no window holds more than the rate: limit fast, key "x", allows 1`}},
		{"too many at once", func(a *Account) {
			a.Limits[0].Window = 0
			for i := range 3 {
				a.Requests[i].End = 2 * time.Second
			}
		}, []string{"no more are there at once than may be: limit fast allows 3 at once, and 4 were there"}},
		{
			"an attempt sent twice", func(a *Account) { a.Requests[4].Call, a.Requests[4].Attempt = "2", "2" },
			[]string{"an attempt sends at most one request: 2 requests arrived of call 2 attempt 2", "a done call has exactly one done attempt: call 4"},
		},
		{"a lost id", func(a *Account) { a.Acknowledged = append(a.Acknowledged, 77) }, []string{"nothing vanishes: call 77"}},
		{"a stuck call", func(a *Account) { a.Calls[2].Status = "error" }, []string{"every call ends: call 3 is stuck"}},
		{"a stuck call that nobody was told of", func(a *Account) { a.Calls[4].Status = "new" }, []string{"every call ends: call 5 is stuck"}},
		{"removed before its end", func(a *Account) { a.Calls[3].ByTest = false }, []string{
			"every call ends: call 4 was removed", "a done call has exactly one done attempt: call 4",
		}},
		{"an open attempt", func(a *Account) { a.Open = 1 }, []string{"every attempt ends: 1"}},
		{"done twice", func(a *Account) { a.Attempts[1].Outcome = "done" }, []string{"a done call has exactly one done attempt: call 2, done: done attempts [1 2]"}},
		{"done by no attempt", func(a *Account) { a.Attempts[0].Outcome = "error" }, []string{"a done call has exactly one done attempt: call 1"}},
		{"an older result overwrote a newer", func(a *Account) { a.Calls[0].Status = "failed" }, []string{"a done call has exactly one done attempt: call 1, failed"}},
		{"done without a request", func(a *Account) { a.Requests = a.Requests[1:] }, []string{"a done call has exactly one done attempt: call 1"}},
		{"sent and taken for unsent", func(a *Account) { a.Attempts[3].Charged = 0 }, []string{"what was sent is charged: call 3 attempt 1 was charged to 0 limits of 1"}},
		{"charged to one limit of two", func(a *Account) { a.Attempts[5].Charged = 1 }, []string{"what was sent is charged: call 4"}},
		{"poison that was sent", func(a *Account) { a.Calls[0].Poison = true }, []string{"a call that cannot be made fails: call 1 is done"}},
		{"sent and not in the ledger", func(a *Account) { a.Attempts = append(a.Attempts[:3], a.Attempts[4:]...) }, []string{"what was sent is charged: call 3"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := sound()
			c.plant(&a)
			got := a.Findings()
			ok := len(got) == len(c.want)
			for i := 0; ok && i < len(got); i++ {
				ok = strings.HasPrefix(got[i].String(), c.want[i])
			}
			if !ok {
				t.Errorf("found %v, want %q", got, c.want)
			}
		})
	}
}
