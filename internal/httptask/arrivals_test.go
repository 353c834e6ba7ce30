package httptask

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// What happens to requests to one host, one a letter, in this order: "a" takes its place, "A" is acknowledged, "a!" is answered,
// "a." ends. Overtaken are those that an answer to a later one proves to have been read.
//
//callq:guarantee 1
func TestOvertaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, events, overtaken string }{
		{"a later one is answered", "a A b b!", "a"},
		{"an earlier one is answered", "a b B a!", ""},
		{"one that was written before the other was acknowledged is answered", "a b A b!", ""},
		{"what is not acknowledged", "a b b!", ""},
		{"acknowledged after that", "a b b! A", ""},
		{"then a third is answered", "a b A b! c c!", "a"},
		{"all that were acknowledged", "a b A B c C d d!", "abc"},
		{"only those", "a b A c C d B d!", "ac"},
		{"once, by the first", "a A b c b! c!", "a"},
		{"what has ended is asked of no more", "a A a. b b!", ""},
		{"its own answer ends it", "a A b a! b!", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			arrivals := NewArrivals()
			zero := time.Now()
			passes, placed := map[byte]*pass{}, map[byte]time.Time{}
			when := map[byte]time.Time{} // when each was overtaken
			answered := ""
			for i, event := range strings.Fields(c.events) {
				now, of := zero.Add(time.Duration(i+1)*time.Millisecond), event[0]|0x20
				switch p := passes[of]; {
				case p == nil:
					passes[of], placed[of] = &pass{arrivals: arrivals, host: arrivals.of("api:80")}, now
				case strings.HasSuffix(event, "!"):
					arrivals.answered(p, placed[of], now, Grant{})
					answered += string(of)
				case strings.HasSuffix(event, "."):
					arrivals.end(p)
				default:
					arrivals.acknowledged(p, placed[of], now)
				}
				for of, p := range passes {
					if at := p.overtaken; !at.IsZero() && when[of].IsZero() {
						when[of] = at
					} else if !at.Equal(when[of]) {
						t.Errorf("%c was overtaken at %s, and now at %s", of, when[of], at)
					}
				}
			}
			var got []string
			for of := range when {
				if !when[of].IsZero() && !strings.Contains(answered, string(of)) {
					got = append(got, string(of))
				}
			}
			slices.Sort(got)
			if s := strings.Join(got, ""); s != c.overtaken {
				t.Errorf("overtaken %q, want %q", s, c.overtaken)
			}
		})
	}
}

// Hosts are apart, and each that has something in doubt is kept, however many others there are.
func TestArrivalsOfHosts(t *testing.T) {
	t.Parallel()
	arrivals := NewArrivals()
	now := time.Now()
	first := &pass{arrivals: arrivals, host: arrivals.of("first:80")}
	arrivals.acknowledged(first, now.Add(-time.Minute), now)
	for i := range 3 * maxHosts {
		p := &pass{arrivals: arrivals, host: arrivals.of(strings.Repeat("x", i%100) + time.Duration(i).String())}
		arrivals.answered(p, now.Add(time.Second), now.Add(2*time.Second), Grant{})
	}
	if n := len(arrivals.hosts); n > maxHosts {
		t.Errorf("%d hosts are known", n)
	}
	if got := arrivals.Doubtful(); !slices.Equal(got, []string{"first:80"}) {
		t.Errorf("in doubt: %q", got)
	}
	if !first.overtaken.IsZero() {
		t.Error("another host's answer overtakes it")
	}
}

// What workers tell one another is on Postgres's clock: of a request's place a bound from below, of its answer and of another's
// acknowledgement one from above.
//
//callq:guarantee 1
func TestArrivalsAreTold(t *testing.T) {
	t.Parallel()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	zero, pg := time.Now(), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	// The start was asked for at 0, was read there at pg, and heard of 10 ms later; it lay 4 ms ahead.
	grant := Grant{M0: zero, From: pg, Heard: zero.Add(ms(10)), Waited: ms(4)}
	one, other := NewArrivals(), NewArrivals()
	p := &pass{arrivals: one, host: one.of("api:80")}
	one.answered(p, zero.Add(ms(12)), zero.Add(ms(50)), grant)
	if got := one.Newest([]Answered{{Host: "api:80"}, {Host: "none:80"}}); len(got) != 1 || got[0] != (Answered{"api:80", pg.Add(ms(-2)), pg.Add(ms(50))}) {
		t.Errorf("told %v", got)
	}
	waits := &pass{arrivals: other, host: other.of("api:80"), grant: grant}
	other.acknowledged(waits, zero.Add(ms(20)), zero.Add(ms(30)))
	other.Tell([]Answered{{"api:80", pg.Add(ms(29)), pg.Add(ms(70))}, {"else:80", pg.Add(ms(300)), pg.Add(ms(700))}})
	if !waits.overtaken.IsZero() {
		t.Error("overtaken by a request that may have been before it")
	}
	other.Tell([]Answered{{"api:80", pg.Add(ms(30)), pg.Add(ms(70))}})
	if at := other.later(waits); !at.Equal(zero.Add(ms(70))) {
		t.Errorf("overtaken at %s, want 70 ms", at.Sub(zero))
	}
	if got := one.Newest([]Answered{{Host: "api:80", Written: pg.Add(ms(-2))}}); len(got) != 0 {
		t.Errorf("told again: %v", got)
	}
	unknown := NewArrivals() // a start that nobody knows of tells nothing
	p = &pass{arrivals: unknown, host: unknown.of("api:80")}
	unknown.answered(p, zero, zero.Add(ms(5)), Grant{M0: zero})
	if got := unknown.Newest([]Answered{{Host: "api:80"}}); len(got) != 0 {
		t.Errorf("told %v without a start", got)
	}
}
