package budget_test

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/redistest"
)

// base is when the tests' own clocks begin.
var base = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func rule(units int64, window time.Duration, burst int64) budget.Rule {
	return budget.Rule{Rate: limit.Rate{Units: units, Window: window}, Burst: burst}
}

// drawnRule is a rule of any size that Check lets through.
func drawnRule(rng *rand.Rand) budget.Rule {
	for {
		r := rule(1+power(rng, 9), time.Duration(10+power(rng, 10))*time.Millisecond, 1+power(rng, 9))
		if r.Check() == nil {
			return r
		}
	}
}

// power is a number of any magnitude below 10^most.
func power(rng *rand.Rand, most int) int64 {
	n := int64(1)
	for range rng.IntN(most) {
		n *= 10
	}
	return rng.Int64N(n * 10)
}

func sortGrants(grants []granted) {
	slices.SortFunc(grants, func(a, b granted) int { return int(a.at - b.at) })
}

func mustDraw(t *testing.T, client *redis.Client, name string, r budget.Rule, n int64, most time.Duration, now time.Duration) budget.Grant {
	t.Helper()
	g, err := budget.DrawAt(t.Context(), client, most, base.Add(now), budget.Units{Name: name, Rule: r, N: n})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// fill is how long an empty bucket takes to fill, about.
func fill(r budget.Rule) time.Duration {
	return time.Duration(float64(r.Burst) * float64(r.Rate.Window) / float64(r.Rate.Units))
}

// some is a part of what fills the bucket, in microseconds.
func some(rng *rand.Rand, r budget.Rule) time.Duration {
	return time.Duration(float64(fill(r)) * rng.Float64() * []float64{0.001, 0.1, 0.6, 1.1}[rng.IntN(4)]).Truncate(time.Microsecond)
}

// Whatever the rule, and whenever one draws: no span has more than burst + rate x t; nothing waits for longer
// than an exact bucket would have it wait, but for what rounding costs; what is refused takes nothing.
//
//callq:guarantee 14 15
func TestBucketKeepsItsRule(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	granting, refusing, waiting := 0, 0, 0
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 0))
		r, name := drawnRule(rng), fmt.Sprint(seed)
		oracle := newExact(r, 0)
		var grants []granted
		now := time.Duration(0)
		unit := time.Duration(float64(r.Rate.Window) / float64(r.Rate.Units))
		for i := range 60 {
			if rng.IntN(3) > 0 {
				now += some(rng, r)
			}
			n := 1 + rng.Int64N(r.Burst)
			if rng.IntN(2) == 0 {
				n = min(r.Burst, 1+rng.Int64N(3))
			}
			most := budget.Forever
			if rng.IntN(3) == 0 {
				most = some(rng, r)
			}
			g := mustDraw(t, client, name, r, n, most, now)
			at := g.At.Sub(base)
			want := oracle.draw(now, n, g.Drawn)
			late := new(big.Rat).Sub(big.NewRat(int64(at), 1), want)
			// Each draw loses 2 microseconds at most, and 4 of 2^20 units.
			if most := time.Duration(i+1) * (2*time.Microsecond + unit/(1<<18)); late.Sign() < 0 || late.Cmp(big.NewRat(int64(most)+1, 1)) > 0 {
				t.Fatalf("seed %d, %v: draw %d of %d at %s is granted %s ns after it could be, want 0 to %s", seed, r, i, n, now, late.FloatString(3), most)
			}
			switch {
			case !g.Drawn && (most == budget.Forever || g.Wait <= most):
				t.Fatalf("seed %d: refused for %s, though it may wait %s", seed, g.Wait, most)
			case g.Drawn && most != budget.Forever && g.Wait > most:
				t.Fatalf("seed %d: granted after %s, though it may wait %s", seed, g.Wait, most)
			case g.Drawn:
				grants = append(grants, granted{at, n})
				granting++
				if g.Wait > 0 {
					waiting++
				}
			default:
				refusing++
			}
		}
		now = max(now, grants[len(grants)-1].at) + fill(r) + fill(r)/1000 + 10*time.Microsecond
		if g := mustDraw(t, client, name, r, r.Burst, 0, now); g.Drawn {
			grants = append(grants, granted{now, r.Burst})
		} else {
			t.Errorf("seed %d, %v: it is never full again, but in %s", seed, r, g.Wait)
		}
		if err := over(r, grants); err != nil {
			t.Errorf("seed %d, %v: %v", seed, r, err)
		}
	}
	if granting < 3000 || refusing < 300 || waiting < 1000 {
		t.Errorf("%d granted, %d of them after a wait, %d refused: too few to mean much", granting, waiting, refusing)
	}
}

