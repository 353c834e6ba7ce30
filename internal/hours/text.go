package hours

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

var errEmpty = errors.New("hours are empty: leave them out for a queue that is always open")

// dayNames are in the order of the week.
func dayNames() []string { return []string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"} }

// everyDay is the days of a span that names none.
const everyDay days = 1<<7 - 1

// days is a set of days: bit 0 is Monday.
type days uint8

// Parse reads hours: `days HH:MM-HH:MM zone`, several joined by commas or as several texts. Days are Mon-Fri,
// Sat, Mon,Wed or, without any, every day. A span that ends before it begins ends on the next day, and 24:00 is
// a day's end. The zone is one for all, the last word; without it, it is UTC.
func Parse(texts ...string) (Hours, error) {
	p := parser{}
	for _, text := range texts {
		if err := p.text(text); err != nil {
			return Hours{}, err
		}
	}
	if len(p.spans) == 0 {
		return Hours{}, errEmpty
	}
	if p.zone != "" && !p.zoneLast {
		return Hours{}, fmt.Errorf("the zone %s holds for all spans: write it once, as the last word", quote(p.zone))
	}
	zone, err := loadZone(cmp.Or(p.zone, "UTC"))
	if err != nil {
		return Hours{}, err
	}
	return of(zone, p.spans), nil
}

// ParseAll reads hours that must all be open, each as Hours.String writes them.
func ParseAll(texts []string) (All, error) {
	var all All
	for _, text := range texts {
		h, err := Parse(text)
		if err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, nil
}

// parser gathers what was read so far.
type parser struct {
	spans    []span
	zone     string
	zoneLast bool   // behind the last span
	dated    string // a span that named its days
}

// text reads spans joined by commas. A part that is only days, as in Mon,Wed 09:00-18:00, belongs to the next.
func (p *parser) text(text string) error {
	var before days
	if strings.TrimSpace(text) == "" {
		return errEmpty
	}
	for part := range strings.SplitSeq(text, ",") {
		words := strings.Fields(part)
		if len(words) == 0 {
			return fmt.Errorf("%s has an empty part", quote(text))
		}
		on, err := parseDays(words[0])
		if err != nil {
			return err
		}
		if on != 0 {
			if before |= on; len(words) == 1 {
				continue
			}
			words = words[1:]
		}
		if err := p.span(before, words, strings.TrimSpace(part)); err != nil {
			return err
		}
		before = 0
	}
	if before != 0 {
		return fmt.Errorf("%s ends with days and no times", quote(text))
	}
	return nil
}

// span reads HH:MM-HH:MM and what may be behind it, the zone.
func (p *parser) span(on days, words []string, part string) error {
	from, to, err := parseTimes(words[0])
	if err != nil {
		return err
	}
	switch {
	case on != 0:
		p.dated = part
	case p.dated != "":
		return fmt.Errorf("%s has no days, and %s before it does: write Mon-Sun %s if every day is meant, else its days",
			words[0], quote(p.dated), words[0])
	default:
		on = everyDay
	}
	if p.zoneLast = len(words) > 1; p.zoneLast {
		switch zone := strings.Join(words[1:], " "); {
		case len(words) > 2:
			return fmt.Errorf("%s is not a time zone: join spans with commas", quote(zone))
		case p.zone != "" && p.zone != zone:
			return fmt.Errorf("there are two zones, %s and %s: there may be one for all", quote(p.zone), quote(zone))
		default:
			p.zone = zone
		}
	}
	for d := range 7 {
		if on&(1<<d) != 0 {
			p.spans = append(p.spans, span{d*day + from, d*day + to})
		}
	}
	return nil
}

// parseDays reads Mon or Mon-Fri; what looks like a time is none.
func parseDays(word string) (days, error) {
	if strings.ContainsAny(word, ":0123456789") {
		return 0, nil
	}
	first, last, ranged := strings.Cut(word, "-")
	from, to := dayOf(first), dayOf(last)
	if from < 0 || ranged && to < 0 {
		return 0, fmt.Errorf("%s is neither days nor times: days are %s, or Mon-Fri", quote(word), strings.Join(dayNames(), ", "))
	}
	if !ranged {
		to = from
	}
	var on days
	for d := from; ; d = (d + 1) % 7 {
		on |= 1 << d
		if d == to {
			return on, nil
		}
	}
}

func dayOf(name string) int {
	return slices.IndexFunc(dayNames(), func(d string) bool { return strings.EqualFold(d, name) })
}

// parseTimes reads HH:MM-HH:MM as minutes of the first day: an end on the next is beyond 24:00.
func parseTimes(word string) (from, to int, err error) {
	first, last, _ := strings.Cut(word, "-")
	from, known := minutesOf(first)
	to, alsoKnown := minutesOf(last)
	switch {
	case !known || !alsoKnown:
		return 0, 0, fmt.Errorf("%s is not HH:MM-HH:MM, such as 09:00-18:00", quote(word))
	case from == day:
		return 0, 0, fmt.Errorf("%s begins at 24:00: write 00:00, on the day after", word)
	case from == to:
		return 0, 0, fmt.Errorf("%s never opens: it ends as it begins; a whole day is 00:00-24:00", word)
	case to < from:
		to += day
	}
	return from, to, nil
}

// minutesOf reads HH:MM, 00:00 to 24:00.
func minutesOf(text string) (int, bool) {
	if len(text) != 5 || text[2] != ':' || strings.ContainsAny(text, "+-") {
		return 0, false
	}
	hour, err1 := strconv.Atoi(text[:2])
	minute, err2 := strconv.Atoi(text[3:])
	m := hour*60 + minute
	return m, err1 == nil && err2 == nil && minute < 60 && m <= day
}

func loadZone(name string) (*time.Location, error) {
	if name != "Local" { // it would be another one on each machine
		if zone, err := time.LoadLocation(name); err == nil {
			return zone, nil
		}
	}
	return nil, fmt.Errorf("%s is not a time zone: write its IANA name, such as Europe/Berlin, America/New_York or UTC", quote(name))
}

// quote shows what was written in an error.
func quote(text string) string {
	if len(text) > 80 {
		text = text[:80] + "…"
	}
	return strconv.Quote(text)
}

// String writes hours in one form, which Parse reads: what is open at the same times by the same zone is
// written alike. The zero Hours are empty.
func (h Hours) String() string {
	if len(h.spans) == 0 {
		return ""
	}
	at := map[span]days{} // times of a day, to the days that have them
	for _, s := range h.arcs() {
		d := s.from / day
		at[span{s.from % day, s.to - d*day}] |= 1 << (d % 7)
	}
	type group struct {
		times span
		on    days
	}
	var groups []group
	for times, on := range at {
		groups = append(groups, group{times, on})
	}
	slices.SortFunc(groups, func(a, b group) int { // every day's first: behind others they would need days
		return cmp.Or(-cmp.Compare(a.on/everyDay, b.on/everyDay), cmp.Compare(a.on.first(), b.on.first()),
			a.times.from-b.times.from, a.times.to-b.times.to)
	})
	var parts []string
	for _, g := range groups {
		parts = append(parts, g.on.String()+g.times.String())
	}
	return strings.Join(parts, ", ") + " " + h.zone.String()
}

// arcs are the spans as people write them: what goes on after midnight is one if it is shorter than a day, else
// one for each day.
func (h Hours) arcs() []span {
	around := slices.Clone(h.spans)
	if last := len(around) - 1; last > 0 && around[0].from == 0 && around[last].to == week {
		around[last].to += around[0].to
		around = around[1:]
	}
	var arcs []span
	for _, s := range around {
		for s.to-s.from >= day && s.to > (s.from/day+1)*day {
			midnight := (s.from/day + 1) * day
			arcs = append(arcs, span{s.from, midnight})
			s.from = midnight
		}
		arcs = append(arcs, s)
	}
	return arcs
}

// String writes times of a day.
func (s span) String() string {
	to := s.to
	if to > day {
		to -= day
	}
	return fmt.Sprintf("%02d:%02d-%02d:%02d", s.from/60, s.from%60, to/60, to%60)
}

// first is where the first run of days begins, so that Fri-Mon comes after Mon.
func (on days) first() int {
	for d := range 7 {
		if on.begins(d) {
			return d
		}
	}
	return 0
}

// begins says whether a run of days begins with d.
func (on days) begins(d int) bool { return on&(1<<d) != 0 && on&(1<<((d+6)%7)) == 0 }

// String writes days with a space behind them: Mon-Fri, Sat,Sun, Fri-Mon; nothing for every day.
func (on days) String() string {
	if on == everyDay {
		return ""
	}
	var runs []string
	for d, name := range dayNames() {
		if !on.begins(d) {
			continue
		}
		n := 1
		for on&(1<<((d+n)%7)) != 0 {
			n++
		}
		switch last := dayNames()[(d+n-1)%7]; n {
		case 1:
			runs = append(runs, name)
		case 2:
			runs = append(runs, name+","+last)
		default:
			runs = append(runs, name+"-"+last)
		}
	}
	return strings.Join(runs, ",") + " "
}
