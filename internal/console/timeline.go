package console

import (
	"fmt"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
)

// timeline draws a call's attempts, a row each: from the claim to the start it waited, from there to its end it ran.
type timeline struct {
	Height  int
	Rows    []bar
	From    string
	Until   string
	DueX    string // where it was due
	Nothing bool
}

// bar is an attempt.
type bar struct {
	Y, TextY          int
	WaitX, WaitWidth  string
	RunX, RunWidth    string // empty: it never started
	Class, Text       string
	TextX, TextAnchor string
}

const (
	timelineWidth = 900
	rowHeight     = 26
	mostRows      = 40 // the newest attempts
)

func newTimeline(call *callqueue.Record, attempts []admin.Attempt, now time.Time) timeline {
	if len(attempts) == 0 {
		return timeline{Nothing: true}
	}
	attempts = attempts[max(0, len(attempts)-mostRows):]
	from, until := call.CreatedAt, attempts[0].ClaimedAt
	if call.RunAt.Before(attempts[0].ClaimedAt) && call.RunAt.After(from) {
		from = call.RunAt
	}
	if first := attempts[0].ClaimedAt; from.After(first) || first.Sub(from) > 100*24*time.Hour {
		from = first
	}
	ends := make([]time.Time, len(attempts))
	for i, a := range attempts {
		if ends[i] = now; a.FinishedAt != nil {
			ends[i] = *a.FinishedAt
		}
		if ends[i].After(until) {
			until = ends[i]
		}
	}
	span := max(until.Sub(from).Seconds(), 1e-6)
	x := func(at time.Time) float64 { return max(0, min(1, at.Sub(from).Seconds()/span)) * timelineWidth }
	t := timeline{Height: rowHeight*len(attempts) + 4, From: admin.Text(from), Until: admin.Text(until)}
	for i, a := range attempts {
		claimed, end := x(a.ClaimedAt), x(ends[i])
		b := bar{Y: i*rowHeight + 6, TextY: i*rowHeight + 19, Class: a.Outcome, WaitX: fmt.Sprintf("%.1f", claimed), WaitWidth: fmt.Sprintf("%.1f", max(1, end-claimed))}
		if a.StartedAt != nil {
			started := x(*a.StartedAt)
			b.WaitWidth = fmt.Sprintf("%.1f", max(1, started-claimed))
			b.RunX, b.RunWidth = fmt.Sprintf("%.1f", started), fmt.Sprintf("%.1f", max(2, end-started))
		}
		b.Text = fmt.Sprintf("%d: %s", a.Attempt, a.State())
		if a.Code != nil {
			b.Text += fmt.Sprintf(", %d", *a.Code)
		}
		if took := a.Took(); took != "" {
			b.Text += ", " + took
		}
		b.TextX, b.TextAnchor = fmt.Sprintf("%.1f", end+6), "start"
		if end > timelineWidth*0.7 {
			b.TextX, b.TextAnchor = fmt.Sprintf("%.1f", claimed-6), "end"
			if claimed < timelineWidth*0.3 {
				b.TextX, b.TextAnchor = fmt.Sprintf("%.1f", claimed+6), "start"
			}
		}
		t.Rows = append(t.Rows, b)
	}
	return t
}
