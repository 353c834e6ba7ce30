package main

import (
	"fmt"
	"math"
	"os"
	"strings"
)

// plot is where things are in the picture, which is as wide as docs/windows.svg.
const (
	plotLeft  = 160 // where bars may begin
	plotWidth = 580 // of the bars; the figures stand behind them
	plotBar   = 24  // from one bar to the next
	plotTop   = 84
)

// bar is callq's ratio to a peer.
type bar struct {
	peer                string
	least, median, most float64
}

// barGroup are the bars of a measure.
type barGroup struct {
	title string
	bars  []bar
}

// writePlot draws how many times as many calls a second callq makes as each peer.
func writePlot(path string, figures []figure) error {
	groups := barGroups(figures)
	if len(groups) == 0 {
		return fmt.Errorf("draw %s: nothing was measured beside callq", path)
	}
	if err := os.WriteFile(path, []byte(drawBars(groups, rounds(figures))), 0o600); err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	return nil
}

func rounds(figures []figure) (most int) {
	for _, f := range figures {
		most = max(most, f.Round)
	}
	return most
}

func barGroups(figures []figure) (groups []barGroup) {
	perSecond := columns[0].value
	for _, measure := range measures() {
		var g barGroup
		for _, peer := range measured(figures) {
			divided := ratios(column(figures, "callq", measure, perSecond), column(figures, peer, measure, perSecond))
			if peer == "callq" || len(divided) == 0 {
				continue
			}
			b := bar{peer: peer}
			b.least, b.median, b.most = ends(divided)
			g.bars = append(g.bars, b)
		}
		for _, f := range figures {
			if f.Measure == measure {
				g.title = fmt.Sprintf("%s, %s calls", measure, thousands(f.Calls))
			}
		}
		if len(g.bars) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// scale is logarithmic, from one power of two to another: twice as quick is as far from 1 as half as quick.
type scale struct{ low, high float64 }

func scaleOf(groups []barGroup) scale {
	s := scale{-1, 1}
	for _, g := range groups {
		for _, b := range g.bars {
			s.low = min(s.low, math.Floor(math.Log2(b.least)))
			s.high = max(s.high, math.Ceil(math.Log2(b.most)))
		}
	}
	return s
}

func (s scale) x(ratio float64) float64 {
	return plotLeft + plotWidth*(math.Log2(ratio)-s.low)/(s.high-s.low)
}

func drawBars(groups []barGroup, rounds int) string {
	height := plotTop + 30
	for _, g := range groups {
		height += plotBar*len(g.bars) + 40
	}
	s := scaleOf(groups)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 %d" font-family="sans-serif" font-size="13">
<title>callq beside its peers: calls a second</title>
<rect width="900" height="%d" rx="8" fill="#fff" stroke="#d0d7de"/>
<text x="30" y="28" fill="#1f2328" font-weight="bold">callq's calls a second, divided by the peer's</text>
<text x="30" y="48" fill="#57606a">A bar to the right: callq is quicker. Median of %d rounds; the thin line is from the least to the most.</text>
`, height, height, rounds)
	for power := s.low; power <= s.high; power++ {
		stroke := `stroke="#d0d7de" stroke-dasharray="3 3"`
		if power == 0 {
			stroke = `stroke="#57606a"`
		}
		x := s.x(math.Exp2(power))
		fmt.Fprintf(&b, "<path d=\"M%.1f %dV%d\" %s/>\n", x, plotTop-10, height-30, stroke)
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\" fill=\"#57606a\" text-anchor=\"middle\">%s</text>\n", x, height-12, power2(power))
	}
	y := plotTop
	for _, g := range groups {
		fmt.Fprintf(&b, "<text x=\"30\" y=\"%d\" fill=\"#1f2328\" font-weight=\"bold\">%s</text>\n", y, g.title)
		y += 12
		for _, one := range g.bars {
			one.draw(&b, s, y)
			y += plotBar
		}
		y += 28
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (one bar) draw(b *strings.Builder, s scale, y int) {
	from, to, fill := s.x(1), s.x(one.median), "#1a7f37"
	if one.median < 1 {
		from, to, fill = to, from, "#8c959f"
	}
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" fill=\"#1f2328\" text-anchor=\"end\">%s</text>\n", plotLeft-12, y+13, one.peer)
	fmt.Fprintf(b, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"16\" fill=\"%s\"/>\n", from, y, max(to-from, 1), fill)
	fmt.Fprintf(b, "<path d=\"M%.1f %dH%.1f\" stroke=\"#1f2328\"/>\n", s.x(one.least), y+8, s.x(one.most))
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" fill=\"#1f2328\">%.2f (%.2f to %.2f)</text>\n",
		plotLeft+plotWidth+12, y+13, one.median, one.least, one.most)
}

// power2 writes 2^power, below 1 as a fraction.
func power2(power float64) string {
	if power < 0 {
		return fmt.Sprintf("1/%.0f", math.Exp2(-power))
	}
	return fmt.Sprintf("%.0f", math.Exp2(power))
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return number(float64(n))
}
