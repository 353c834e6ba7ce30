package limit

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestAhead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"100/1s": 160 * time.Millisecond, "2000/1s": 80 * time.Millisecond, "100/10s": AheadMost, "1/1h": AheadMost,
		"10/100ms": 100 * time.Millisecond, "10/300ms": 60 * time.Millisecond, "1000000000/1h": 80 * time.Millisecond,
	} {
		r, err := ParseRate(text)
		if got := r.Ahead(); err != nil || got != want {
			t.Errorf("%s is given out %s ahead, %v, want %s", text, got, err, want)
		}
	}
	for _, r := range []Rate{{Units: 5}, {100, time.Second, Shape{Algorithm: FixedWindow}}, {100, time.Second, Shape{Algorithm: TokenBucket}}} {
		if r.Ahead() != 0 {
			t.Errorf("%+v is given out %s ahead", r, r.Ahead())
		}
	}
	if want := fmt.Sprintf("interval '%g seconds'", (ResendMost + AheadMost + RunLate).Seconds()); LateMostSQL != want {
		t.Errorf("late by %s at most, want %s", LateMostSQL, want)
	}
}

// Whatever is given out ahead, of one limit or two, by cost or by call: at no moment is more of a window used than the limit has.
//
//callq:guarantee 1
func TestAheadNeverOver(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	rapid.Check(t, func(t *rapid.T) {
		var a Admission
		var uses []Use
		for i := range rapid.IntRange(1, 2).Draw(t, "limits") {
			u := Use{Rate: Rate{Units: rapid.Int64Range(1, 12).Draw(t, "units"), Window: time.Second}}
			for range rapid.IntRange(0, 8).Draw(t, "charges") { // of which no claim lists those that end later than it may look
				c := Charge{now.Add(ms(rapid.IntRange(-999, 20).Draw(t, "until"))), rapid.Int64Range(1, 3).Draw(t, "charged")}
				u.Occupied += c.Units
				if !u.Rate.Passed(c.Until, 0).After(now.Add(u.Rate.Ahead())) {
					u.Charges = append(u.Charges, c)
				} else {
					u.Missing = rapid.SampledFrom([]*Missing{nil, nil, nil, {Until: now}}).Draw(t, "missing")
				}
			}
			uses = append(uses, u)
			q := Quota{CountCost: i == 0, Room: map[string]int64{"": u.Room(now, 0)}, Soon: map[string][]Charge{"": u.Soon(0)}}
			for _, c := range q.Soon[""] {
				q.Room[""] += c.Units
			}
			a = append(a, q)
		}
		var ats []time.Time
		var costs []int64
		for range 20 {
			cost := rapid.Int64Range(1, 3).Draw(t, "cost")
			if at, ok, _ := a.Admit("", cost); ok {
				ats, costs = append(ats, at), append(costs, cost)
			}
		}
		for i, u := range uses {
			if u.Missing != nil && len(u.Soon(0)) > 0 {
				t.Fatalf("limit %d gives out %v, while units are missing", i, u.Soon(0))
			}
			free := u.Rate.Units - u.Occupied
			for _, at := range slices.Concat([]time.Time{{}, now}, ats) {
				used, freed := int64(0), int64(0)
				for j, begins := range ats {
					if !begins.After(at) {
						used += map[bool]int64{true: costs[j], false: 1}[a[i].CountCost]
					}
				}
				for _, c := range u.Charges {
					if !u.Rate.Passed(c.Until, 0).After(at) {
						freed += c.Units
					}
				}
				if used > max(0, free+freed) {
					t.Fatalf("limit %d: %d used by %s, and %d free: %s", i, used, at.Sub(now), free+freed, fmt.Sprint(u, ats, costs))
				}
			}
		}
	})
}
