package dispatcher

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/google/go-cmp/cmp"
)

func per(units int64, window time.Duration) LimitRule {
	return LimitRule{
		Name: "api", Rate: limit.Rate{Units: units, Window: window}, Slack: time.Second, SendWithin: time.Second,
		RetryAfter: new(time.Hour),
	}
}

func with(l LimitRule, change func(*LimitRule)) LimitRule { change(&l); return l }

func TestStricterLimit(t *testing.T) {
	t.Parallel()
	base := per(10, time.Minute)
	anchored := func(a limit.Anchor) LimitRule { return with(base, func(l *LimitRule) { l.Anchor = a }) }
	cost := func(l LimitRule) LimitRule { l.CountCost = true; return l }
	key := func(l LimitRule) LimitRule { l.PerKey = true; return l }
	from := func(most time.Duration, hosts ...string) LimitRule {
		return with(base, func(l *LimitRule) { l.Hosts, l.RetryAfter = hosts, &most })
	}
	const anyCost = math.MaxInt64
	cases := []struct {
		name string
		a, b LimitRule
		want LimitRule
		most int64 // that a call may cost
	}{
		{"the same", base, base, base, anyCost},
		{"fewer units", base, per(7, time.Minute), per(7, time.Minute), anyCost},
		{"a longer window", base, per(10, time.Hour), per(10, time.Hour), anyCost},
		{"fewer units in a shorter window", base, per(1, time.Second), per(1, time.Minute), anyCost},
		{"at once", per(5, 0), per(3, 0), per(3, 0), anyCost},
		{"in all", key(base), base, base, anyCost},
		{"to each key", key(base), key(per(12, time.Minute)), key(base), anyCost},
		{"fewer to each key than in all", key(per(3, time.Minute)), base, per(3, time.Minute), anyCost},
		{"cost", cost(base), cost(per(7, time.Minute)), cost(per(7, time.Minute)), 10},
		{"cost and calls", cost(base), per(20, time.Minute), cost(base), anyCost},
		{"slack", base, with(base, func(l *LimitRule) { l.Slack = time.Hour }), with(base, func(l *LimitRule) { l.Slack = time.Hour }), anyCost},
		{"send_within", base, with(base, func(l *LimitRule) { l.SendWithin = 1 }), with(base, func(l *LimitRule) { l.SendWithin = 1 }), anyCost},
		{"finish and none", anchored("finish"), base, anchored("finish"), anyCost},
		{"finish and start", anchored("finish"), anchored("start"), anchored("finish"), anyCost},
		{"none and start", base, anchored("start"), base, anyCost},
		{"start and dispatch", anchored("start"), anchored("dispatch"), anchored("start"), anyCost},
		{"hosts and others", from(time.Hour, "a"), from(time.Hour, "b"), from(time.Hour, "a", "b"), anyCost},
		{"hosts and anybody", from(time.Hour, "a"), base, base, anyCost},
		{"retry_after", from(0), from(time.Minute), from(time.Minute), anyCost},
		{"retry_after of an older version", from(0), with(base, func(l *LimitRule) { l.RetryAfter = nil }), base, anyCost},
		{"none and dispatch", base, anchored("dispatch"), base, anyCost},
	}
	for _, c := range cases {
		for _, order := range [][]LimitRule{{c.a, c.b}, {c.b, c.a}} {
			got, most := strictest(order)
			if !reflect.DeepEqual(got, c.want) || most != c.most {
				t.Errorf("%s: of %v it is %v, at most %d a call, want %v, %d", c.name, order, got, most, c.want, c.most)
			}
		}
	}
}

// request is one that arrived at an API.
type request struct {
	at   time.Duration
	key  int
	cost int64
}

// most is the most that a rule counts in a window that ends with one of these requests.
func most(l LimitRule, sent []request, ends ...request) int64 {
	var most int64
	for _, end := range ends {
		used := map[int]int64{}
		for _, r := range sent {
			if r.at <= end.at-l.Rate.Window || r.at > end.at {
				continue
			}
			key, cost := 0, int64(1)
			if l.PerKey {
				key = r.key
			}
			if l.CountCost {
				cost = r.cost
			}
			used[key] += cost
		}
		for _, n := range used {
			most = max(most, n)
		}
	}
	return most
}

