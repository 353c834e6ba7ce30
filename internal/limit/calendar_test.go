package limit

import (
	"strings"
	"testing"
	"time"
)

// Windows as an independent reading of the wall clock has them, second by second around what is odd.
func TestCalendar(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ window, zone, at, start, end string }{
		{"1d", "", "2026-03-05T12:00:00Z", "2026-03-05T00:00:00Z", "2026-03-06T00:00:00Z"},
		{"1d", "", "2026-03-05T00:00:00Z", "2026-03-05T00:00:00Z", "2026-03-06T00:00:00Z"},
		{"d", "America/New_York", "2026-03-05T04:59:59Z", "2026-03-04T05:00:00Z", "2026-03-05T05:00:00Z"},
		{"d", "America/New_York", "2026-03-08T12:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"}, // 23 hours
		{"d", "America/New_York", "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"}, // 25
		{"d", "America/Santiago", "2026-09-06T12:00:00Z", "2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"}, // no midnight
		{"d", "America/Santiago", "2026-09-06T03:59:59Z", "2026-09-05T04:00:00Z", "2026-09-06T04:00:00Z"},
		{"d", "America/Santiago", "2026-04-05T03:30:00Z", "2026-04-04T03:00:00Z", "2026-04-05T04:00:00Z"}, // 23:30, again
		{"d", "America/Havana", "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},   // 0:30, again
		{"d", "America/Havana", "2026-11-01T04:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		{"d", "Africa/Cairo", "2026-04-24T09:00:00Z", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"}, // no midnight
		{"1w", "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z"},
		{"1w", "", "2026-03-30T00:00:00Z", "2026-03-30T00:00:00Z", "2026-04-06T00:00:00Z"},
		{"1mo", "", "2026-02-28T23:59:59Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"},
		{"3mo", "Europe/Berlin", "2026-12-31T22:59:59Z", "2026-09-30T22:00:00Z", "2026-12-31T23:00:00Z"},
		{"12mo", "", "2026-12-31T23:59:59Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"1h", "Asia/Kolkata", "2026-03-05T12:45:00Z", "2026-03-05T12:30:00Z", "2026-03-05T13:30:00Z"},
		{"15m", "", "2026-03-05T12:44:59Z", "2026-03-05T12:30:00Z", "2026-03-05T12:45:00Z"},
		{"10s", "", "2026-03-05T12:44:59Z", "2026-03-05T12:44:50Z", "2026-03-05T12:45:00Z"},
		{"6h", "Europe/Berlin", "2026-03-05T12:00:00Z", "2026-03-05T11:00:00Z", "2026-03-05T17:00:00Z"},
		{"6h", "Europe/Berlin", "2026-03-29T03:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T04:00:00Z"},     // without 2:00
		{"3mo", "America/New_York", "2040-12-31T12:00:00Z", "2040-10-01T04:00:00Z", "2041-01-01T05:00:00Z"}, // ZoneBounds ends before
		// 2:00 to 3:00 comes twice, and so do windows that begin with it (docs/concepts.md).
		{"1h", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z"},
		{"1h", "Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"},
		{"2h", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z"},
		{"2h", "Europe/Berlin", "2026-10-25T02:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T03:00:00Z"},
	} {
		cal, err := ParseCalendar(c.window, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		at := instant(t, c.at)
		start, end := cal.Start(at), cal.End(at)
		if !end.Equal(instant(t, c.end)) {
			t.Errorf("%s %s at %s: ends %s, want %s", c.window, c.zone, c.at, end.UTC(), c.end)
		}
		if !start.Equal(instant(t, c.start)) {
			t.Errorf("%s %s at %s: began %s, want %s", c.window, c.zone, c.at, start.UTC(), c.start)
		}
	}
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// Over years, in zones of every kind: a window never begins after what is in it, begins no earlier than the
// longest, its begin does not go back, two instants that the zone shows in the same window share theirs, and
// the end is the first moment from which on what was before no longer counts.
//
//callq:guarantee 1
func TestCalendarHolds(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "Africa/Cairo", "America/Havana", "Australia/Lord_Howe", "Antarctica/Troll", "Asia/Kolkata", "Atlantic/Azores"} {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		for _, window := range []string{"15m", "1h", "6h", "12h", "1d", "1w", "1mo", "3mo"} {
			cal, err := ParseCalendar(window, zone)
			if err != nil {
				t.Fatal(err)
			}
			var last time.Time
			from := time.Date(2025, 12, 31, 0, 7, 0, 0, time.UTC)
			for at := from; at.Before(from.AddDate(1, 1, 0)); at = at.Add(step(at.In(loc))) {
				start, end := cal.Start(at), cal.End(at)
				switch {
				case start.After(at), !end.After(at), at.Sub(start) > cal.longest():
					t.Fatalf("%s %s: %s is in %s to %s", zone, window, at, start, end)
				case start.Before(last):
					t.Fatalf("%s %s: at %s the window began %s, before it %s", zone, window, at, start, last)
				case !cal.Start(end).After(at):
					t.Fatalf("%s %s: %s still counts at %s", zone, window, at, end)
				case cal.Start(end.Add(-time.Second)).After(at):
					t.Fatalf("%s %s: %s counts no longer before %s", zone, window, at, end)
				}
				if window == "1d" && at.Minute() == 0 && !start.Equal(firstOf(at, loc)) {
					t.Fatalf("%s: the day of %s began %s, not %s", zone, at, firstOf(at, loc), start)
				}
				last = start
			}
		}
	}
}

// step is short where the zone's clock was or will be set within some days.
func step(at time.Time) time.Duration {
	const near = 3 * day
	if last, next := at.ZoneBounds(); at.Sub(last) < near || !next.IsZero() && next.Sub(at) < near {
		return 29 * time.Minute
	}
	return 11*time.Hour + 7*time.Minute
}

// firstOf finds a day's first instant by walking back, minute by minute: no zone sets its clock within one.
func firstOf(at time.Time, zone *time.Location) time.Time {
	day := at.In(zone).Format(time.DateOnly)
	first := at.Truncate(time.Minute)
	for back := first; at.Sub(back) < 26*time.Hour; back = back.Add(-time.Minute) {
		if back.In(zone).Format(time.DateOnly) == day {
			first = back
		}
	}
	return first
}

func TestParseCalendarRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ window, zone, why string }{
		{"2d", "", "of a calendar"},
		{"2w", "", "of a calendar"},
		{"5mo", "", "of a calendar"},
		{"7m", "", "of a calendar"},
		{"5h", "", "of a calendar"},
		{"0d", "", "of a calendar"},
		{"500ms", "", "of a calendar"},
		{"", "", "of a calendar"},
		{"1d", "Mars/Olympus", "not a time zone"},
		{"1d", "Local", "not a time zone"},
		{"1d", "../etc/passwd", "not a time zone"},
	} {
		if _, err := ParseCalendar(c.window, c.zone); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%q %q: %v, want %s", c.window, c.zone, err, c.why)
		}
	}
}
