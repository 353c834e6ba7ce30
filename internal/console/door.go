package console

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/words"
)

// picture is what an API can have seen of a limit: each request a tick, those that count at a time a curve, the limit a line, and right
// of now the units that come free.
type picture struct {
	Width, Height         int
	Label                 string
	Area, Curve, Free     string // the corners
	Ticks, Refusals       string // paths
	Most, Now, Base, Tick string // where the limit, now, the axis and the ticks lie
	MostText              string
	Shut                  []shutSpan
	Times                 []mark
	Nobody                bool // nothing was sent
	Cut                   bool
}

// shutSpan is a time in which the limit was closed.
type shutSpan struct{ X, Width, Y, Height, Text string }

// mark is a text at a place.
type mark struct{ X, Y, Text, Anchor string }

const (
	pictureTop, pictureBottom, pictureLeft = 14, 46, 40
)

// doorPicture draws a door at this size.
func doorPicture(d *admin.Door, width, height int) picture {
	p := picture{Width: width, Height: height, Nobody: len(d.Arrivals) == 0, Cut: d.Cut}
	span := d.Until.Sub(d.Since).Seconds()
	if span <= 0 {
		p.Nobody = true
		return p
	}
	columns := width - pictureLeft - 8
	x := func(at time.Time) float64 { return pictureLeft + at.Sub(d.Since).Seconds()/span*float64(columns) }
	counted := rolling(d, columns)
	top := float64(d.Most)
	for _, n := range counted {
		top = max(top, float64(n))
	}
	top *= 1.15
	base := float64(height - pictureBottom)
	y := func(n float64) float64 { return pictureTop + (base-pictureTop)*(1-n/top) }
	var past, ahead []string
	most, now := int64(0), x(d.Now)
	for i, n := range counted {
		point := fmt.Sprintf("%d,%.1f", pictureLeft+i, y(float64(n)))
		if float64(pictureLeft+i) <= now {
			past, most = append(past, point), max(most, n)
		} else {
			ahead = append(ahead, point)
		}
	}
	if len(past) > 0 {
		ahead = append([]string{past[len(past)-1]}, ahead...)
		p.Area = fmt.Sprintf("%d,%.1f %s %.1f,%.1f", pictureLeft, base, strings.Join(past, " "), now, base)
	}
	p.Curve, p.Free = strings.Join(past, " "), strings.Join(ahead, " ")
	p.Most, p.MostText = fmt.Sprintf("%.1f", y(float64(d.Most))), words.Number(d.Most)
	p.Now, p.Base, p.Tick = fmt.Sprintf("%.1f", now), fmt.Sprintf("%.1f", base), fmt.Sprintf("%.1f", base+8)
	p.Ticks, p.Refusals = ticks(d, x, base)
	for _, c := range d.Closed {
		p.Shut = append(p.Shut, shutAt(c, d, x, base))
	}
	p.Times = timeMarks(d, x, height, width)
	p.Label = fmt.Sprintf("%s in %s; at most %s counted at once, of %s", words.Count(int64(len(d.Arrivals)), "request"),
		admin.About(d.Now.Sub(d.Since)), words.Number(most), words.Number(d.Most))
	return p
}

// rolling is how many units count in each column: the most at any time within it.
func rolling(d *admin.Door, columns int) []int64 {
	type change struct {
		at time.Time
		by int64
	}
	var changes []change
	for _, a := range d.Arrivals {
		changes = append(changes, change{a.At, a.Units})
		if a.Free != nil {
			changes = append(changes, change{*a.Free, -a.Units})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.by, b.by)) }) // units come free before others take them
	counted, n, next := make([]int64, columns), int64(0), 0
	step := d.Until.Sub(d.Since) / time.Duration(columns)
	for i := range counted {
		end := d.Since.Add(step * time.Duration(i+1))
		counted[i] = n
		for ; next < len(changes) && changes[next].at.Before(end); next++ {
			n += changes[next].by
			counted[i] = max(counted[i], n)
		}
		if i == 0 {
			counted[i] = n
		}
	}
	return counted
}

// ticks are paths with a stroke for each pixel in which a request began, and one in which one was refused.
func ticks(d *admin.Door, x func(time.Time) float64, base float64) (sent, refused string) {
	var ok, bad strings.Builder
	last := map[bool]int{false: -1, true: -1}
	for _, a := range d.Arrivals {
		at := x(a.At)
		if at < pictureLeft || int(at) == last[a.Refused] {
			continue
		}
		last[a.Refused] = int(at)
		if a.Refused {
			fmt.Fprintf(&bad, "M%d %.0fv16", int(at), base+6)
		} else {
			fmt.Fprintf(&ok, "M%d %.0fv12", int(at), base+8)
		}
	}
	return ok.String(), bad.String()
}

func shutAt(c admin.Closing, d *admin.Door, x func(time.Time) float64, base float64) shutSpan {
	from, until := c.From, d.Until
	if from.Before(d.Since) {
		from = d.Since
	}
	if c.Until != nil && c.Until.Before(until) {
		until = *c.Until
	}
	return shutSpan{
		X: fmt.Sprintf("%.1f", x(from)), Width: fmt.Sprintf("%.1f", max(1, x(until)-x(from))),
		Y: fmt.Sprint(pictureTop), Height: fmt.Sprintf("%.1f", base-pictureTop), Text: admin.Short(c.Reason),
	}
}

// timeMarks are some round times before and after now.
func timeMarks(d *admin.Door, x func(time.Time) float64, height, width int) (marks []mark) {
	span := d.Until.Sub(d.Since)
	step := roundStep(span / time.Duration(max(2, width/150)))
	for offset := -(d.Now.Sub(d.Since) / step) * step; offset <= d.Until.Sub(d.Now); offset += step {
		text, anchor := "now", "middle"
		switch at := admin.About(offset.Abs()); {
		case offset < 0:
			text = "−" + at
		case offset > 0:
			text = "+" + at
		}
		at := x(d.Now.Add(offset))
		if at > float64(width)-24 {
			anchor = "end"
		}
		marks = append(marks, mark{fmt.Sprintf("%.0f", at), fmt.Sprint(height - 6), text, anchor})
	}
	return marks
}

// roundStep is a step of this length, or a little more, that people count in.
func roundStep(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour, 24 * time.Hour} {
		for _, n := range []time.Duration{1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 500} {
			if step := n * unit; step >= d && (unit == time.Millisecond || n <= 30) {
				return step
			}
		}
	}
	return time.Duration(math.Ceil(d.Hours()/24)) * 24 * time.Hour
}
