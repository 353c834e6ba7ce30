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

// Over and Most count in two ways; they must agree.
func TestOverAgreesWithMost(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 500 {
		var millis []int
		for range 40 {
			millis = append(millis, random.IntN(2000))
		}
		requests := at(millis...)
		limit := Limit{Rate: 1 + random.IntN(12), Window: time.Duration(1+random.IntN(400)) * ms, Queues: []string{"a"}}
		if over := len(limit.Over(requests)) > 0; over != (limit.Most(requests) > limit.Rate) {
			t.Fatalf("round %d: over: %t, most %d of %d in %s", round, over, limit.Most(requests), limit.Rate, limit.Window)
		}
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
