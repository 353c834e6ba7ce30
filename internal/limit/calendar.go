package limit

import (
	"fmt"
	"time"
)

// Calendar cuts time into the windows of a fixed window limit, by the wall clock of a zone. Days begin with their first
// instant, even where midnight is missing, weeks on Monday, months on their first day. The others divide the day.
type Calendar struct {
	n      int
	unit   string        // s m h d w mo
	length time.Duration // of a window within which the zone's clock is not set; of months, the shortest
	zone   *time.Location
}

// ParseCalendar reads a window such as 1d, w, 3mo, 6h or 15m, and an IANA zone; "" is UTC.
func ParseCalendar(window, zone string) (Calendar, error) {
	n, unit, err := splitWindow(window)
	divided := map[string]int64{"s": 60, "m": 60, "h": 24, "d": 1, "w": 1, "mo": 12}[unit]
	if err != nil || n < 1 || divided == 0 || divided%n != 0 {
		return Calendar{}, fmt.Errorf("its window %q is not one of a calendar: "+
			"1s to 30s and 1m to 30m that divide 60, 1h to 12h that divide 24, 1d, 1w, and 1mo to 12mo that divide 12", window)
	}
	length := lengthOf(unit)
	if unit == "mo" {
		length = 28 * day
	}
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return Calendar{}, fmt.Errorf("%q is not a time zone: write an IANA name such as Europe/Berlin, or UTC", zone)
	}
	return Calendar{int(n), unit, time.Duration(n) * length, location}, nil
}

// String is the window in the form that ParseCalendar reads: 1d, 3mo.
func (c Calendar) String() string { return fmt.Sprint(c.n, c.unit) }

// longest is at least as long as any window: days may have more than 24 hours.
func (c Calendar) longest() time.Duration {
	length := c.length
	if c.unit == "mo" {
		length = time.Duration(c.n) * 31 * day
	}
	if c.zone != time.UTC && length >= 30*time.Minute {
		length += 3 * time.Hour // no zone sets its clock by more, or by less than half an hour
	}
	return length
}

// bucket is how wide buckets of usage may be. No window begins within one where the zone is whole hours from UTC, or
// for days and weeks, quarters of an hour.
func (c Calendar) bucket() time.Duration {
	switch {
	case c.unit == "mo" && c.n > 2:
		return 6 * time.Hour
	case c.unit == "mo":
		return time.Hour
	case c.unit == "w":
		return 15 * time.Minute
	case c.unit == "d":
		return 5 * time.Minute
	}
	return c.length / 240
}

// apart is by how much the API's clock may differ from Postgres's: a twentieth of the window up to 1 s, or for long
// windows a thousandth up to a minute.
func (c Calendar) apart() time.Duration {
	return max(min(c.length/20, time.Second), min(c.length/1000, time.Minute))
}

// Start is when the window began that t is in.
func (c Calendar) Start(t time.Time) time.Time {
	shown := c.shown(t)
	first := c.first(shown)
	begin := t.Add(first.Sub(shown))
	set, _ := t.In(c.zone).ZoneBounds() // when the zone's clock was last set
	switch {
	case set.IsZero() || begin.After(set), begin.Equal(set) && c.length < day: // hours may come twice, dates do not
		return begin
	case c.first(c.shown(set.Add(-1))).Equal(first): // it showed this window before
		return c.Start(set.Add(-1))
	}
	return set
}

// End is when the first window begins that t does not count in.
func (c Calendar) End(t time.Time) time.Time {
	for at := t; ; {
		shown := c.shown(at)
		end := at.Add(c.next(c.first(shown)).Sub(shown))
		_, set := at.In(c.zone).ZoneBounds()   // when the zone's clock is set next
		if !set.After(at) || end.Before(set) { // never, or as Go has it on the last day of a leap year from 2040 on
			return end
		}
		if c.Start(set).After(t) {
			return set
		}
		at = set
	}
}

// shown is what the zone's wall clock shows at t, written as if it were UTC.
func (c Calendar) shown(t time.Time) time.Time {
	_, offset := t.In(c.zone).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// first and next are what the wall clock shows when the window begins that has this wall time, and when the next does.
func (c Calendar) first(shown time.Time) time.Time {
	if c.unit != "mo" {
		return shown.Truncate(c.length) // which counts from a Monday
	}
	y, m, _ := shown.Date()
	return time.Date(y, m-(m-1)%time.Month(c.n), 1, 0, 0, 0, 0, time.UTC)
}

func (c Calendar) next(first time.Time) time.Time {
	if c.unit != "mo" {
		return first.Add(c.length)
	}
	return first.AddDate(0, c.n, 0)
}