// What keeps to the strictest keeps to each. The first of the rules holds alone until the others
// come, and it is kept over that moment too.
func TestStrictestImpliesEach(t *testing.T) {
	t.Parallel()
	const come, end = 30, 60
	refused := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		rules := make([]LimitRule, 2+rng.IntN(3))
		for i := range rules {
			rules[i] = per(1+rng.Int64N(12), time.Duration(1+rng.IntN(12)))
			rules[i].PerKey, rules[i].CountCost = rng.IntN(2) == 0, rng.IntN(2) == 0
		}
		holds := rules[0]
		strict, _ := strictest(rules)
		var all, since []request
		for at := range time.Duration(end) {
			if at == come {
				holds = strict
			}
			for range 4 { // as a claim does, it looks at the window behind it
				r := request{at, rng.IntN(2), 1 + rng.Int64N(3)}
				if most(holds, append(slices.Clip(all), r), r) > holds.Rate.Units {
					refused++
					continue
				}
				all = append(all, r)
				if at >= come {
					since = append(since, r)
				}
			}
		}
		for i, l := range rules {
			of := since
			if i == 0 {
				of = all
			}
			if most(l, of, of...) > l.Rate.Units {
				t.Fatalf("seed %d: %v is exceeded where %v holds, of %v: %v", seed, l, strict, rules, of)
			}
		}
	}
	if refused < 10000 {
		t.Errorf("only %d requests were refused: the rules were not put to the test", refused)
	}
}

func TestStricter(t *testing.T) {
	t.Parallel()
	q := func(name string, attempts int, limits ...string) QueueRule {
		return QueueRule{Name: name, MaxAttempts: attempts, Limits: limits}
	}
	open := func(q QueueRule, hours ...string) QueueRule { q.Hours = hours; return q }
	other := with(per(5, time.Hour), func(l *LimitRule) { l.Name = "other" })
	all := []Published{
		{By: "a", Rules: Rules{Limits: []LimitRule{per(10, time.Minute), other}, Queues: []QueueRule{
			open(q("shared", 3, "api", "other"), "Mon-Fri 09:00-18:00 Europe/Berlin"), open(q("old", 3), "22:00-06:00 UTC"),
		}}},
		{By: "b", Rules: Rules{Limits: []LimitRule{per(4, time.Minute)}, Queues: []QueueRule{open(q("shared", 5, "api"), "12:00-13:00 UTC"), q("new", 5, "api")}}},
	}
	want := inForce{
		Rules: Rules{
			Limits: []LimitRule{per(4, time.Minute), other},
			Queues: []QueueRule{q("new", 5, "api"), open(q("old", 3), "22:00-06:00 UTC"), open(q("shared", 5, "api", "other"), "12:00-13:00 UTC", "Mon-Fri 09:00-18:00 Europe/Berlin")},
		},
		mostCost: map[string]int64{"api": math.MaxInt64, "other": math.MaxInt64},
	}
	got, err := stricter(all)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(inForce{})); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
	slices.Reverse(all)
	want.Queues[2].MaxAttempts = 3 // the newest says it
	got, err = stricter(all)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(inForce{})); err != nil || diff != "" {
		t.Errorf("the other way round: %v, %s", err, diff)
	}
	if got, err := stricter(nil); err != nil || len(got.Limits)+len(got.Queues) > 0 {
		t.Errorf("of nothing: %v, %v", got, err)
	}

	all[0].Rules.Limits[0] = per(4, 0)
	_, err = stricter(all)
	conflict, ok := errors.AsType[*ConflictError](err)
	if !ok || conflict.Limit != "api" || conflict.By != [2]string{"b", "a"} {
		t.Fatalf("a rate and a concurrency: %v", err)
	}
	const says = `limit "api" is 4 at once to b and 10 per 1m, sliding window to a`
	if !strings.Contains(err.Error(), says) {
		t.Errorf("the error is %q, want %q in it", err, says)
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	a := Rules{Limits: []LimitRule{per(10, time.Minute)}, Queues: []QueueRule{{Name: "q", Limits: []string{"api"}, MaxAttempts: 3}}}
	b := Rules{Limits: []LimitRule{per(5, time.Minute)}, Queues: []QueueRule{{Name: "q", Limits: []string{"api"}, MaxAttempts: 3}, {Name: "new"}}}
	limits, queues := Differences([]Published{{By: "1", Rules: a}, {By: "2", Rules: b}, {By: "3", Rules: a}})
	wantLimits := map[string][]Want{"api": {
		{[]string{"1", "3"}, "10 per 1m, sliding window, slack 1s, send_within 1s"}, {[]string{"2"}, "5 per 1m, sliding window, slack 1s, send_within 1s"},
	}}
	wantQueues := map[string][]Want{"new": {
		{[]string{"1", "3"}, "not in its configuration"}, {[]string{"2"}, fmt.Sprint(QueueRule{Name: "new"})},
	}}
	if diff := cmp.Diff(wantLimits, limits) + cmp.Diff(wantQueues, queues); diff != "" {
		t.Error(diff)
	}
	for _, live := range [][]Published{nil, {{By: "1", Rules: a}}, {{By: "1", Rules: a}, {By: "2", Rules: a}}} {
		if limits, queues := Differences(live); len(limits)+len(queues) > 0 {
			t.Errorf("they agree, and differ in %v, %v", limits, queues)
		}
	}
}
