package httptask

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxRetryAfter = 24 * time.Hour
	// statusOverloaded is what Anthropic's API and some proxies answer.
	statusOverloaded = 529
)

// reader reads how long a header's text asks to wait, 0 to maxRetryAfter. false: it cannot be read. date is the server's now.
type reader func(text string, date time.Time) (time.Duration, bool)

// waitForm is a way in which APIs say when they take requests again. docs/apis.md has who sends which.
type waitForm struct {
	header string // its name; a * in it stands for the name of a limit
	read   reader // nil: the header holds policies
	// remaining names the header that says how much is left, with the same * as header: the form counts where that is 0 or
	// missing. Empty: the form alone says that the API refuses.
	remaining string
	own       bool // it is one of Forms.Wait
}

// waitForms are in the order in which they count: the first that names a time ahead does.
func waitForms() []waitForm {
	return []waitForm{
		{header: "Retry-After-Ms", read: readMillis},
		{header: "X-Ms-Retry-After-Ms", read: readMillis},
		{header: "Retry-After", read: readRetryAfter},
		{header: "Retry-After-*", read: readSeconds},
		{header: "Ratelimit"},
		{header: "Ratelimit-Reset", read: readReset, remaining: "Ratelimit-Remaining"},
		{header: "X-Ratelimit-Reset-After", read: readSeconds},
		{header: "X-Ratelimit-Reset", read: readReset, remaining: "X-Ratelimit-Remaining"},
		{header: "X-Rate-Limit-Reset", read: readReset, remaining: "X-Rate-Limit-Remaining"},
		{header: "X-Ratelimit-Reset-*", read: readReset, remaining: "X-Ratelimit-Remaining-*"},
		{header: "Anthropic-Ratelimit-*-Reset", read: readReset, remaining: "Anthropic-Ratelimit-*-Remaining"},
	}
}

// Forms are what a limit's configuration says of headers: which say when to come again beside waitForms (Wait), and which of
// those do not (Off). Their names are canonical; one that ends in * stands for all that begin so.
type Forms struct{ Wait, Off []string }

// own are the forms of Wait. They count before the others.
func (f Forms) own() []waitForm {
	list := make([]waitForm, 0, len(f.Wait))
	for _, name := range f.Wait {
		list = append(list, waitForm{header: name, read: readReset, own: true})
	}
	return list
}

// without returns a header without what Off names.
func (f Forms) without(header http.Header) http.Header {
	if len(f.Off) == 0 {
		return header
	}
	header = maps.Clone(header)
	maps.DeleteFunc(header, func(name string, _ []string) bool { return matchesAny(f.Off, name) })
	return header
}

// Refusal is what an answer says that refuses a request because of a limit.
type Refusal struct {
	After time.Duration // from the answer on; 0: it names no time ahead
	Named bool          // a header says so; else only the status does
	// Unsure: a 503 or 529 that says nothing more. It is what limiters such as nginx answer, and APIs that are down.
	Unsure bool
	Own    bool     // a header of Forms.Wait says so
	Names  []string // of the limits that it is about, as the header has them, in lower case: burst, requests
}

// Refusal reads what an answer says of limits; nil: it is no refusal. 429 always is one, 503 and 529 with a form or by the look of
// them (Unsure), and a status that can have other causes only with what says so. A time that is over names none ahead, but says
// that the status is about a limit.
func (a *Answer) Refusal(forms Forms) *Refusal {
	if a.Status < 400 || a.Status > 599 {
		return nil
	}
	var over *Refusal
	for _, r := range []*Refusal{a.named(forms.own(), a.Header), a.named(waitForms(), forms.without(a.Header))} {
		switch {
		case r != nil && r.After > 0:
			return r.naming(a.Remotes(forms))
		case over == nil:
			over = r
		}
	}
	switch {
	case over != nil:
		return over.naming(a.Remotes(forms))
	case a.Status == http.StatusTooManyRequests:
		return new(Refusal).naming(a.Remotes(forms))
	case a.Status == http.StatusServiceUnavailable, a.Status == statusOverloaded:
		return &Refusal{Unsure: true}
	}
	return nil
}

// naming has a refusal whose own header names no limit name those that have nothing left: APIs send Retry-After beside them.
func (r *Refusal) naming(limits []Remote) *Refusal {
	if len(r.Names) > 0 || r.Own {
		return r
	}
	for _, l := range limits {
		if l.Remaining == 0 && l.Name != "" {
			r.Names = append(r.Names, l.Name)
		}
	}
	return r
}

// named is what the first of the forms that names a time ahead says, or else the first that names one. nil: none does.
func (a *Answer) named(forms []waitForm, header http.Header) (first *Refusal) {
	date := a.date()
	for _, f := range forms {
		switch r := f.refusal(a.Status, header, date); {
		case r != nil && r.After > 0:
			return r
		case first == nil:
			first = r
		}
	}
	return first
}

// date is the server's clock where the answer tells it: dates are held against it.
func (a *Answer) date() time.Time {
	if at, err := http.ParseTime(a.Header.Get("Date")); err == nil {
		return at
	}
	return a.At
}

// Malformed are the headers that should say when to come again and cannot be read at all, sorted.
func (a *Answer) Malformed(forms Forms) []string {
	header, date := forms.without(a.Header), a.date()
	var list []string
	for _, f := range waitForms() {
		for _, name := range f.names(header) {
			_, isOwn := readReset(textOf(header, name), date)
			isOwn = isOwn && matchesAny(forms.Wait, name)
			readable := slices.ContainsFunc(f.says(header, name, date), func(r Remote) bool {
				return r.Reset >= 0 || f.read == nil && r.says()
			})
			if !readable && !isOwn {
				list = append(list, name)
			}
		}
	}
	slices.Sort(list)
	return list
}