// A clock that is set back gives nothing away: in true time no span has more. Nor does it stop draws until it
// has caught up: they stand behind those that wait, as if no time had passed since the last of them was asked for.
//
//callq:guarantee 17
func TestBucketWhileTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r, name := drawnRule(rng), fmt.Sprint(seed)
		var grants []granted
		now, back, ahead := time.Duration(0), time.Duration(0), time.Duration(0)
		for range 60 {
			now += some(rng, r)
			if rng.IntN(5) == 0 {
				back += 3 * some(rng, r)
			}
			n := 1 + rng.Int64N(r.Burst)
			g := mustDraw(t, client, name, r, n, budget.Forever, now-back)
			if most := ahead + fill(r) + fill(r)/1000 + time.Millisecond; g.Wait > most {
				t.Fatalf("seed %d, %v: a draw waits %s, though those before waited %s", seed, r, g.Wait, ahead)
			}
			ahead = g.Wait
			grants = append(grants, granted{now + g.Wait, n})
		}
		if err := over(r, grants); err != nil {
			t.Errorf("seed %d, %v: %v", seed, r, err)
		}
	}
}

// A clock that is set forward, and a Redis that forgets, give a burst each time, and no more where nobody
// waits; that they do give it shows that this test would notice.
//
//callq:guarantee 18
func TestBucketIsFullAgain(t *testing.T) {
	t.Parallel()
	for what, again := range map[string]func(client *redis.Client, clock *time.Duration){
		"the clock is set forward": func(_ *redis.Client, clock *time.Duration) { *clock += 1000 * 24 * time.Hour },
		"Redis is flushed":         func(client *redis.Client, _ *time.Duration) { client.FlushAll(context.Background()) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			client := redistest.New(t)
			noticed := false
			for seed := range uint64(40) {
				rng := rand.New(rand.NewPCG(seed, 2))
				r, name := drawnRule(rng), fmt.Sprint(seed)
				var grants []granted
				now, ahead, times := time.Duration(0), time.Duration(0), int64(0)
				for range 60 {
					now += some(rng, r) / 4
					if rng.IntN(20) == 0 {
						again(client, &ahead)
						times++
					}
					n := min(r.Burst, 1+rng.Int64N(3)*r.Burst/4)
					if g := mustDraw(t, client, name, r, n, 0, now+ahead); g.Drawn {
						grants = append(grants, granted{now, n})
					}
				}
				noticed = noticed || over(r, grants) != nil
				more := r
				more.Burst *= 1 + times
				if err := over(more, grants); err != nil {
					t.Errorf("seed %d, %v, %d times: %v", seed, r, times, err)
				}
			}
			if !noticed {
				t.Error("no burst more was given")
			}
		})
	}
}

// slower says whether a lets less through than b in the long run.
func slower(a, b limit.Rate) bool {
	return float64(a.Units)*float64(b.Window) < float64(b.Units)*float64(a.Window)
}

// When the rule changes, each holds for what was granted under it, and the looser of them for all; whoever comes
// later stands behind those who wait, and never for longer than they and an empty bucket would have it.
//
//callq:guarantee 16
func TestBucketWhoseRuleChanges(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	for seed := range uint64(80) {
		rng := rand.New(rand.NewPCG(seed, 3))
		name, loosest := fmt.Sprint(seed), rule(1, limit.MaxWindow, 1)
		var all []granted
		now, last := time.Duration(0), time.Duration(0)
		for range 4 {
			r := drawnRule(rng)
			if slower(loosest.Rate, r.Rate) {
				loosest.Rate = r.Rate
			}
			loosest.Burst = max(loosest.Burst, r.Burst)
			var own []granted
			for range 20 {
				now += some(rng, r)
				n := 1 + rng.Int64N(r.Burst)
				g := mustDraw(t, client, name, r, n, budget.Forever, now)
				at := g.At.Sub(base)
				fill := time.Duration(float64(n) * float64(r.Rate.Window) / float64(r.Rate.Units) * 1.001)
				if most := max(now, last) + fill + time.Millisecond; at > most {
					t.Fatalf("seed %d, %v: %d units asked for at %s behind %s are granted at %s, later than %s", seed, r, n, now, last, at, most)
				}
				last = at
				own, all = append(own, granted{at, n}), append(all, granted{at, n})
			}
			if err := over(r, own); err != nil {
				t.Errorf("seed %d, %v: %v", seed, r, err)
			}
		}
		if err := over(loosest, all); err != nil {
			t.Errorf("seed %d, all, %v: %v", seed, loosest, err)
		}
	}
}

