package limit

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// lane is one algorithm of docs/windows.svg, and when its requests arrived.
type lane struct {
	title, rate string
	algorithm   Algorithm
	burst       int64
	says        string
	arrived     []time.Duration // since the beginning
}

func lanes() []*lane {
	return []*lane{
		{title: "sliding_window", rate: "10/10s", algorithm: SlidingWindow, says: "10 per 10s: at most 10 in any 10 s"},
		{title: "fixed_window", rate: "10/10s", algorithm: FixedWindow, says: "10 per 10s: at most 10 in each window of the calendar"},
		{title: "token_bucket", rate: "1/s", algorithm: TokenBucket, burst: 5, says: "1/s, burst 5: at most 5 + t in any t seconds"},
		{title: "leaky_bucket", rate: "1/s", algorithm: LeakyBucket, says: "1/s: one in any second"},
		{title: "sliding_window_counter", rate: "10/10s", algorithm: SlidingWindowCounter, says: "10 per 10s: one in any 10/9 s"},
	}
}

const (
	laneSpan  = 30 * time.Second
	laneBegin = 6 * time.Second // then more calls are inserted than any limit allows at once
)

// run claims whatever the limit has room for, each millisecond. A call is open, and so occupied, until its answer.
func (l *lane) run(t *testing.T) {
	t.Helper()
	rate, err := Parse(l.rate, l.algorithm, l.burst, "")
	if err != nil {
		t.Fatal(err)
	}
	draws := rand.New(rand.NewPCG(16, 23))
	start := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	var charges []Charge // of what was answered
	var open []time.Time // when it will be
	for now := start.Add(laneBegin); now.Before(start.Add(laneSpan)); now = now.Add(time.Millisecond) {
		open = slices.DeleteFunc(open, func(answered time.Time) bool {
			if answered.After(now) {
				return false
			}
			charges = append(charges, Charge{Until: answered, Units: 1})
			return true
		})
		use := Use{Rate: rate, Occupied: int64(len(open)), Charges: slices.Clone(charges)}
		for _, c := range charges {
			if c.Until.After(rate.Since(now, 0)) {
				use.Occupied += c.Units
			}
		}
		for range open {
			use.Charges = append(use.Charges, Charge{Until: now.Add(time.Hour), Units: 1})
		}
		for range use.Room(now, 0) {
			arrives := now.Add(time.Duration(20+draws.IntN(250)) * time.Millisecond)
			l.arrived = append(l.arrived, arrives.Sub(start))
			open = append(open, arrives.Add(20*time.Millisecond))
		}
	}
	slices.Sort(l.arrived)
	l.arrived = slices.DeleteFunc(l.arrived, func(d time.Duration) bool { return d >= laneSpan })
}

// most is how many arrived in the fullest window of a length, and where that begins.
func (l *lane) most(window time.Duration) (n int, from time.Duration) {
	for i, first := range l.arrived {
		j := i
		for j < len(l.arrived) && l.arrived[j] < first+window {
			j++
		}
		if j-i > n {
			n, from = j-i, first
		}
	}
	return n, from
}

// docs/windows.svg shows what each algorithm lets through, as this code does. UPDATE=1 draws it anew.
func TestWindows(t *testing.T) {
	t.Parallel()
	all := lanes()
	for _, algorithm := range Algorithms() {
		if !slices.ContainsFunc(all, func(l *lane) bool { return l.algorithm == algorithm }) {
			t.Errorf("docs/windows.svg has no lane of %s", algorithm)
		}
	}
	for _, l := range all {
		l.run(t)
	}
	for i, want := range []int{10, 20, 14, 9, 8} { // two fixed windows meet within 10 s; what arrives late delays the next of a bucket
		if n, _ := all[i].most(10 * time.Second); n != want {
			t.Errorf("%s: %d arrived in some 10 s, want %d", all[i].title, n, want)
		}
	}
	const picture = "../../docs/windows.svg"
	svg := draw(all)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(picture, []byte(svg), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(picture); err != nil || string(got) != svg {
		t.Errorf("docs/windows.svg is stale: run `make docs` (%v)", err)
	}
}

func draw(all []*lane) string {
	const left, width, high, top = 30, 840, 100, 46
	x := func(d time.Duration) float64 { return left + width*d.Seconds()/laneSpan.Seconds() }
	var b strings.Builder
	height := top + high*len(all) + 44
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 %d" font-family="sans-serif" font-size="13">
<title>What each algorithm lets through</title>
<rect width="900" height="%d" rx="8" fill="#fff" stroke="#d0d7de"/>
<text x="30" y="28" fill="#57606a">Each dot is a request as it arrives at the API. From 6 s on, calls wait.</text>
`, height, height)
	for i, l := range all {
		y := top + high*i
		n, from := l.most(10 * time.Second)
		fmt.Fprintf(&b, "<g>\n<text x=\"30\" y=\"%d\" fill=\"#1f2328\"><tspan font-weight=\"bold\">%s</tspan>  %s</text>\n", y+18, l.title, l.says)
		fmt.Fprintf(&b, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"34\" fill=\"#ddf4ff\"/>\n", x(from), y+30, width*10/laneSpan.Seconds())
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\" fill=\"#0969da\" font-size=\"11\">fullest 10 s: %d</text>\n", x(from)+3, y+78, n)
		if l.algorithm == FixedWindow {
			for at := time.Duration(0); at <= laneSpan; at += 10 * time.Second {
				fmt.Fprintf(&b, "<path d=\"M%.1f %dv42\" stroke=\"#cf222e\" stroke-dasharray=\"3 3\"/>\n", x(at), y+26)
			}
		}
		fmt.Fprintf(&b, "<path d=\"M%d %dh%d\" stroke=\"#d0d7de\"/>\n", left, y+64, width)
		for j, at := range l.arrived {
			fmt.Fprintf(&b, "<circle cx=\"%.1f\" cy=\"%d\" r=\"3\" fill=\"#1a7f37\"/>\n", x(at), y+58-6*(j%4))
		}
		b.WriteString("</g>\n")
	}
	for at := time.Duration(0); at <= laneSpan; at += 5 * time.Second {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\" fill=\"#57606a\" text-anchor=\"middle\">%.0f s</text>\n", x(at), height-18, at.Seconds())
	}
	b.WriteString("</svg>\n")
	return b.String()
}
