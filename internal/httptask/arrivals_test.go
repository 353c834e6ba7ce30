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
					arrivals.answered(p, placed[of], now)
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
		arrivals.answered(p, now.Add(time.Second), now.Add(2*time.Second))
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

// What another worker saw answered overtakes what was acknowledged before that was written.
//
//callq:guarantee 1
func TestArrivalsAreTold(t *testing.T) {
	t.Parallel()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	zero, arrivals := time.Now(), NewArrivals()
	if e, ok := arrivals.Newest("api:80"); ok {
		t.Errorf("nothing was answered, and it says %v", e)
	}
	waits := &pass{arrivals: arrivals, host: arrivals.of("api:80")}
	arrivals.acknowledged(waits, zero.Add(ms(20)), zero.Add(ms(30)))
	arrivals.Tell(Answered{"api:80", zero.Add(ms(29)), zero.Add(ms(70))})
	arrivals.Tell(Answered{"else:80", zero.Add(ms(300)), zero.Add(ms(700))})
	if !waits.overtaken.IsZero() {
		t.Error("overtaken by a request that may have been before it")
	}
	arrivals.Tell(Answered{"api:80", zero.Add(ms(30)), zero.Add(ms(70))})
	if at := arrivals.later(waits); !at.Equal(zero.Add(ms(70))) {
		t.Errorf("overtaken at %s, want 70 ms", at.Sub(zero))
	}
	for _, n := range []int{2, 9, 5} {
		p := &pass{arrivals: arrivals, host: arrivals.of("api:80")}
		arrivals.answered(p, zero.Add(ms(n)), zero.Add(ms(n+10)))
	}
	if e, ok := arrivals.Newest("api:80"); !ok || e != (Answered{"api:80", zero.Add(ms(9)), zero.Add(ms(19))}) {
		t.Errorf("the newest is %v", e)
	}
}
