package limit

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestShareOf(t *testing.T) {
	t.Parallel()
	s := Shares{"chat": 30, "priority 0-2": 10, "priority 9": 10, Retries: 20, Rest: 30}
	for _, c := range []struct {
		queue    string
		priority int
		retry    bool
		want     string
	}{
		{"chat", 5, false, "chat"},
		{"chat", 1, false, "chat"},
		{"chat", 1, true, Retries},
		{"import", 2, false, "priority 0-2"},
		{"import", 3, false, Rest},
		{"import", 9, false, "priority 9"},
		{Rest, 5, false, Rest},
		{Retries, 5, false, Rest},
	} {
		if got := s.Of(c.queue, c.priority, c.retry); got != c.want {
			t.Errorf("a call of %s, priority %d, retry %t is of %q, want %q", c.queue, c.priority, c.retry, got, c.want)
		}
		if !slices.Contains(s.Among(c.queue), c.want) {
			t.Errorf("a call of %s is of %q, which is not among %q", c.queue, c.want, s.Among(c.queue))
		}
	}
	if got := (Shares{"chat": 30}).Of("import", 5, false); got != "" {
		t.Errorf("a call that no share is for is of %q", got)
	}
}

func TestCompleteShares(t *testing.T) {
	t.Parallel()
	queues := []string{"chat", "import"}
	for text, want := range map[string]string{
		"chat 30":                                 "chat 30%, rest 70%",
		"chat 30, rest 70":                        "chat 30%, rest 70%",
		"chat 30, import 70":                      "chat 30%, import 70%",
		"chat 30, import 60":                      "chat 30%, import 60%, rest 10%",
		"chat 12.5, retries 20, rest 67.5":        "chat 12.5%, rest 67.5%, retries 20%",
		"priority 0-4 50, priority 5-9 50":        "priority 0-4 50%, priority 5-9 50%",
		"priority 0 33.3, retries 33.3":           "priority 0 33.3%, rest 33.4%, retries 33.3%",
		"chat 30, rest 60":                        "add up to 90%",
		"chat 60, rest 60":                        "add up to 120%",
		"chat 100":                                "leave nothing",
		"chat 50, retries 50":                     "leave nothing",
		"mail 30":                                 `"mail" is no queue that uses the limit`,
		"priority 3-1 30":                         "is no queue",
		"priority 10 30":                          "is no queue",
		"priority 0-3 30, priority 3 20, rest 50": "both have priority 3",
	} {
		s := Shares{}
		for _, part := range strings.Split(text, ", ") {
			i := strings.LastIndex(part, " ")
			percent, err := ParsePart(part[i+1:] + "%")
			if err != nil {
				t.Fatal(err)
			}
			s[part[:i]] = percent
		}
		whole, _, err := s.Complete(queues)
		if got := whole.String(); err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "30", "%", "-3%", "0%", "101%", "1e1%", "+5%", "0x10%", "Inf%", "NaN%", "3 %"} {
		if part, err := ParsePart(text); err == nil {
			t.Errorf("%q is a part: %v", text, part)
		}
	}
}

// turnsCase is a limit's shares, and what each wants in each round of units that come free.
type turnsCase struct {
	shares Shares
	window int64
	rounds []turnsRound
}

type turnsRound struct {
	units int64
	wants map[string]Demand
}

func drawTurns(t *rapid.T) turnsCase {
	c := turnsCase{shares: Shares{}, window: rapid.Int64Range(1, 200).Draw(t, "window")}
	names := []string{"a", "b", "c", Rest}[:rapid.IntRange(2, 4).Draw(t, "shares")]
	left := 100.0
	for i, name := range names {
		c.shares[name] = left
		if i < len(names)-1 {
			c.shares[name] = float64(rapid.IntRange(1, int(left)/2).Draw(t, name))
		}
		left -= c.shares[name]
	}
	for range rapid.IntRange(1, 40).Draw(t, "rounds") {
		r := turnsRound{rapid.Int64Range(0, c.window).Draw(t, "units"), map[string]Demand{}}
		for _, name := range names {
			r.wants[name] = Demand{rapid.SampledFrom([]int64{0, 1, 5, 1000}).Draw(t, "wants"), 1}
		}
		c.rounds = append(c.rounds, r)
	}
	return c
}

