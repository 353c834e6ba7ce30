package hours

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func mustParse(t *testing.T, text string) Hours {
	t.Helper()
	h, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Other words for the same times.
func TestParse(t *testing.T) {
	t.Parallel()
	for text, same := range map[string]string{
		"09:00-18:00":                      "Mon-Sun 09:00-18:00 UTC",
		" 09:00-18:00  America/Santiago ":  "09:00-18:00 America/Santiago",
		"mon-FRI 09:00-18:00 UTC":          "Mon,Tue,Wed,Thu,Fri 09:00-18:00",
		"Mon, Wed 09:00-18:00":             "Mon 09:00-18:00, Wed 09:00-18:00",
		"Mon-Wed,Fri-Sat 09:00-18:00":      "Mon,Tue,Wed,Fri,Sat 09:00-18:00",
		"Fri-Mon 09:00-18:00":              "Mon,Fri,Sat,Sun 09:00-18:00",
		"Sun-Sat 09:00-18:00":              "09:00-18:00",
		"Sun 22:00-06:00":                  "Sun 22:00-24:00, Mon 00:00-06:00",
		"18:00-00:00":                      "18:00-24:00",
		"06:00-18:00, 18:00-06:00":         "00:00-24:00",
		"Mon 11:00-14:00, Mon 09:00-12:00": "Mon 09:00-14:00",
		"12:00-13:00, Mon 09:00-10:00":     "Mon 09:00-10:00, Mon-Sun 12:00-13:00",
	} {
		if got, want := mustParse(t, text), mustParse(t, same); !slices.Equal(got.open, want.open) || got.zone.String() != want.zone.String() {
			t.Errorf("%q is not %q", text, same)
		}
	}
	for _, text := range []string{"", "  ", "00:00-24:00 Europe/Berlin"} {
		if open, until := mustParse(t, text).Open(time.Unix(1e9, 0)); !open || !until.IsZero() {
			t.Errorf("%q: open %t until %s", text, open, until)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, words := range map[string]string{
		"09:00-18:00,":                 `"" is not [days] HH:MM-HH:MM`,
		"Mon-Fri":                      `"Mon-Fri" is not a time zone`,
		"Mon-Fri 09:00-18:00, Sat UTC": "no times",
		"Monday 09:00-18:00":           `"Monday 09:00-18:00" is not [days] HH:MM-HH:MM`,
		"Mon-Frey 09:00-18:00":         `"Mon-Frey 09:00-18:00" is not [days] HH:MM-HH:MM`,
		"Mon- 09:00-18:00":             `"Mon- 09:00-18:00" is not [days] HH:MM-HH:MM`,
		"Mon Wed 09:00-18:00":          `"Wed 09:00-18:00" is not [days] HH:MM-HH:MM`,
		"9:00-18:00":                   `"9:00-18:00" is not [days] HH:MM-HH:MM`,
		"09:00":                        `"09:00" is not [days] HH:MM-HH:MM`,
		"09:00 - 18:00":                `"09:00 - 18:00" is not [days] HH:MM-HH:MM`,
		"09:60-18:00":                  "is not [days] HH:MM-HH:MM",
		"25:00-26:00":                  "is not [days] HH:MM-HH:MM",
		"00:00-24:01":                  "is not [days] HH:MM-HH:MM",
		"-1:00-02:00":                  "is not [days] HH:MM-HH:MM",
		"+1:00-02:00":                  "is not [days] HH:MM-HH:MM",
		"09:00-18:00-19:00":            "is not [days] HH:MM-HH:MM",
		"24:00-06:00":                  "is not [days] HH:MM-HH:MM",
		"09:00-09:00":                  "never opens",
		"00:00-00:00":                  "never opens",
		"09:00-18:00 Europe/Berln":     `"Europe/Berln" is not a time zone`,
		"09:00-18:00 Local":            `"Local" is not a time zone`,
		"09:00-18:00 ../etc":           "is not a time zone",
		"09:00-18:00 Europe":           "is not a time zone",
		"09:00-18:00 +02:00":           "write the zone once",
		"09:00-18:00 UTC 10:00-11:00":  "join spans with commas",
		"Europe/Berlin 09:00-18:00":    "write the zone once, as the last word",
		"Mon 09:00-12:00, 13:00-18:00": "write Mon-Sun 13:00-18:00 if every day is meant",
		"Mon 09:00-12:00 Europe/Berlin, Tue 13:00-18:00 UTC": "write the zone once, as the last word",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q is read (%v), want an error with %q", text, err, words)
		}
	}
}

// Days on which clocks change, and what they leave out or show twice.
//
//callq:guarantee 11
func TestOpenAcrossJumps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		hours string
		at    string
		open  bool
		until string
	}{
		{"Mon-Fri 09:00-18:00 Europe/Berlin", "2026-11-21T12:00:00Z", false, "2026-11-23 09:00:00 +0100 CET"},
		{"Mon-Fri 09:00-18:00 Europe/Berlin", "2026-11-23T08:00:00Z", true, "2026-11-23 18:00:00 +0100 CET"},
		{"Mon-Fri 09:00-18:00 Europe/Berlin", "2026-11-23T16:59:59.999999Z", true, "2026-11-23 18:00:00 +0100 CET"},
		{"Mon-Fri 09:00-18:00 Europe/Berlin", "2026-11-23T17:00:00Z", false, "2026-11-24 09:00:00 +0100 CET"},
		{"Mon-Fri 09:00-18:00 Europe/Berlin", "2040-12-31T20:00:00Z", false, "2041-01-01 09:00:00 +0100 CET"},  // ZoneBounds ends before
		{"Mon-Fri 09:00-18:00 Europe/Berlin", "2026-03-27T20:00:00Z", false, "2026-03-30 09:00:00 +0200 CEST"}, // an hour less of a weekend
		{"Mon-Fri 09:00-18:00", "2026-11-23T08:00:00Z", false, "2026-11-23 09:00:00 +0000 UTC"},

		// Berlin, 29 March 2026: 02:00 is 03:00 at once.
		{"02:15-02:45 Europe/Berlin", "2026-03-28T12:00:00Z", false, "2026-03-30 02:15:00 +0200 CEST"}, // left out
		{"02:30-04:00 Europe/Berlin", "2026-03-28T12:00:00Z", false, "2026-03-29 03:00:00 +0200 CEST"}, // begins late
		{"01:00-02:30 Europe/Berlin", "2026-03-29T00:30:00Z", true, "2026-03-29 03:00:00 +0200 CEST"},  // ends early
		{"22:00-06:00 Europe/Berlin", "2026-03-28T22:00:00Z", true, "2026-03-29 06:00:00 +0200 CEST"},
		// 25 October 2026: after 03:00 comes 02:00 again.
		{"02:15-02:45 Europe/Berlin", "2026-10-25T00:20:00Z", true, "2026-10-25 02:45:00 +0200 CEST"},
		{"02:15-02:45 Europe/Berlin", "2026-10-25T00:50:00Z", false, "2026-10-25 02:15:00 +0100 CET"},
		{"02:15-02:45 Europe/Berlin", "2026-10-25T01:50:00Z", false, "2026-10-26 02:15:00 +0100 CET"},
		{"01:00-02:30 Europe/Berlin", "2026-10-25T00:00:00Z", true, "2026-10-25 02:30:00 +0200 CEST"},
		{"01:00-02:30 Europe/Berlin", "2026-10-25T00:45:00Z", false, "2026-10-25 02:00:00 +0100 CET"},
		{"02:30-03:30 Europe/Berlin", "2026-10-25T00:45:00Z", true, "2026-10-25 02:00:00 +0100 CET"},
		{"22:00-06:00 Europe/Berlin", "2026-10-24T22:00:00Z", true, "2026-10-25 06:00:00 +0100 CET"},

		// Santiago, Sunday 6 September 2026: midnight is 01:00.
		{"Sun 00:00-12:00 America/Santiago", "2026-09-05T12:00:00Z", false, "2026-09-06 01:00:00 -0300 -03"},
		{"Sat 12:00-24:00 America/Santiago", "2026-09-06T03:00:00Z", true, "2026-09-06 01:00:00 -0300 -03"},
		{"Sun 00:00-01:00 America/Santiago", "2026-09-05T12:00:00Z", false, "2026-09-13 00:00:00 -0300 -03"},
		{"Sat 20:00-00:30 America/Santiago", "2026-09-06T03:00:00Z", true, "2026-09-06 01:00:00 -0300 -03"},
		// 4 April 2026: after Saturday's 24:00 comes its 23:00 again.
		{"Sat 12:00-24:00 America/Santiago", "2026-04-04T20:00:00Z", true, "2026-04-05 00:00:00 -0400 -04"},
		{"Sun 00:00-06:00 America/Santiago", "2026-04-05T02:30:00Z", false, "2026-04-05 00:00:00 -0400 -04"},
		{"Sat 23:00-23:30 America/Santiago", "2026-04-05T02:40:00Z", false, "2026-04-04 23:00:00 -0400 -04"},
		// Cairo, Friday 24 April 2026: midnight is 01:00.
		{"Fri 00:00-08:00 Africa/Cairo", "2026-04-23T20:00:00Z", false, "2026-04-24 01:00:00 +0300 EEST"},
		{"Thu 00:00-24:00 Africa/Cairo", "2026-04-23T20:00:00Z", true, "2026-04-24 01:00:00 +0300 EEST"},
		// Samoa had no 30 December 2011, a Friday.
		{"Fri 09:00-18:00 Pacific/Apia", "2011-12-30T00:00:00Z", false, "2012-01-06 09:00:00 +1400 +14"},
		// Clocks of 1900 differ from UTC by seconds too.
		{"09:00-18:00 Europe/Berlin", "1890-01-01T12:00:00Z", true, "1890-01-01 18:00:00 +0053 LMT"},

		{"00:00-24:00 Europe/Berlin", "2026-03-29T00:59:59Z", true, "0001-01-01 00:00:00 +0000 UTC"},
	} {
		at, err := time.Parse(time.RFC3339Nano, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if open, until := mustParse(t, c.hours).Open(at); open != c.open || until.String() != c.until {
			t.Errorf("%s at %s: open %t until %s, want %t until %s", c.hours, c.at, open, until, c.open, c.until)
		}
	}
}

// shows is whether a wall clock shows a time within the hours, said without the code under test: text is parts of
// `days HH:MM-HH:MM` as the test draws them.
func shows(spec []drawn, wall time.Time) bool {
	return slices.ContainsFunc(spec, func(d drawn) bool {
		minute := wall.Hour()*60 + wall.Minute()
		today, yesterday := d.on[wall.Weekday()], d.on[(wall.Weekday()+6)%7]
		if d.from < d.to {
			return today && minute >= d.from && minute < d.to
		}
		return today && minute >= d.from || yesterday && minute < d.to
	})
}

// drawn is a span by chance.
type drawn struct {
	on       [7]bool // from Sunday
	from, to int
}

func (d drawn) String() string {
	var on []string
	for i, is := range d.on {
		if is {
			on = append(on, time.Weekday(i).String()[:3])
		}
	}
	return fmt.Sprintf("%s %02d:%02d-%02d:%02d", strings.Join(on, ","), d.from/60, d.from%60, d.to/60, d.to%60)
}

func draw(rng *rand.Rand) []drawn {
	step := []int{1, 15, 60, 360}[rng.IntN(4)] // coarse ones meet, and meet the jumps
	var list []drawn
	for range 1 + rng.IntN(3) {
		d := drawn{from: rng.IntN(day/step) * step, to: (1 + rng.IntN(day/step)) * step}
		for d.from == d.to {
			d.to = (1 + rng.IntN(day/step)) * step
		}
		d.on[rng.IntN(7)] = true
		for i := range d.on {
			d.on[i] = d.on[i] || rng.IntN(2) == 0
		}
		list = append(list, d)
	}
	return list
}

func text(spec []drawn) string {
	var parts []string
	for _, d := range spec {
		parts = append(parts, d.String())
	}
	return strings.Join(parts, ", ")
}

// scan holds the answers against a look at the wall clock, each minute of three weeks, and returns how many
// changes there were. Between changes nothing is asked: the next minute after one must be otherwise.
func scan(t *testing.T, h Hours, what string, from time.Time, is func(time.Time) bool) (changes int) {
	t.Helper()
	open, until := h.Open(from)
	for at := from; at.Before(from.AddDate(0, 0, 21)); at = at.Add(time.Minute) {
		if !until.IsZero() && !at.Before(until) {
			if !at.Equal(until) {
				t.Fatalf("%s: a change at %s, between minutes", what, until)
			}
			was := open
			if open, until = h.Open(at); open == was {
				t.Fatalf("%s: still %t at %s, which was to change it", what, open, at)
			}
			changes++
		}
		if is(at) != open {
			t.Fatalf("%s: %t at %s, want %t", what, open, at, !open)
		}
	}
	return changes
}

// jumps are three weeks around each moment of 2026 at which the zone sets its clock, and some without any: between these,
// each week is as the one before.
func jumps(zone *time.Location) []time.Time {
	weeks := []time.Time{time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, zone)
	for _, at = at.ZoneBounds(); at.Year() == 2026; _, at = at.ZoneBounds() {
		weeks = append(weeks, at.UTC().AddDate(0, 0, -10))
	}
	return weeks
}

// Whatever the hours, each minute around the jumps of a year is as a wall clock shows it.
//
//callq:guarantee 11
func TestOpenAgreesWithTheWallClock(t *testing.T) {
	t.Parallel()
	zones := []string{
		"UTC", "Europe/Berlin", "America/Santiago", "Africa/Cairo", "America/New_York", "Asia/Kolkata",
		"Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Chatham", "America/Havana",
	}
	rng := rand.New(rand.NewPCG(1, 2))
	changes := 0
	for i := range 30 {
		spec, name := draw(rng), zones[i%len(zones)]
		what := text(spec) + " " + name
		h := mustParse(t, what)
		for _, from := range jumps(h.zone) {
			changes += scan(t, h, what, from, func(at time.Time) bool { return shows(spec, at.In(h.zone)) })
		}
	}
	if changes < 1000 {
		t.Errorf("only %d changes were seen", changes)
	}
}
