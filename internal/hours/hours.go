// Package hours knows when a queue is open: spans of the week, by the wall clock of a time zone.
//
// Hours are open while a clock on a wall of the zone shows a time within a span. Times that are left out when clocks are
// set forward are not open, and times that are shown twice when clocks are set back are open twice. A span that would
// begin or end at a time that is left out begins or ends at that jump.
package hours

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const day = 24 * 60 // minutes

// Hours are made by Parse. The zero Hours are always open.
type Hours struct {
	zone *time.Location
	open []bool // of each minute of the week, from Monday 00:00; none: always
}

// Open reports whether t is within the hours, and the first moment after t at which that changes, in their zone. That
// moment is zero for hours that are always open.
func (h Hours) Open(t time.Time) (open bool, until time.Time) {
	if !slices.Contains(h.open, false) {
		return true, time.Time{}
	}
	t = t.In(h.zone)
	open, runs := h.shown(t)
	for {
		until = t.Add(runs)
		_, jump := t.ZoneBounds()
		if !jump.After(t) || until.Before(jump) { // none, or as Go has it on the last day of a leap year from 2040 on
			return open, until
		}
		t = jump.In(h.zone) // from here on the wall clock shows other times
		var then bool
		if then, runs = h.shown(t); then != open {
			return open, t
		}
	}
}

// shown reports whether the wall clock shows a time within the hours, and how long it must run until that changes.
func (h Hours) shown(t time.Time) (open bool, runs time.Duration) {
	hour, minute, second := t.Clock()
	weekday := (int(t.Weekday()) + 6) % 7 // from Monday
	now := weekday*day + hour*60 + minute
	minutes := 1
	for h.open[(now+minutes)%(7*day)] == h.open[now] {
		minutes++
	}
	return h.open[now], time.Duration(minutes)*time.Minute - time.Duration(second)*time.Second - time.Duration(t.Nanosecond())
}

// When writes a moment at which hours change, as Open returns it: 2026-11-23 09:00 Europe/Berlin.
func When(t time.Time) string { return t.Format("2006-01-02 15:04") + " " + t.Location().String() }

// Parse reads hours: `days HH:MM-HH:MM zone`, several spans joined by commas. Days are Mon-Fri, Sat, Mon,Wed or, without
// any, every day. A span that ends before it begins ends on the next day, and 24:00 is a day's end. The last word is the
// zone, one for all; without it, it is UTC. Empty hours are always open. It fails if this machine does not know the zone.
func Parse(text string) (Hours, error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return Hours{}, nil
	}
	name := "UTC"
	if last := len(words) - 1; !strings.Contains(words[last], ":") {
		name, words = words[last], words[:last]
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" { // which would be another one on each machine
		return Hours{}, fmt.Errorf("%q is not a time zone: write its IANA name, such as Europe/Berlin, America/New_York or UTC", name)
	}
	h := Hours{zone: zone, open: make([]bool, 7*day)}
	return h, h.add(strings.Join(words, " "))
}

// add opens the minutes of spans.
func (h Hours) add(spans string) error {
	var on uint8   // the days of the next span: bit 0 is Monday
	dated := false // a span has named its days
	for span := range strings.SplitSeq(spans, ",") {
		words := strings.Fields(span)
		if len(words) > 0 && parseDays(words[0]) != 0 {
			on, dated = on|parseDays(words[0]), true
			if words = words[1:]; len(words) == 0 {
				continue // Mon, as in Mon,Wed 09:00-18:00
			}
		}
		from, to, err := parseTimes(strings.Join(words, " "))
		switch {
		case err != nil:
			return err
		case on == 0 && dated:
			return fmt.Errorf("%s has no days, and a span before it does: write Mon-Sun %[1]s if every day is meant", words[0])
		case on == 0:
			on = 1<<7 - 1
		}
		for d := range 7 {
			for minute := from; minute < to && on&(1<<d) != 0; minute++ {
				h.open[(d*day+minute)%(7*day)] = true
			}
		}
		on = 0
	}
	if on != 0 {
		return fmt.Errorf("%.80q ends with days and no times", spans)
	}
	return nil
}

// parseDays reads Mon or Mon-Fri. It returns 0 for anything else.
func parseDays(word string) (on uint8) {
	first, last, ranged := strings.Cut(word, "-")
	if !ranged {
		last = first
	}
	names := []string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}
	from, to := slices.Index(names, strings.ToLower(first)), slices.Index(names, strings.ToLower(last))
	if from < 0 || to < 0 {
		return 0
	}
	for n := range (to-from+7)%7 + 1 {
		on |= 1 << ((from + n) % 7)
	}
	return on
}

// parseTimes reads HH:MM-HH:MM as minutes of the first day. An end on the next day is beyond 24:00.
func parseTimes(text string) (from, to int, err error) {
	first, last, _ := strings.Cut(text, "-")
	from, to = minutesOf(first), minutesOf(last)
	switch {
	case from < 0 || from == day || to < 0:
		return 0, 0, fmt.Errorf("%.80q is not [days] HH:MM-HH:MM: join spans with commas, and write the zone once, as the last word",
			text)
	case from == to:
		return 0, 0, fmt.Errorf("%s never opens: it ends as it begins; a whole day is 00:00-24:00", text)
	case to < from:
		to += day
	}
	return from, to, nil
}

// minutesOf reads HH:MM, 00:00 to 24:00; -1: it is something else.
func minutesOf(text string) int {
	if text == "24:00" {
		return day
	}
	at, err := time.Parse("15:04", text)
	if err != nil || len(text) != 5 {
		return -1
	}
	return at.Hour()*60 + at.Minute()
}
