package hours

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ParseAll reads hours that must all be open, each as Hours.String writes them.
func ParseAll(texts []string) (All, error) { return Cache{}.All(texts) }

// Parse reads hours: `days HH:MM-HH:MM zone`, several joined by commas or as several texts. Days are Mon-Fri, Sat,
// Mon,Wed or, without any, every day. A span that ends before it begins ends on the next day, and 24:00 is a day's
// end. The last word is the zone, one for all; without it, it is UTC.
func Parse(texts ...string) (Hours, error) {
	text := strings.Join(texts, ",")
	if strings.TrimSpace(text) == "" {
		return Hours{}, errors.New("hours are empty: leave them out for a queue that is always open")
	}
	p := parser{zone: "UTC"}
	for part := range strings.SplitSeq(text, ",") {
		words := strings.Fields(part)
		if len(words) == 0 {
			return Hours{}, fmt.Errorf("%s has an empty part", quote(text))
		}
		if err := p.part(words); err != nil {
			return Hours{}, err
		}
	}
	switch {
	case p.on != 0:
		return Hours{}, fmt.Errorf("%s ends with days and no times", quote(text))
	case p.zoned && !p.zoneLast:
		return Hours{}, fmt.Errorf("the zone %s holds for all spans: write it once, as the last word", quote(p.zone))
	}
	zone, err := time.LoadLocation(p.zone)
	if err != nil || p.zone == "Local" { // which would be another one on each machine
		return Hours{}, fmt.Errorf("%s is not a time zone: write its IANA name, such as Europe/Berlin, America/New_York or UTC", quote(p.zone))
	}
	return of(zone, p.spans), nil
}

// parser is what was read so far.
type parser struct {
	spans    []span
	on       days   // of the next span
	dated    string // a span that named its days
	zone     string
	zoned    bool // it was read
	zoneLast bool // after the last span
}

// part reads what is between commas: days, times, or both, and the zone. Only days, as Mon in Mon,Wed 09:00-18:00, belong to
// the next span.
func (p *parser) part(words []string) error {
	text := strings.Join(words, " ")
	on, err := parseDays(words[0])
	if err != nil {
		return err
	}
	if on != 0 {
		p.on, words = p.on|on, words[1:]
	}
	if len(words) == 0 {
		return nil
	}
	from, to, err := parseTimes(words[0])
	switch {
	case err != nil:
		return err
	case p.on != 0:
		p.dated = text
	case p.dated != "":
		return fmt.Errorf("%s has no days, and %s before it does: write Mon-Sun %s if every day is meant, else its days",
			words[0], quote(p.dated), words[0])
	default:
		p.on = everyDay
	}
	zone := strings.Join(words[1:], " ")
	switch p.zoneLast = zone != ""; {
	case len(words) > 2:
		return fmt.Errorf("%s is not a time zone: join spans with commas", quote(zone))
	case p.zoned && p.zoneLast && p.zone != zone:
		return fmt.Errorf("there are two zones, %s and %s: there may be one for all", quote(p.zone), quote(zone))
	case p.zoneLast:
		p.zone, p.zoned = zone, true
	}
	for d := range 7 {
		if p.on.has(d) {
			p.spans = append(p.spans, span{d*day + from, d*day + to})
		}
	}
	p.on = 0
	return nil
}

// parseDays reads Mon or Mon-Fri; what looks like a time is none.
func parseDays(word string) (on days, err error) {
	if strings.ContainsAny(word, ":0123456789") {
		return 0, nil
	}
	first, last, ranged := strings.Cut(word, "-")
	if !ranged {
		last = first
	}
	from, to := dayOf(first), dayOf(last)
	if from < 0 || to < 0 {
		return 0, fmt.Errorf("%s is neither days nor times: days are %s, or Mon-Fri", quote(word), strings.Join(dayNames(), ", "))
	}
	for n := range (to-from+7)%7 + 1 {
		on |= 1 << ((from + n) % 7)
	}
	return on, nil
}

func dayOf(name string) int {
	return slices.IndexFunc(dayNames(), func(d string) bool { return strings.EqualFold(d, name) })
}

// parseTimes reads HH:MM-HH:MM as minutes of the first day. An end on the next day is beyond 24:00.
func parseTimes(word string) (from, to int, err error) {
	first, last, _ := strings.Cut(word, "-")
	from, to = minutesOf(first), minutesOf(last)
	switch {
	case from < 0 || to < 0:
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

// quote shows what was written in an error.
func quote(text string) string {
	if len(text) > 80 {
		text = text[:80] + "…"
	}
	return strconv.Quote(text)
}

// String writes hours in one form, which Parse reads. Hours that are open at the same times by the same zone are written
// alike. The zero Hours are empty.
func (h Hours) String() string {
	if len(h.spans) == 0 {
		return ""
	}
	on := map[span]days{} // times of a day, to the days that have them
	for _, s := range h.arcs() {
		d := s.from / day
		on[span{s.from - d*day, s.to - d*day}] |= 1 << (d % 7)
	}
	times := make([]span, 0, len(on))
	for t := range on {
		times = append(times, t)
	}
	slices.SortFunc(times, func(a, b span) int { // every day's first: after others they would need days
		return cmp.Or(-cmp.Compare(on[a]/everyDay, on[b]/everyDay), cmp.Compare(on[a].first(), on[b].first()), a.from-b.from, a.to-b.to)
	})
	var parts []string
	for _, t := range times {
		end := t.to
		if end > day {
			end -= day
		}
		parts = append(parts, fmt.Sprintf("%s%02d:%02d-%02d:%02d", on[t], t.from/60, t.from%60, end/60, end%60))
	}
	return strings.Join(parts, ", ") + " " + h.zone.String()
}

// arcs are the spans as people write them. What goes on after midnight is one arc if it is shorter than a day, else one for
// each day.
func (h Hours) arcs() (arcs []span) {
	around := slices.Clone(h.spans)
	if last := len(around) - 1; last > 0 && around[0].from == 0 && around[last].to == week {
		around[last].to += around[0].to
		around = around[1:]
	}
	for _, s := range around {
		for midnight := (s.from/day + 1) * day; s.to-s.from >= day && s.to > midnight; midnight += day {
			arcs = append(arcs, span{s.from, midnight})
			s.from = midnight
		}
		arcs = append(arcs, s)
	}
	return arcs
}

// days is a set of days: bit 0 is Monday.
type days uint8

const everyDay days = 1<<7 - 1

func dayNames() []string { return []string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"} }

func (on days) has(d int) bool { return on&(1<<(d%7)) != 0 }

// starts are the days with which runs of days begin; none of every day.
func (on days) starts() days { return on &^ (on<<1 | on>>6) }

// first is where the first run of days begins, so that Fri-Mon comes after Mon.
func (on days) first() int { return bits.TrailingZeros8(uint8(on.starts())) }

// String writes days and a space: Mon-Fri, Sat,Sun, Fri-Mon. It writes nothing for every day.
func (on days) String() string {
	var runs []string
	for d, run := range dayNames() {
		if !on.starts().has(d) {
			continue
		}
		n := 1
		for on.has(d + n) {
			n++
		}
		switch last := dayNames()[(d+n-1)%7]; n {
		case 1:
		case 2:
			run += "," + last
		default:
			run += "-" + last
		}
		runs = append(runs, run)
	}
	if runs == nil {
		return ""
	}
	return strings.Join(runs, ",") + " "
}
