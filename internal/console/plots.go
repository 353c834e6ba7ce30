package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/words"
)

// Plots are drawn here, as SVG: a page needs no script to show them.

const (
	plotWidth, plotHeight = 240, 44
	plotBack              = time.Hour
	plotColumns           = 60
)

// plot is one or two lines over the last hour, or longer, and what bounds them.
type plot struct {
	Label  string // what it shows, for who cannot see it
	Area   string // the corners of what lies below the first line
	Lines  []plotLine
	Most   string   // where the bound lies, from the top; empty: there is none
	Shut   []string // where the minutes begin in which a limit was closed for a while
	Nobody bool     // there is nothing to draw
}

type plotLine struct{ Class, Points string }

// curve is what a line shows, and the class that it is drawn with.
type curve struct {
	class  string
	values []float64
}

// newPlot draws curves. bound is what they may be; 0: anything.
func newPlot(label string, bound float64, curves ...curve) plot {
	top := bound
	for _, c := range curves {
		top = max(top, slices.Max(c.values))
	}
	p := plot{Label: label, Nobody: top == 0}
	if p.Nobody {
		return p
	}
	top *= 1.06 // the line of a full limit is seen
	y := func(v float64) string { return fmt.Sprintf("%.1f", plotHeight*(1-v/top)) }
	for _, c := range curves {
		var points []string
		for x, v := range c.values {
			points = append(points, fmt.Sprintf("%.1f,%s", float64(x)*plotWidth/float64(max(1, len(c.values)-1)), y(v)))
		}
		p.Lines = append(p.Lines, plotLine{c.class, strings.Join(bends(points, c.values), " ")})
	}
	p.Area = fmt.Sprintf("0,%d %s %d,%d", plotHeight, p.Lines[0].Points, plotWidth, plotHeight)
	if bound > 0 {
		p.Most = y(bound)
	}
	return p
}

// bends are the points at which a line is not level.
func bends(points []string, values []float64) (kept []string) {
	for i, point := range points {
		if i == 0 || i == len(points)-1 || values[i] != values[i-1] || values[i] != values[i+1] {
			kept = append(kept, point)
		}
	}
	return kept
}

// limitPlot draws what was used of a limit, and what it allows: of a window that is longer than a minute nothing bounds one.
func limitPlot(h *admin.Recent, l admin.Limit) plot {
	minutes := h.Limits[l.Name]
	bound, most := 0.0, int64(0)
	for _, m := range minutes {
		bound, most = max(bound, m.Capacity), max(most, m.Used)
	}
	label := fmt.Sprintf("used a minute, at most %s of %s", words.Number(most), words.Number(int64(bound)))
	if l.Window > time.Minute || l.PerKey { // of one per key, all keys' use is drawn
		bound, label = 0, "used a minute, at most "+words.Number(most)
	}
	at := func(m admin.LimitMinute) time.Time { return m.Minute }
	p := newPlot(label, bound, curve{"use", columns(h, minutes, at, func(m admin.LimitMinute) float64 { return float64(m.Used) })})
	for x, closed := range columns(h, minutes, at, func(m admin.LimitMinute) float64 { return float64(len(m.Closed)) }) {
		if closed > 0 {
			p.Shut, p.Nobody = append(p.Shut, fmt.Sprintf("%.1f", float64(x)*plotWidth/plotColumns)), false
		}
	}
	if len(p.Shut) > 0 {
		p.Label += fmt.Sprintf("; closed for a while in %s", words.Count(int64(len(p.Shut)), "minute"))
	}
	return p
}

// queuePlot draws how many calls a minute ended and started, beside how many were due.
func queuePlot(h *admin.Recent, name string) plot {
	minutes := h.Queues[name]
	at := func(m admin.QueueMinute) time.Time { return m.Minute }
	due := columns(h, minutes, at, func(m admin.QueueMinute) float64 { return float64(m.Due) })
	started := columns(h, minutes, at, func(m admin.QueueMinute) float64 { return float64(m.Started) })
	return newPlot(fmt.Sprintf("due, at most %s; started, at most %s a minute", words.Number(int64(slices.Max(due))), words.Number(int64(slices.Max(started)))),
		0, curve{"due", due}, curve{"use", started})
}

func columns[T any](h *admin.Recent, minutes []T, at func(T) time.Time, of func(T) float64) []float64 {
	return admin.Columns(h, minutes, plotColumns, at, of)
}

// latest is a time in the newest minute that has one; empty: none has.
func latest(minutes []admin.QueueMinute, of func(admin.QueueMinute) *float64) string {
	for _, m := range slices.Backward(minutes) {
		if ms := of(m); ms != nil {
			return admin.About(time.Duration(*ms * float64(time.Millisecond)))
		}
	}
	return ""
}
