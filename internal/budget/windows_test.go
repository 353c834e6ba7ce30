package budget_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/redistest"
)

func parsed(t *testing.T, text string, algorithm limit.Algorithm, zone string) budget.Rule {
	t.Helper()
	r, err := budget.Parse(text, algorithm, 1, zone)
	if err == nil {
		err = r.Check()
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// overWindow finds a window that began at a grant and has more than the rate's units.
func overWindow(rate limit.Rate, grants []granted) error {
	for i, first := range grants {
		units := int64(0)
		for _, g := range grants[i:] {
			if g.at >= first.at+rate.Window {
				break
			}
			units += g.units
		}
		if units > rate.Units {
			return fmt.Errorf("%d units within %s from %s on, which may have %d", units, rate.Window, first.at, rate.Units)
		}
	}
	return nil
}

// No window that slides has more than its units, and what is used comes free a bucket after it has passed, at the latest.
//
//callq:guarantee 14
func TestSlidingWindowKeepsItsRule(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	waiting := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		r := parsed(t, fmt.Sprintf("%d/%dms", 1+power(rng, 3), 10+power(rng, 5)), limit.SlidingWindow, "")
		name, window := fmt.Sprint(seed), r.Rate.Window
		late := window / 200 // a bucket
		var grants []granted
		now, last := time.Duration(0), time.Duration(0)
		for i := range 60 {
			now += time.Duration(float64(window) * rng.Float64() * []float64{0, 0.01, 0.3, 1.2}[rng.IntN(4)]).Truncate(time.Microsecond)
			n := 1 + rng.Int64N(r.Rate.Units)
			g := mustDraw(t, client, name, r, n, budget.Forever, now)
			at := g.At.Sub(base)
			// The last moment at which it must go: when only what was granted since leaves room.
			by, used := max(now, last), n
			for j := len(grants) - 1; j >= 0; j-- {
				if used += grants[j].units; used > r.Rate.Units {
					by = max(by, grants[j].at+window+late+time.Microsecond)
					break
				}
			}
			if at > by || at < last {
				t.Fatalf("seed %d, %v: draw %d of %d at %s is granted at %s, want %s to %s", seed, &r, i, n, now, at, max(now, last), by)
			}
			if at > now {
				waiting++
			}
			last = at
			grants = append(grants, granted{at, n})
		}
		if err := overWindow(r.Rate, grants); err != nil {
			t.Errorf("seed %d, %v: %v", seed, &r, err)
		}
	}
	if waiting < 500 {
		t.Errorf("%d draws waited: too few to mean much", waiting)
	}
}

// Each window of the calendar has its units, and no more; also where the time zone changes its clocks.
//
//callq:guarantee 14
func TestFixedWindowKeepsItsRule(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	r := parsed(t, "5/1d", limit.FixedWindow, "Europe/Berlin")
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 10, 23, 22, 0, 0, 0, berlin) // the 25th has 25 hours
	for i := range 17 {
		g, err := budget.DrawAt(t.Context(), client, budget.Forever, now, budget.Units{Name: "day", Rule: r, N: 1})
		if err != nil {
			t.Fatal(err)
		}
		want := now
		if day := i / 5; day > 0 {
			want = time.Date(2026, 10, 23+day, 0, 0, 0, 0, berlin)
		}
		if !g.At.Equal(want) {
			t.Errorf("unit %d is granted at %s, want %s", i, g.At, want)
		}
	}
}

// A leaky bucket gives one at a time, evenly.
func TestLeakyBucketIsEven(t *testing.T) {
	t.Parallel()
	client, r := redistest.New(t), parsed(t, "10/s", limit.LeakyBucket, "")
	for i := range 20 {
		want := time.Duration(i) * 100 * time.Millisecond
		if at := mustDraw(t, client, "even", r, 1, budget.Forever, 0).At.Sub(base); at < want || at > want+time.Duration(3*i)*time.Microsecond {
			t.Errorf("unit %d is granted at %s, want %s", i, at, want)
		}
	}
}

