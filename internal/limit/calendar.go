package limit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Calendar cuts time into the windows of a fixed window limit, by the wall clock of a zone: days begin with
// their first instant, though midnight may be missing, weeks on Monday, months with their first day; hours,
// minutes and seconds divide the day.
type Calendar struct {
	n    int
	unit string // s m h d w mo
	zone *time.Location
}

// ParseCalendar reads a window such as 1d, w, 3mo, 6h or 15m, and an IANA zone; empty: UTC.
func ParseCalendar(window, zone string) (Calendar, error) {
	number := strings.TrimRight(window, "abcdefghijklmnopqrstuvwxyz")
	c := Calendar{n: 1, unit: window[len(number):]}
	if number != "" {
		n, err := parseCount(number)
		if err != nil || n < 1 || n > 60 {
			return c, badCalendar(window)
		}
		c.n = int(n)
	}
	whole := map[string]int{"s": 60, "m": 60, "h": 24, "d": 1, "w": 1, "mo": 12}[c.unit] // what the windows divide
	if whole == 0 || whole%c.n != 0 {
		return c, badCalendar(window)
	}
	var err error
	if c.zone, err = time.LoadLocation(zone); err != nil || zone == "Local" {
		return c, fmt.Errorf("%q is not a time zone: write an IANA name such as Europe/Berlin, or UTC", zone)
	}
	return c, nil
}

func badCalendar(window string) error {
	return errors.New("its window \"" + window + "\" is not one of a calendar: 1s to 30s and 1m to 30m that divide 60, 1h to 12h that divide 24, 1d, 1w, and 1mo to 12mo that divide 12")
}

// String is the window in the form that ParseCalendar reads: 1d, 3mo.
func (c Calendar) String() string { return fmt.Sprint(c.n) + c.unit }

// Longest is no shorter than any window: days may have more than 24 hours.
func (c Calendar) Longest() time.Duration {
	length := c.nominal()
	if c.unit == "mo" {
		length = time.Duration(c.n) * 31 * 24 * time.Hour
	}
	if c.zone != time.UTC && length >= 30*time.Minute {
		length += 3 * time.Hour // no zone sets its clock by more, or by less than half an hour
	}
	return length
}

// bucket is how wide buckets of usage may be: no window begins within one, where the zone is whole hours,
// or, of days and weeks, quarters of them from UTC.
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
	return c.nominal() / 240
}

// nominal is how long a window is that no change of clocks falls into; of months, the shortest.
func (c Calendar) nominal() time.Duration {
	if c.unit == "mo" {
		return time.Duration(c.n) * 28 * 24 * time.Hour
	}
	unit, _ := timeUnit(c.unit)
	return time.Duration(c.n) * unit
}

// Start is when the window began that t is in.
func (c Calendar) Start(t time.Time) time.Time {
	local := t.In(c.zone)
	y, m, d := local.Date()
	switch c.unit {
	case "mo":
		return c.dayStart(y, m-(m-1)%time.Month(c.n), 1)
	case "w":
		return c.dayStart(y, m, d-(int(local.Weekday())+6)%7)
	case "d":
		return c.dayStart(y, m, d)
	}
	start := c.cut(t)
	if offset(start, c.zone) == offset(t, c.zone) {
		return start
	}
	changed, _ := local.ZoneBounds() // the zone's clock was set within; it may show the same window before
	before := changed.Add(-1)
	if c.shown(before).Equal(c.shown(t)) {
		return c.cut(before)
	}
	return changed
}

// cut is where a window of less than a day begins that holds t, if the zone's clock was not set within.
func (c Calendar) cut(t time.Time) time.Time {
	shift := time.Duration(offset(t, c.zone)) * time.Second
	return t.Add(shift).Truncate(c.nominal()).Add(-shift)
}

// shown is the window of less than a day that the zone's clock shows at t.
func (c Calendar) shown(t time.Time) time.Time {
	return t.Add(time.Duration(offset(t, c.zone)) * time.Second).Truncate(c.nominal()).UTC()
}

func offset(t time.Time, zone *time.Location) int {
	_, seconds := t.In(zone).Zone()
	return seconds
}

// dayStart is the first instant of a date: not 0:00 where that is missing, and the first of two.
func (c Calendar) dayStart(y int, m time.Month, d int) time.Time {
	t := time.Date(y, m, d, 0, 0, 0, 0, c.zone)
	y, m, d = time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Date()
	begin, end := t.ZoneBounds()
	if ty, tm, td := t.Date(); ty != y || tm != m || td != d { // of the day before: the clock skips to this one
		return end
	}
	if t.Hour() != 0 || t.Minute() != 0 {
		return begin // the clock skipped midnight
	}
	if !begin.IsZero() { // midnight may come twice
		earlier := t.Add(time.Duration(offset(t, c.zone)-offset(begin.Add(-1), c.zone)) * time.Second)
		if earlier.Before(begin) && earlier.Day() == d {
			return earlier
		}
	}
	return t
}

// End is when the first window begins that what is of t is no part of.
func (c Calendar) End(t time.Time) time.Time {
	y, m, d := c.Start(t).In(c.zone).Date()
	switch c.unit {
	case "mo":
		return c.dayStart(y, m+time.Month(c.n), 1)
	case "w":
		return c.dayStart(y, m, d+7)
	case "d":
		return c.dayStart(y, m, d+1)
	}
	_, changes := t.In(c.zone).ZoneBounds()
	near := []time.Time{c.cut(t).Add(c.nominal())}
	if !changes.IsZero() && !changes.After(near[0]) {
		near = append(near, changes, c.cut(changes).Add(c.nominal()))
	}
	slices.SortFunc(near, time.Time.Compare)
	for _, e := range near {
		if e.After(t) && c.Start(e).After(t) {
			return e
		}
	}
	return near[len(near)-1].Add(c.nominal())
}
