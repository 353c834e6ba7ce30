package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
)

// limitedPlot is where things are in the picture: a panel for each limit, side by side.
const (
	panelWidth  = 370.0
	panelHeight = 300.0
	panelTop    = 90.0
	panelLeft   = 60.0  // of the first
	panelGap    = 60.0  // between two
	labelHeight = 14.0  // from one name to the next
	letterWidth = 6.6   // about
	dotSize     = 7.0   // callq's radius; the others' is less
	worstFrom   = 0.8   // where the axes begin and end, where no point lies beyond
	worstTo     = 2.2   //
	microsFrom  = 100.0 //
	microsTo    = 10_000.0
)

// limitedPoint is a peer in the picture: median figures.
type limitedPoint struct {
	peer       string
	cpu, worst float64
}

// writeLimitedPlot draws what a call costs against how exactly the limit was held.
func writeLimitedPlot(path string, all []limitedFigure) error {
	if len(all) == 0 {
		return fmt.Errorf("draw %s: nothing was measured", path)
	}
	if err := os.WriteFile(path, []byte(drawLimited(all)), 0o600); err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	return nil
}

func drawLimited(all []limitedFigure) string {
	panels := map[int][]limitedPoint{}
	var rates []int
	worst, least, most := worstTo, microsFrom, microsTo
	for _, g := range groupLimited(all) {
		_, cpu, _ := ends(g.column(func(f limitedFigure) *float64 { return &f.CPU }))
		_, w, _ := ends(g.column(func(f limitedFigure) *float64 { return &f.Worst }))
		if panels[g.rate] == nil {
			rates = append(rates, g.rate)
		}
		panels[g.rate] = append(panels[g.rate], limitedPoint{g.peer, cpu, w}) // in the order of limitedPeers
		worst, least, most = max(worst, w+0.2), min(least, cpu*0.9), max(most, cpu*1.1)
	}
	width := int(2*panelLeft + panelWidth*float64(len(rates)) + panelGap*float64(len(rates)-1))
	height := int(panelTop + panelHeight + 60)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">
<title>What a call under a limit costs, against how exactly the limit was held</title>
<rect width="%d" height="%d" rx="8" fill="#fff" stroke="#d0d7de"/>
<text x="30" y="28" fill="#1f2328" font-weight="bold" font-size="13">CPU a finished call, against the worst window</text>
<text x="30" y="48" fill="#57606a">Lower: more exact; on the line or below it, never over the limit. Further left: cheaper. Medians.</text>
`, width, height, width, height)
	for i, rate := range rates {
		p := panel{
			left:  panelLeft + float64(i)*(panelWidth+panelGap),
			worst: worst, least: math.Log10(least), most: math.Log10(most),
		}
		p.draw(&b, rate, panels[rate])
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// panel is the place of a limit's points. Its x is logarithmic: least and most are powers of ten.
type panel struct{ left, worst, least, most float64 }

func (p panel) x(cpu float64) float64 {
	return p.left + panelWidth*(math.Log10(cpu)-p.least)/(p.most-p.least)
}

func (p panel) y(worst float64) float64 {
	return panelTop + panelHeight*(p.worst-max(worst, worstFrom))/(p.worst-worstFrom)
}

func (p panel) draw(b *strings.Builder, rate int, points []limitedPoint) {
	bottom := panelTop + panelHeight
	fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%.1f\" fill=\"#1f2328\" font-weight=\"bold\">%s per 1 s</text>\n", p.left, panelTop-14, thousands(rate))
	for _, micros := range []float64{10, 100, 1000, 10_000, 100_000} {
		if at := math.Log10(micros); at < p.least || at > p.most {
			continue
		}
		fmt.Fprintf(b, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"#d0d7de\" stroke-dasharray=\"3 3\"/>\n", p.x(micros), panelTop, bottom)
		fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%.1f\" fill=\"#57606a\" text-anchor=\"middle\">%s</text>\n", p.x(micros), bottom+18, thousands(int(micros)))
	}
	fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%.1f\" fill=\"#57606a\" text-anchor=\"middle\">CPU a call, µs</text>\n", p.left+panelWidth/2, bottom+38)
	for worst := 1.0; worst <= p.worst; worst += 0.5 {
		stroke := `stroke="#d0d7de" stroke-dasharray="3 3"`
		if worst == 1 {
			stroke = `stroke="#57606a"`
		}
		fmt.Fprintf(b, "<path d=\"M%.1f %.1fH%.1f\" %s/>\n", p.left, p.y(worst), p.left+panelWidth, stroke)
		fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%.1f\" fill=\"#57606a\" text-anchor=\"end\">%.1f</text>\n", p.left-8, p.y(worst)+4, worst)
	}
	taken := make([]box, 0, 2*len(points))
	for _, point := range points {
		x, y := p.x(point.cpu), p.y(point.worst)
		taken = append(taken, box{x - dotSize, y - dotSize, x + dotSize, y + dotSize})
	}
	for _, point := range points { // callq is the first, so it has the place that it wants
		taken = append(taken, p.point(b, point, taken))
	}
}

// box is what a name or a dot takes of the picture.
type box struct{ left, top, right, bottom float64 }

func (a box) meets(b box) bool {
	return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom
}

// point draws a peer, with its name as near as nothing else stands, and says where that is.
func (p panel) point(b *strings.Builder, at limitedPoint, taken []box) box {
	x, y := p.x(at.cpu), p.y(at.worst)
	fill, weight, size := "#57606a", "", dotSize-2
	if at.peer == "callq" {
		fill, weight, size = "#1a7f37", ` font-weight="bold"`, dotSize
	}
	fmt.Fprintf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n", x, y, size, fill)
	var name box
	var anchor string
	for away := 0.0; ; away++ {
		name, anchor = p.nearest(x, y, away, float64(len(at.peer))*letterWidth, taken)
		if anchor != "" || away > panelHeight {
			break
		}
	}
	from := name.left
	if anchor == "end" {
		from = name.right
	}
	fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\" text-anchor=\"%s\"%s>%s</text>\n", from, name.bottom-3, fill, anchor, weight, at.peer)
	return name
}

// nearest is where a name of a width stands so far below or above its dot, on the right or the left of it, and how it is
// anchored there; "" where there is no room.
func (p panel) nearest(x, y, away, width float64, taken []box) (name box, anchor string) {
	for _, height := range []float64{y + away, y - away} {
		top, bottom := height-labelHeight/2, height+labelHeight/2
		right, left := box{x + dotSize + 3, top, x + dotSize + 3 + width, bottom}, box{x - dotSize - 3 - width, top, x - dotSize - 3, bottom}
		for _, try := range []struct {
			box
			anchor string
		}{{right, "start"}, {left, "end"}} {
			inside := try.left >= p.left && try.right <= p.left+panelWidth+panelGap/2 && try.top >= panelTop && try.bottom <= panelTop+panelHeight
			if inside && !slices.ContainsFunc(taken, try.meets) {
				return try.box, try.anchor
			}
		}
	}
	return name, ""
}
