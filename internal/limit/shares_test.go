package limit

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

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

// Units are used whenever some share wants them, none gets more than it wants, and one that wants all the time has at least its part of
// what came free since it began, but for two units.
func TestTurns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := drawTurns(rt)
		turns := NewTurns(c.shares, func() float64 { return 1 })
		type spell struct{ units, got int64 }
		busy := map[string]*spell{}
		for _, r := range c.rounds {
			got := turns.Split(r.wants, r.units, c.window)
			sum, wanted := int64(0), int64(0)
			for name := range c.shares {
				sum, wanted = sum+got[name], wanted+r.wants[name].Units
				if got[name] < 0 || got[name] > r.wants[name].Units {
					rt.Fatalf("%s wants %d and gets %d", name, r.wants[name].Units, got[name])
				}
				if got[name] > 0 {
					turns.Took(name, got[name])
				}
				if r.wants[name].Units < 1000 {
					delete(busy, name)
					continue
				}
				if busy[name] == nil {
					busy[name] = &spell{}
				}
				b := busy[name]
				b.units, b.got = b.units+r.units, b.got+got[name]
			}
			if sum != min(wanted, r.units) {
				rt.Fatalf("of %d units %d are used, of %d wanted", r.units, sum, wanted)
			}
		}
		for name, b := range busy {
			// Others may be a window behind when it begins, and are served first.
			others := float64(c.window)*(1-c.shares[name]/100) + float64(len(c.shares))
			if least := (float64(b.units)-others)*c.shares[name]/100 - 2; float64(b.got) < least {
				rt.Fatalf("%s, %v%% of %d, got %d, want at least %.1f", name, c.shares[name], b.units, b.got, least)
			}
		}
	})
}

// A share that had no calls for long has its part of a window at once, and then keeps to it.
func TestTurnsComeBack(t *testing.T) {
	t.Parallel()
	s := Shares{"chat": 30, Rest: 70}
	turns := NewTurns(s, rand.Float64)
	for range 1000 { // rest alone
		got := turns.Split(map[string]Demand{Rest: {1e6, 1}}, 100, 100)
		if got[Rest] != 100 {
			t.Fatalf("alone, the rest gets %d of 100", got[Rest])
		}
		turns.Took(Rest, 100)
	}
	first, total := int64(0), int64(0)
	for i := range 200 { // as units come free, one by one
		got := turns.Split(map[string]Demand{"chat": {1e6, 1}, Rest: {1e6, 1}}, 1, 100)
		for name, n := range got {
			if n > 0 {
				turns.Took(name, n)
			}
		}
		if total += got["chat"]; i < 30 {
			first += got["chat"]
		}
	}
	if first < 29 || total < 80 || total > 85 {
		t.Errorf("of the first 30 units chat gets %d, of 200 %d, want 30 and 30 + 30%% of 170", first, total)
	}
}

// Of one unit a run of a process, each share has its part of the runs.
func TestTurnsOfOneUnit(t *testing.T) {
	t.Parallel()
	s := Shares{"a": 10, "b": 30, Rest: 60}
	random := rand.New(rand.NewPCG(1, 2))
	wins := map[string]int{}
	for range 10_000 {
		for name, n := range NewTurns(s, random.Float64).Split(map[string]Demand{"a": {9, 1}, "b": {9, 1}, Rest: {9, 1}}, 1, 1) {
			wins[name] += int(n)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if part := float64(wins[name]) / 100; part < s[name]*0.85 || part > s[name]*1.15 {
			t.Errorf("%s has %.1f%% of the runs, want %v%%", name, part, s[name])
		}
	}
}
