// Package hours says when a queue is open: spans of the week, by the wall clock of a time zone.
//
// Hours are open while a clock on a wall of the zone shows a time within a span. Times that are left out when clocks are
// set forward are not open, and times that are shown twice when clocks are set back are open twice. A span that would
// begin or end at a time that is left out begins or ends at that jump. The package has no clock of its own, and reads
// nothing but the zones (time.LoadLocation).
package hours

import (
	"slices"
	"time"
)

const (
	day  = 24 * 60 // minutes
	week = 7 * day
)

// Hours are made by Parse. The zero Hours are always open.
type Hours struct {
	zone  *time.Location
	spans []span // in order, none touches the next; what ends on Sunday at 24:00 may go on at the first
}

// span is a part of the week, in minutes since Monday 00:00.
type span struct{ from, to int }

// of makes Hours of spans that may overlap and go on beyond the week's end.
func of(zone *time.Location, spans []span) Hours {
	var within []span
	for _, s := range spans {
		within = append(within, span{s.from, min(s.to, week)})
		if s.to > week {
			within = append(within, span{0, s.to - week})
		}
	}
	slices.SortFunc(within, func(a, b span) int { return a.from - b.from })
	h := Hours{zone: zone}
	for _, s := range within {
		if last := len(h.spans) - 1; last >= 0 && s.from <= h.spans[last].to {
			h.spans[last].to = max(h.spans[last].to, s.to)
		} else {
			h.spans = append(h.spans, s)
		}
	}
	return h
}

// Open reports whether t is within the hours, and the first moment after t at which that changes, in their zone. That
// moment is zero for hours that are always open.
func (h Hours) Open(t time.Time) (open bool, until time.Time) {
	if len(h.spans) == 0 || h.spans[0] == (span{0, week}) {
		return true, time.Time{}
	}
	t = t.In(h.zone)
	open, runs := h.look(t)
	for {
		until = t.Add(runs)
		_, jump := t.ZoneBounds()
		if jump.IsZero() || until.Before(jump) {
			return open, until
		}
		t = jump.In(h.zone) // from here on the wall clock shows other times
		var then bool
		if then, runs = h.look(t); then != open {
			return open, t
		}
	}
}

// look reports whether the wall clock shows a time within the hours, and how long it must run until that changes.
func (h Hours) look(t time.Time) (open bool, runs time.Duration) {
	hour, minute, second := t.Clock()
	weekday := (int(t.Weekday()) + 6) % 7 // from Monday
	m := weekday*day + hour*60 + minute
	next := h.spans[0].from + week
	if i := slices.IndexFunc(h.spans, func(s span) bool { return m < s.to }); i >= 0 {
		next = h.spans[i].from
		if open = next <= m; open {
			next = h.spans[i].to
		}
	}
	if open && next == week && h.spans[0].from == 0 {
		next += h.spans[0].to
	}
	return open, time.Duration(next-m)*time.Minute - time.Duration(second)*time.Second - time.Duration(t.Nanosecond())
}

// All are hours that must all be open. None are always open.
type All []Hours

// Cache keeps hours by their text, for parsing may open a file for the zone.
type Cache map[string]Hours

// All parses texts, each as Hours.String writes them. It fails if this machine does not know a zone.
func (c Cache) All(texts []string) (All, error) {
	var all All
	for _, text := range texts {
		h, known := c[text]
		if !known {
			var err error
			if h, err = Parse(text); err != nil {
				return nil, err
			}
			c[text] = h
		}
		all = append(all, h)
	}
	return all, nil
}

// farthest is how far All looks for a moment at which all are open. It is over a year, since zones set their clocks on
// different days.
const farthest = 400 * day * time.Minute

// Open reports whether t is within all hours, and when that changes, as Hours.Open does. That moment is zero if they are
// always open, or are closed and not open together within a year.
func (a All) Open(t time.Time) (open bool, until time.Time) {
	open, until = a.look(t)
	if open {
		return true, until
	}
	for end := t.Add(farthest); until.Before(end); {
		then, next := a.look(until)
		if then {
			return false, until
		}
		until = next
	}
	return false, time.Time{}
}

// look reports whether all are open at t, and until when. If some are closed, that is when the last of those opens: the
// others may be closed then.
func (a All) look(t time.Time) (open bool, until time.Time) {
	open = true
	for _, h := range a {
		switch its, change := h.Open(t); {
		case !its && (open || change.After(until)):
			open, until = false, change
		case its && open && !change.IsZero() && (until.IsZero() || change.Before(until)):
			until = change
		}
	}
	return open, until
}

// When writes a moment at which hours change, as Open returns it: 2026-11-23 09:00 Europe/Berlin.
func When(t time.Time) string { return t.Format("2006-01-02 15:04") + " " + t.Location().String() }