// Draws of several budgets take all or none, at one moment, and no other draw comes between.
//
//callq:guarantee 14 15
func TestDrawSeveral(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	requests := budget.Units{Name: "openai/requests", Rule: rule(1, time.Hour, 40), N: 1}
	tokens := budget.Units{Name: "openai/tokens", Rule: parsed(t, "100/h", limit.SlidingWindow, ""), N: 10}
	var both sync.WaitGroup
	var mu sync.Mutex
	drawn := 0
	for range 4 {
		both.Go(func() {
			for range 10 {
				g, err := budget.Draw(t.Context(), client, "", 0, requests, tokens)
				if err != nil {
					t.Error(err)
				}
				if !g.Drawn && g.Last != 1 {
					t.Errorf("%+v: it waits for requests", g)
				}
				mu.Lock()
				if g.Drawn {
					drawn++
				}
				mu.Unlock()
			}
		})
	}
	both.Wait()
	states, err := budget.Peek(t.Context(), client, requests, tokens)
	if err != nil || drawn != 10 || states[0].Free != 30 || states[1].Free != 0 {
		t.Errorf("%d drawn, %+v (%v), want 10, with 30 requests and no tokens left", drawn, states, err)
	}
}

// Keys have budgets of their own, some of them other units.
func TestDrawPerKey(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	r := parsed(t, "2/h", limit.SlidingWindow, "")
	r.PerKey, r.Overrides = true, map[string]int64{"big": 5}
	for key, want := range map[string]int{"a": 2, "b": 2, "": 2, "big": 5} {
		got := 0
		for range 10 {
			g, err := budget.Draw(t.Context(), client, "", 0, budget.Units{Name: "api", Rule: r, Key: key, N: 1})
			if err != nil {
				t.Fatal(err)
			}
			if g.Drawn {
				got++
			}
		}
		if got != want {
			t.Errorf("%d units of key %q, want %d", got, key, want)
		}
	}
}

// Corrected down, a draw leaves more for others, and never more than had nobody drawn it; corrected up, less.
//
//callq:guarantee 14
func TestAdjust(t *testing.T) {
	t.Parallel()
	for what, r := range map[string]budget.Rule{
		"token": rule(10, time.Second, 100), "sliding": parsed(t, "100/10s", limit.SlidingWindow, ""),
		"fixed": parsed(t, "100/10s", limit.FixedWindow, ""),
	} {
		client := redistest.New(t)
		u := budget.Units{Name: what, Rule: r, N: 1}
		adjust := func(g budget.Grant, by int64, now time.Duration) {
			t.Helper()
			if err := budget.AdjustAt(t.Context(), client, u, g.Parts[0], by, base.Add(now)); err != nil {
				t.Fatal(err)
			}
		}
		has := func(want int64, now time.Duration) {
			t.Helper()
			if free, err := budget.FreeAt(t.Context(), client, u, base.Add(now)); err != nil || free != want {
				t.Errorf("%s, at %s: %d units are free (%v), want %d", what, now, free, err, want)
			}
		}
		first := mustDraw(t, client, what, r, 60, 0, 0)
		adjust(first, -20, 0)
		has(60, 0)
		adjust(first, 50, 0)
		has(10, 0)
		adjust(first, 50, 0) // more than it may ever have at once
		has(0, time.Millisecond)
		adjust(first, -140, time.Millisecond)
		if what == "token" { // which takes it that all that was taken since was taken later
			has(0, time.Millisecond)
		} else {
			has(100, time.Millisecond)
		}
		// What is given back when its window has long passed is lost.
		late := mustDraw(t, client, what, r, 100, 0, 20*time.Second)
		now := time.Minute
		mustDraw(t, client, what, r, 100, 0, now)
		adjust(late, -100, now)
		has(0, now)
	}
}

// Whatever is drawn and corrected, and whenever: the units that were not given back keep the rule.
//
//callq:guarantee 14
func TestAdjustKeepsTheRule(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 6))
		r, name := rule(1+rng.Int64N(50), time.Second, 2+rng.Int64N(50)), fmt.Sprint("t", seed)
		sliding := seed%2 == 0
		if sliding {
			r = parsed(t, fmt.Sprintf("%d/s", 2+rng.Int64N(50)), limit.SlidingWindow, "")
		}
		most := max(r.Burst, r.Rate.Units*map[bool]int64{true: 1}[sliding])
		var grants []granted
		var parts []budget.Part
		now := time.Duration(0)
		for range 80 {
			now += time.Duration(rng.Int64N(int64(300 * time.Millisecond))).Truncate(time.Microsecond)
			if i := len(grants) - 1 - rng.IntN(4); i >= 0 && rng.IntN(2) == 0 && grants[i].units > 0 {
				by := 1 + rng.Int64N(grants[i].units)
				if err := budget.AdjustAt(t.Context(), client, budget.Units{Name: name, Rule: r, N: 1}, parts[i], -by, base.Add(now)); err != nil {
					t.Fatal(err)
				}
				grants[i].units -= by
				continue
			}
			n := 1 + rng.Int64N(most)
			g := mustDraw(t, client, name, r, n, budget.Forever, now)
			grants, parts = append(grants, granted{g.At.Sub(base), n}), append(parts, g.Parts[0])
		}
		err := over(r, grants)
		if sliding {
			err = overWindow(r.Rate, grants)
		}
		if err != nil {
			t.Errorf("seed %d, %v: %v", seed, &r, err)
		}
	}
}