// refusal is the longest wait that headers of the form name, of limits that have nothing left. nil: they name none, or do not count
// with this status.
func (f waitForm) refusal(status int, header http.Header, date time.Time) (longest *Refusal) {
	for _, name := range f.names(header) {
		for _, r := range f.says(header, name, date) {
			if r.Reset < 0 || r.Remaining > 0 || !f.counts(status, r, header) {
				continue
			}
			if longest == nil || r.Reset > longest.After {
				longest = &Refusal{After: r.Reset, Named: true, Own: f.own}
			}
			if r.Reset == longest.After && r.Name != "" && !slices.Contains(longest.Names, r.Name) {
				longest.Names = append(longest.Names, r.Name)
			}
		}
	}
	return longest
}

// counts reports whether what the form says makes an answer of this status a refusal.
func (f waitForm) counts(status int, says Remote, header http.Header) bool {
	asks := f.own || strings.Contains(f.header, "Retry-After")
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, statusOverloaded:
		return true
	case http.StatusForbidden:
		return asks || says.Remaining == 0 || exhausted(header)
	case http.StatusRequestEntityTooLarge, http.StatusBadGateway, http.StatusGatewayTimeout:
		return asks
	}
	return f.own && says.Reset > 0
}

// exhausted reports whether a header says that nothing remains: GitHub's limits answer 403 so.
func exhausted(header http.Header) bool {
	return slices.ContainsFunc([]string{"Ratelimit-Remaining", "X-Ratelimit-Remaining", "X-Rate-Limit-Remaining"}, func(name string) bool {
		return readCount(textOf(header, name)) == 0
	})
}

// names are the headers of the form, sorted. A header with a form of its own is in no form with a *: Retry-After-Ms is not the
// limit "ms".
func (f waitForm) names(header http.Header) []string {
	var list []string
	for name := range header {
		if _, ok := match(f.header, name); !ok {
			continue
		}
		other := slices.ContainsFunc(waitForms(), func(w waitForm) bool { return w.header == name })
		if f.own || f.header == name || !other {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list[:min(len(list), maxRemotes)]
}

// says is what a header of the form says, by limit. Reset is -1 where it cannot be read.
func (f waitForm) says(header http.Header, name string, date time.Time) []Remote {
	if f.read == nil {
		return readPolicies(strings.Join(header[name], ","))
	}
	r := unknown()
	if wait, ok := f.read(textOf(header, name), date); ok {
		r.Reset = wait
	}
	of, _ := match(f.header, name)
	if !f.own {
		r.Name = limitName(of)
	}
	if f.remaining != "" {
		r.Remaining = readCount(textOf(header, strings.Replace(f.remaining, "*", of, 1)))
	}
	return []Remote{r}
}

// match returns what the * of a pattern stands for in a header's name. A pattern without * is the name.
func match(pattern, name string) (of string, ok bool) {
	before, after, many := strings.Cut(pattern, "*")
	if !many || len(name) < len(before)+len(after) {
		return "", name == pattern
	}
	of, begins := strings.CutPrefix(name, before)
	of, ends := strings.CutSuffix(of, after)
	return of, begins && ends
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		_, ok := match(pattern, name)
		return ok
	})
}

func textOf(header http.Header, name string) string { return strings.TrimSpace(header.Get(name)) }

// limitName is how the names of limits are compared. "": nobody would name a limit so.
func limitName(text string) string {
	const most = 100
	if len(text) > most || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) {
		return ""
	}
	return strings.ToLower(text)
}

// readNumber reads a decimal number, which may be huge. -1: it is none.
func readNumber(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if text == "" || strings.Trim(text, "0123456789.") != "" || err != nil && !errors.Is(err, strconv.ErrRange) {
		return -1
	}
	return n
}

// span is n of a unit, as long as may be asked for.
func span(n float64, unit time.Duration) time.Duration {
	return time.Duration(max(0, min(n, maxRetryAfter.Seconds()*float64(time.Second/unit))) * float64(unit))
}

func until(at, date time.Time) time.Duration { return max(0, min(at.Sub(date), maxRetryAfter)) }

func readSeconds(text string, _ time.Time) (time.Duration, bool) {
	n := readNumber(text)
	return span(n, time.Second), n >= 0
}

func readMillis(text string, _ time.Time) (time.Duration, bool) {
	n := readNumber(text)
	return span(n, time.Millisecond), n >= 0
}

// readRetryAfter reads seconds or a date.
func readRetryAfter(text string, date time.Time) (time.Duration, bool) {
	if wait, ok := readDate(text, date); ok {
		return wait, true
	}
	return readSeconds(text, date)
}

// readDate reads RFC 9110's three forms of dates, and those that end in UTC.
func readDate(text string, date time.Time) (time.Duration, bool) {
	for _, form := range []string{text, strings.TrimSuffix(text, "UTC") + "GMT"} {
		if at, err := http.ParseTime(form); err == nil {
			return until(at, date), true
		}
	}
	return 0, false
}

// readReset reads what may be a moment or a span: seconds or milliseconds since 1970, seconds from now, a duration such as 6m0s or
// 120ms, an RFC 3339 time, or a date as in Retry-After.
func readReset(text string, date time.Time) (time.Duration, bool) {
	const secondsFrom, millisFrom = 1e9, 1e11 // 2001 in seconds, 1973 in ms: no API asks to wait as long
	n := readNumber(text)
	switch {
	case n >= millisFrom:
		return span((n-float64(date.UnixMilli()))/1000, time.Second), true
	case n >= secondsFrom:
		return span(n-float64(date.UnixMilli())/1000, time.Second), true
	case n >= 0:
		return span(n, time.Second), true
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return until(at, date), true
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return min(d, maxRetryAfter), true
	}
	return readDate(text, date)
}