// Eight clients at once, on Redis's own clock: never over the rule, and all of it is used.
//
//callq:guarantee 14 15
func TestDrawRace(t *testing.T) {
	t.Parallel()
	const clients, draws = 8, 400
	own := redistest.New(t)
	r := rule(40, time.Second, 25) // slow enough that reservations run ahead of any machine
	var mu sync.Mutex
	var grants []granted
	var units int64
	var all sync.WaitGroup
	begin := make(chan struct{})
	for id := range clients {
		client := redis.NewClient(&redis.Options{Network: own.Options().Network, Addr: own.Options().Addr})
		defer client.Close()
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(id), 4))
			<-begin
			for i := range draws {
				if id == 0 && i%50 == 49 {
					client.ScriptFlush(t.Context())
				}
				n := 1 + rng.Int64N(5)
				g, err := budget.Draw(t.Context(), client, "", budget.Forever, budget.Units{Name: "api", Rule: r, N: n})
				if err != nil || !g.Drawn {
					t.Errorf("drawn %t, error %v", g.Drawn, err)
					return
				}
				mu.Lock()
				grants, units = append(grants, granted{g.At.Sub(base), n}), units+n
				mu.Unlock()
			}
		})
	}
	close(begin)
	all.Wait()
	sortGrants(grants)
	if err := over(r, grants); err != nil {
		t.Error(err)
	}
	span := grants[len(grants)-1].at - grants[0].at
	if could := r.Burst + int64(span)*r.Rate.Units/int64(r.Rate.Window); units < could*95/100 {
		t.Errorf("%d units in %s, less than 95 %% of %d", units, span, could)
	}
	if ttl := own.PTTL(t.Context(), budget.Key("api")).Val(); ttl <= 0 || ttl > span+time.Minute {
		t.Errorf("the bucket goes in %s", ttl)
	}
	if s, err := budget.Peek(t.Context(), own, budget.Units{Name: "api", Rule: r, N: 1}); err != nil || s[0].Free != 0 || s[0].Waiting <= 0 {
		t.Errorf("%+v (%v), want nothing free and draws that wait", s, err)
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	ctx, client, r := t.Context(), redistest.New(t), rule(1, time.Hour, 10)
	want := func(name string, free int64) {
		t.Helper()
		if got, err := budget.Peek(ctx, client, budget.Units{Name: name, Rule: r, N: 1}); err != nil || got[0].Free != free || got[0].Waiting != 0 {
			t.Errorf("%s: %+v (%v), want %d free", name, got, err, free)
		}
	}
	want("a}{b", 10)
	if g, err := budget.Draw(ctx, client, "", 0, budget.Units{Name: "a}{b", Rule: r, N: 4}); err != nil || !g.Drawn || g.Wait != 0 {
		t.Fatalf("%+v, %v", g, err)
	}
	want("a}{b", 6)
	want("other", 10)
	if g, err := budget.Draw(ctx, client, "", 30*time.Minute, budget.Units{Name: "a}{b", Rule: r, N: 7}); err != nil || g.Drawn || g.Wait < 50*time.Minute || g.Wait > time.Hour+time.Minute {
		t.Errorf("%+v, %v", g, err)
	}
	want("a}{b", 6)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule  budget.Rule
		words string
	}{
		{rule(100, time.Second, 1), ""},
		{rule(limit.MaxUnits, limit.MinWindow, budget.MaxBurst), ""},
		{rule(0, time.Second, 1), "rate"},
		{rule(1, 0, 1), "rate"},
		{rule(1, limit.MaxWindow+1, 1), "rate"},
		{rule(1, time.Second, 0), "burst"},
		{rule(1, time.Second, budget.MaxBurst+1), "burst"},
		{rule(1, limit.MaxWindow, 1), ""},
		{rule(1, limit.MaxWindow, 2), "366d"},
		{rule(1, limit.MaxWindow, budget.MaxBurst), "366d"},
	} {
		if err := c.rule.Check(); (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v: %v, want %q", c.rule, err, c.words)
		}
	}
	r := rule(100, time.Second, 20)
	if text := r.String(); text != "100 per 1s, burst 20" {
		t.Errorf("it reads %q", text)
	}
}