// A budget that is throttled gives half, and comes back within a minute; many who ask at once are one.
func TestThrottle(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	now := time.Duration(0)
	throttle := func(name string, r budget.Rule) float64 {
		t.Helper()
		m, err := budget.ThrottleAt(t.Context(), client, budget.Units{Name: name, Rule: r, N: 1}, base.Add(now))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	perSecond := func(name string, r budget.Rule) (units int) {
		for end := now + 10*time.Second; now < end; now += 100 * time.Millisecond {
			for mustDraw(t, client, name, r, 1, 0, now).Drawn {
				units++
			}
		}
		return units / 10
	}
	for name, r := range map[string]budget.Rule{"token": rule(80, time.Second, 20), "sliding": parsed(t, "80/1s", limit.SlidingWindow, "")} {
		now = 0
		if n := perSecond(name, r); n < 76 || n > 83 {
			t.Errorf("%s: %d a second, want 80", name, n)
		}
		for range 10 {
			if m := throttle(name, r); m != 0.5 {
				t.Fatalf("%s: the multiplier is %v, want 0.5", name, m)
			}
		}
		if n := perSecond(name, r); n < 40 || n > 50 { // a sixth of a minute gives a sixth back
			t.Errorf("%s: %d a second, want 46", name, n)
		}
		for range 10 {
			now += time.Second
			throttle(name, r)
		}
		if m := throttle(name, r); m < 0.06 || m > 0.09 {
			t.Errorf("%s: the multiplier is %v, want a sixteenth", name, m)
		}
		now += time.Minute
		if n := perSecond(name, r); n < 76 || n > 83 {
			t.Errorf("%s: %d a second again, want 80", name, n)
		}
	}
}

// What makes no sense is refused, and leaves nothing.
func TestScriptsRefuse(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	for _, bad := range []string{"nan", "-nan", "inf", "-1", "0", "", "many"} {
		for at := range 4 {
			of := []any{"token", "10", "1000000", "10", "1"}
			of[1+at] = bad
			if err := budget.Raw(t.Context(), client, of...); err == nil {
				t.Errorf("%v is taken", of)
			}
		}
	}
	if n := client.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

// What is not drawn on leaves Redis once it is as if it never had been, whatever its algorithm.
func TestIdleBudgetsExpire(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	for i, r := range []budget.Rule{
		rule(10, time.Minute, 10), parsed(t, "10/1m", limit.SlidingWindow, ""), parsed(t, "10/1m", limit.FixedWindow, ""), parsed(t, "10/1m", limit.LeakyBucket, ""),
	} {
		if _, err := budget.Draw(t.Context(), client, "", 0, budget.Units{Name: fmt.Sprint(i), Rule: r, N: 1}); err != nil {
			t.Fatal(err)
		}
	}
	keys := client.Keys(t.Context(), "*").Val()
	for _, key := range keys {
		if ttl := client.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > 65*time.Second {
			t.Errorf("%s goes in %s", key, ttl)
		}
	}
	if len(keys) != 5 { // one has a log
		t.Errorf("the keys are %q", keys)
	}
}

// On a cluster, budgets of one name up to the first slash are drawn on at once.
func TestDrawOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + nodes[0].Port}})
	defer client.Close()
	of := func(name string) budget.Units { return budget.Units{Name: name, Rule: rule(1, time.Hour, 10), N: 1} }
	if g, err := budget.Draw(t.Context(), client, "", 0, of("openai/requests"), of("openai/tokens")); err != nil || !g.Drawn {
		t.Errorf("%+v, %v", g, err)
	}
	if _, err := budget.Draw(t.Context(), client, "", 0, of("a"), of("b"), of("c")); err == nil || !strings.Contains(err.Error(), "up to the first slash") {
		t.Errorf("of other names: %v", err)
	}
}
