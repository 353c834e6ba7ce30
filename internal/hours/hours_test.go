package hours

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func mustParse(t *testing.T, texts ...string) Hours {
	t.Helper()
	h, err := Parse(texts...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Mon-Fri 09:00-18:00 Europe/Berlin":            "",
		"09:00-18:00":                                  "09:00-18:00 UTC",
		" 09:00-18:00  America/Santiago ":              "09:00-18:00 America/Santiago",
		"mon-FRI 09:00-18:00 UTC":                      "Mon-Fri 09:00-18:00 UTC",
		"Mon,Wed 09:00-18:00":                          "Mon,Wed 09:00-18:00 UTC",
		"Mon, Wed 09:00-18:00":                         "Mon,Wed 09:00-18:00 UTC",
		"Mon-Wed,Fri-Sat 09:00-18:00, Sun 10:00-12:00": "Mon-Wed,Fri,Sat 09:00-18:00, Sun 10:00-12:00 UTC",
		"Fri-Mon 09:00-18:00":                          "Fri-Mon 09:00-18:00 UTC",
		"Sun-Sat 09:00-18:00":                          "09:00-18:00 UTC",
		"Thu 09:00-18:00, Sun-Tue 09:00-18:00":         "Thu,Sun-Tue 09:00-18:00 UTC",
		"22:00-06:00":                                  "22:00-06:00 UTC",
		"Sun 22:00-06:00":                              "Sun 22:00-06:00 UTC",
		"18:00-00:00":                                  "18:00-24:00 UTC",
		"00:00-24:00":                                  "00:00-24:00 UTC",
		"00:00-12:00, 12:00-24:00":                     "00:00-24:00 UTC",
		"06:00-18:00, 18:00-06:00":                     "00:00-24:00 UTC",
		"Sat 06:00-24:00, Sun 00:00-06:00":             "Sat 06:00-24:00, Sun 00:00-06:00 UTC",
		"Sat 06:00-24:00, Sun 00:00-05:59":             "Sat 06:00-05:59 UTC",
		"Fri 18:00-24:00, Sat,Sun 00:00-24:00, Mon 00:00-06:00 Asia/Kolkata": "Mon 00:00-06:00, Fri 18:00-24:00, Sat,Sun 00:00-24:00 Asia/Kolkata",
		"Mon-Fri 13:00-17:00, Mon-Fri 09:00-12:30 Europe/Berlin":             "Mon-Fri 09:00-12:30, Mon-Fri 13:00-17:00 Europe/Berlin",
		"Mon 09:00-12:00, Mon 11:00-14:00":                                   "Mon 09:00-14:00 UTC",
		"12:00-13:00, Mon 09:00-10:00":                                       "12:00-13:00, Mon 09:00-10:00 UTC",
		"Sun 09:00-10:00, Mon-Sun 12:00-13:00":                               "12:00-13:00, Sun 09:00-10:00 UTC",
		"09:00-10:00 Europe/Berlin, 12:00-13:00 Europe/Berlin":               "09:00-10:00, 12:00-13:00 Europe/Berlin",
	} {
		if want == "" {
			want = text
		}
		h, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := h.String(); got != want {
			t.Errorf("%q is written %q, want %q", text, got, want)
		}
	}
	if got := mustParse(t, "Mon-Fri 09:00-18:00", "Sat 10:00-14:00 Europe/Berlin").String(); got != "Mon-Fri 09:00-18:00, Sat 10:00-14:00 Europe/Berlin" {
		t.Errorf("of a list: %q", got)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, words := range map[string]string{
		"":                             "are empty",
		"  ":                           "are empty",
		"09:00-18:00,":                 "empty part",
		"Mon-Fri":                      "no times",
		"Mon-Fri 09:00-18:00, Sat":     "no times",
		"Monday 09:00-18:00":           `"Monday" is neither days nor times`,
		"Mon-Frey 09:00-18:00":         `"Mon-Frey" is neither days nor times`,
		"Mon- 09:00-18:00":             `"Mon-" is neither days nor times`,
		"Mon Wed 09:00-18:00":          `"Wed" is not HH:MM-HH:MM`,
		"9:00-18:00":                   `"9:00-18:00" is not HH:MM-HH:MM`,
		"09:00":                        `"09:00" is not HH:MM-HH:MM`,
		"09:00 - 18:00":                `"09:00" is not HH:MM-HH:MM`,
		"09:60-18:00":                  `"09:60-18:00" is not HH:MM-HH:MM`,
		"25:00-26:00":                  `"25:00-26:00" is not HH:MM-HH:MM`,
		"00:00-24:01":                  `"00:00-24:01" is not HH:MM-HH:MM`,
		"-1:00-02:00":                  "is not HH:MM-HH:MM",
		"+1:00-02:00":                  "is not HH:MM-HH:MM",
		"09:00-18:00-19:00":            "is not HH:MM-HH:MM",
		"24:00-06:00":                  "begins at 24:00",
		"09:00-09:00":                  "never opens",
		"00:00-00:00":                  "never opens",
		"09:00-18:00 Europe/Berln":     `"Europe/Berln" is not a time zone`,
		"09:00-18:00 Local":            `"Local" is not a time zone`,
		"09:00-18:00 ../etc":           "is not a time zone",
		"09:00-18:00 Europe":           "is not a time zone",
		"09:00-18:00 +02:00":           "is not a time zone",
		"09:00-18:00 UTC 10:00-11:00":  "join spans with commas",
		"Europe/Berlin 09:00-18:00":    "is neither days nor times",
		"Mon 09:00-12:00, 13:00-18:00": "write Mon-Sun 13:00-18:00 if every day is meant",
		"Mon 09:00-12:00 Europe/Berlin, Tue 13:00-18:00":          "write it once, as the last word",
		"Mon 09:00-12:00 Europe/Berlin, Tue 13:00-18:00 UTC":      `two zones, "Europe/Berlin" and "UTC"`,
		"Mon 09:00-12:00 Europe/Berlin and Tue 13:00-18:00 Paris": "join spans with commas",
	} {
		if h, err := Parse(text); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q is %s (%v), want an error with %q", text, h, err, words)
		}
	}
	if _, err := Parse(); err == nil {
		t.Error("no text is no error")
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
func scan(t *testing.T, what string, from time.Time, is func(time.Time) bool, ask func(time.Time) (bool, time.Time)) (changes int) {
	t.Helper()
	open, until := ask(from)
	for at := from; at.Before(from.AddDate(0, 0, 21)); at = at.Add(time.Minute) {
		if !until.IsZero() && !at.Before(until) {
			if !at.Equal(until) {
				t.Fatalf("%s: a change at %s, between minutes", what, until)
			}
			was := open
			if open, until = ask(at); open == was {
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

// jumps are three weeks around each moment of 2026 at which one of the zones sets its clock, and some without any: between
// these, each week is as the one before.
func jumps(t *testing.T, zones ...string) (weeks []time.Time) {
	t.Helper()
	weeks = []time.Time{time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)}
	for _, name := range zones {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, zone)
		for _, at = at.ZoneBounds(); at.Year() == 2026; _, at = at.ZoneBounds() {
			weeks = append(weeks, at.UTC().AddDate(0, 0, -10))
		}
	}
	return weeks
}

// Whatever the hours, each minute around the jumps of a year is as a wall clock shows it; and what they are written as is
// read as the same.
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
		if again := mustParse(t, h.String()); again.String() != h.String() || !slices.Equal(again.spans, h.spans) {
			t.Errorf("%s is written %s, and that %s", what, h, again)
		}
		for _, from := range jumps(t, name) {
			changes += scan(t, what, from, func(at time.Time) bool { return shows(spec, at.In(h.zone)) }, h.Open)
		}
	}
	if changes < 1000 {
		t.Errorf("only %d changes were seen", changes)
	}
}

//callq:guarantee 11
func TestAllAgreeWithTheWallClocks(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	changes := 0
	for range 10 {
		zones := []string{"Europe/Berlin", "America/New_York", "America/Santiago"}[:2+rng.IntN(2)]
		var texts []string
		for _, name := range zones {
			texts = append(texts, text(draw(rng))+" "+name)
		}
		all, err := ParseAll(texts)
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range jumps(t, zones...) {
			changes += scan(t, strings.Join(texts, " and "), from, func(at time.Time) bool {
				return !slices.ContainsFunc(all, func(h Hours) bool { open, _ := h.Open(at); return !open })
			}, all.Open)
		}
	}
	if changes < 500 {
		t.Errorf("only %d changes were seen", changes)
	}
}

func TestAll(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) // Saturday
	for _, c := range []struct {
		hours []string
		open  bool
		until string
	}{
		{nil, true, "0001-01-01 00:00 UTC"},
		{[]string{"00:00-24:00 UTC"}, true, "0001-01-01 00:00 UTC"},
		{[]string{"Sat 09:00-18:00 UTC", "00:00-24:00 UTC", "11:00-16:00 Europe/Berlin"}, true, "2026-11-21 16:00 Europe/Berlin"},
		{[]string{"Mon-Fri 09:00-18:00 UTC", "Sat 00:00-24:00 UTC"}, false, "0001-01-01 00:00 UTC"}, // never
		{[]string{"Mon 09:00-18:00 UTC", "Mon,Tue 17:00-20:00 Europe/Berlin"}, false, "2026-11-23 17:00 Europe/Berlin"},
		{[]string{"Mon 09:00-18:00 UTC", "19:00-19:30 Europe/Berlin"}, false, "2027-03-29 19:00 Europe/Berlin"}, // in summer only
	} {
		all, err := ParseAll(c.hours)
		if err != nil {
			t.Fatal(err)
		}
		if open, until := all.Open(now); open != c.open || When(until) != c.until {
			t.Errorf("%q: open %t until %s, want %t until %s", c.hours, open, When(until), c.open, c.until)
		}
	}
	if _, err := ParseAll([]string{"00:00-24:00", "nonsense"}); err == nil {
		t.Error("nonsense is read")
	}
	if open, until := (Hours{}).Open(now); !open || !until.IsZero() {
		t.Errorf("the zero Hours: open %t until %s", open, until)
	}
}

// FuzzParse: what is read is written so that it reads as the same, and never so that it never opens.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"Mon-Fri 09:00-18:00 Europe/Berlin", "22:00-06:00", "Mon,Wed 00:00-24:00, Fri-Mon 01:00-02:30 America/Santiago", "Sat 24:00-",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(h.String())
		if err != nil || again.String() != h.String() || !slices.Equal(again.spans, h.spans) {
			t.Fatalf("%q is written %q, and that %q (%v)", text, h, again, err)
		}
		if open, until := h.Open(time.Unix(1e9, 0)); !open && until.IsZero() {
			t.Fatalf("%q never opens", text)
		}
	})
}