// Units are used whenever some share wants them, and none gets more than it wants. Of a limit of which units are free again once a window
// has passed, each share that wants them has its part of every window.
func TestTurns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := drawTurns(rt)
		turns := NewTurns(c.shares, func() float64 { return 1 })
		now, step := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Minute
		const steps = 5 // in a window
		for _, r := range c.rounds {
			now = now.Add(step)
			used, all := turns.Within(now, steps*step), int64(0)
			for _, n := range used {
				all += n
			}
			units := min(r.units, c.window-all)
			got := turns.Split(Rate{Units: c.window}, r.wants, units, used)
			sum, wanted := int64(0), int64(0)
			for name := range c.shares {
				sum, wanted = sum+got[name], wanted+r.wants[name].Units
				if got[name] < 0 || got[name] > r.wants[name].Units {
					rt.Fatalf("%s wants %d and gets %d", name, r.wants[name].Units, got[name])
				}
				turns.Took(name, got[name], now, steps*step)
			}
			if sum != min(wanted, units) {
				rt.Fatalf("of %d units %d are used, of %d wanted", units, sum, wanted)
			}
			for name := range c.shares { // below its part, it goes before those that are above theirs
				part := int64(c.shares[name] * float64(c.window) / 100)
				if used[name]+got[name] >= part || got[name] == r.wants[name].Units {
					continue
				}
				for other := range c.shares {
					if above := used[other] + got[other] - int64(c.shares[other]*float64(c.window)/100); got[other] > 0 && above > 0 && other != name {
						rt.Fatalf("%s has %d of its %d, while %s got %d and is %d above its part", name, used[name]+got[name], part, other, got[other], above)
					}
				}
			}
		}
	})
}

// A share that had no calls for long has what comes free until it has its part, and then keeps to it.
func TestTurnsComeBack(t *testing.T) {
	t.Parallel()
	s := Shares{"chat": 30, Rest: 70}
	turns := NewTurns(s, rand.Float64)
	used := map[string]int64{}
	for range 1000 { // rest alone
		got := turns.Split(Rate{Units: 100}, map[string]Demand{Rest: {1e6, 1}}, 100, used)
		if got[Rest] != 100 {
			t.Fatalf("alone, the rest gets %d of 100", got[Rest])
		}
		turns.Took(Rest, 100, time.Time{}, 0)
	}
	used[Rest] = 100
	first, total := int64(0), int64(0)
	for i := range 200 { // the rest's units come free one by one, then as many of each as it has
		if i < 30 || i%10 >= 3 {
			used[Rest]--
		} else {
			used["chat"]--
		}
		got := turns.Split(Rate{Units: 100}, map[string]Demand{"chat": {1e6, 1}, Rest: {1e6, 1}}, 1, used)
		for name, n := range got {
			turns.Took(name, n, time.Time{}, 0)
			used[name] += n
		}
		if total += got["chat"]; i < 30 {
			first += got["chat"]
		}
	}
	if first != 30 || total < 78 || total > 84 {
		t.Errorf("of the first 30 units chat gets %d, of 200 %d, want 30 and 30 + 30%% of 170", first, total)
	}
}

// Of one unit a run of a process, each share has its part of the runs, and of many in one process its part of them.
func TestTurnsOfOneUnit(t *testing.T) {
	t.Parallel()
	s := Shares{"a": 10, "b": 30, Rest: 60}
	random := rand.New(rand.NewPCG(1, 2))
	all := map[string]Demand{"a": {9, 1}, "b": {9, 1}, Rest: {9, 1}}
	same := NewTurns(s, random.Float64)
	runs, units := map[string]int{}, map[string]int{}
	for range 10_000 {
		for name, n := range NewTurns(s, random.Float64).Split(Rate{Units: 1}, all, 1, nil) {
			runs[name] += int(n)
		}
		for name, n := range same.Split(Rate{Units: 1}, all, 1, nil) {
			same.Took(name, n, time.Time{}, 0)
			units[name] += int(n)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if part := float64(runs[name]) / 100; part < s[name]*0.85 || part > s[name]*1.15 {
			t.Errorf("%s has %.1f%% of the runs, want %v%%", name, part, s[name])
		}
		if part := float64(units[name]) / 100; part < s[name]-0.1 || part > s[name]+0.1 {
			t.Errorf("%s has %.1f%% of the units, want %v%%", name, part, s[name])
		}
	}
}
