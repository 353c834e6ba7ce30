package httptask

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const maxRetryAfter = 24 * time.Hour

// waitForm is a way in which APIs say when they take requests again. docs/apis.md has who sends which.
type waitForm struct {
	header string // its name; one that ends in * stands for all that begin so
	read   func(text string, date time.Time) time.Duration
	// remaining names the header that says how much is left, with the same * as header: the form counts where that is 0 or
	// missing. Empty: the form alone says that the API refuses.
	remaining string
}

// waitForms are in the order in which they count: the first that names a time does.
func waitForms() []waitForm {
	return []waitForm{
		{"Retry-After-Ms", readMillis, ""},
		{"X-Ms-Retry-After-Ms", readMillis, ""},
		{"Retry-After", readRetryAfter, ""},
		{"Retry-After-*", readSeconds, ""},
		{"Ratelimit", readPolicies, ""},
		{"Ratelimit-Reset", readSeconds, "Ratelimit-Remaining"},
		{"X-Ratelimit-Reset-After", readSeconds, ""},
		{"X-Ratelimit-Reset", readReset, "X-Ratelimit-Remaining"},
		{"X-Rate-Limit-Reset", readReset, "X-Rate-Limit-Remaining"},
		{"X-Ratelimit-Reset-*", readReset, "X-Ratelimit-Remaining-*"},
		{"Anthropic-Ratelimit-*", readReset, "Anthropic-Ratelimit-*"}, // …-requests-reset and …-requests-remaining
	}
}

// Forms are what a limit's configuration says of headers: which say when to come again beside waitForms (Wait), and which of
// those do not (Off). Their names are canonical; one that ends in * stands for all that begin so.
type Forms struct{ Wait, Off []string }

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
// them (Unsure), and a status that can have other causes only with what says so.
func (a *Answer) Refusal(forms Forms) *Refusal {
	switch a.Status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, statusOverloaded, http.StatusForbidden,
		http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusRequestEntityTooLarge:
	default:
		return nil
	}
	wait := waitOf(a.Status, a.Header, a.At)
	switch {
	case wait > 0:
		return &Refusal{After: wait, Named: true}
	case a.Status == http.StatusTooManyRequests:
		return &Refusal{}
	case a.Status == http.StatusServiceUnavailable, a.Status == statusOverloaded:
		return &Refusal{Unsure: true}
	}
	return nil
}

// Remote is what an answer that is no refusal says of one of the API's own limits. -1: it does not say.
type Remote struct {
	Name             string // as in Refusal.Names; "": it has none
	Limit, Remaining int64
	Reset            time.Duration // from the answer on
}

// Remotes reads what an answer says of the API's own limits.
func (a *Answer) Remotes(forms Forms) []Remote { return nil }

// waitOf is how long an answer of this status asks to wait. 0: it does not, or names no time ahead. A status that can have other
// causes than a limit counts only with what says so.
func waitOf(status int, header http.Header, now time.Time) time.Duration {
	date := now // dates are held against the server's own clock where it tells it
	if at, err := http.ParseTime(header.Get("Date")); err == nil {
		date = at
	}
	for _, f := range waitForms() {
		says := strings.Contains(f.header, "Retry-After")
		switch status {
		case http.StatusTooManyRequests, http.StatusServiceUnavailable, statusOverloaded:
		case http.StatusForbidden:
			if !says && !exhausted(header) {
				continue
			}
		case http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusRequestEntityTooLarge:
			if !says {
				continue
			}
		default:
			return 0
		}
		if wait := f.wait(header, date); wait > 0 {
			return min(wait, maxRetryAfter)
		}
	}
	return 0
}

// statusOverloaded is what Anthropic's API and some proxies answer.
const statusOverloaded = 529

// exhausted reports whether a header says that nothing remains: GitHub's limits answer 403 so.
func exhausted(header http.Header) bool {
	return slices.ContainsFunc([]string{"Ratelimit-Remaining", "X-Ratelimit-Remaining", "X-Rate-Limit-Remaining"}, func(name string) bool {
		return strings.TrimSpace(header.Get(name)) == "0"
	})
}

// wait is the longest that headers of the form name, of limits that have nothing left.
func (f waitForm) wait(header http.Header, date time.Time) (longest time.Duration) {
	prefix, many := strings.CutSuffix(f.header, "*")
	if !many {
		if f.left(header, "") {
			return 0
		}
		return f.read(strings.TrimSpace(header.Get(f.header)), date)
	}
	for name := range header {
		if rest, ok := strings.CutPrefix(name, prefix); ok && !f.left(header, rest) {
			longest = max(longest, f.read(strings.TrimSpace(header.Get(name)), date))
		}
	}
	return longest
}

// left reports whether something remains of what a header is about, of which rest stands for the *.
func (f waitForm) left(header http.Header, rest string) bool {
	switch {
	case f.remaining == "":
		return false
	case strings.HasPrefix(f.header, "Anthropic-"):
		of, isReset := strings.CutSuffix(rest, "-Reset")
		if !isReset {
			return true
		}
		rest = of + "-Remaining"
	}
	text := strings.TrimSpace(header.Get(strings.Replace(f.remaining, "*", rest, 1)))
	return text != "" && strings.Trim(text, "0.") != ""
}

// readNumber reads a decimal number, which may be huge. -1: it is none.
func readNumber(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if text == "" || strings.Trim(text, "0123456789.") != "" || err != nil && !errors.Is(err, strconv.ErrRange) {
		return -1
	}
	return n
}

func span(n float64, unit time.Duration) time.Duration {
	return time.Duration(max(0, min(n, maxRetryAfter.Seconds()*float64(time.Second/unit))) * float64(unit))
}

func readSeconds(text string, _ time.Time) time.Duration { return span(readNumber(text), time.Second) }

func readMillis(text string, _ time.Time) time.Duration {
	return span(readNumber(text), time.Millisecond)
}

// readRetryAfter reads seconds or a date: RFC 9110's three forms, and those that end in UTC.
func readRetryAfter(text string, date time.Time) time.Duration {
	for _, form := range []string{text, strings.TrimSuffix(text, "UTC") + "GMT"} {
		if at, err := http.ParseTime(form); err == nil {
			return max(at.Sub(date), 0)
		}
	}
	return readSeconds(text, date)
}

// readReset reads what may be a moment or a span: seconds or milliseconds since 1970, seconds from now, a duration such as 6m0s or
// 120ms, or an RFC 3339 time.
func readReset(text string, date time.Time) time.Duration {
	const secondsFrom, millisFrom = 1e9, 1e11 // 2001 in seconds, 1973 in ms: no API asks to wait as long
	n := readNumber(text)
	switch {
	case n >= millisFrom:
		return span((n-float64(date.UnixMilli()))/1000, time.Second)
	case n >= secondsFrom:
		return span(n-float64(date.UnixMilli())/1000, time.Second)
	case n >= 0:
		return span(n, time.Second)
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return max(at.Sub(date), 0)
	}
	if d, err := time.ParseDuration(text); err == nil {
		return max(d, 0)
	}
	return 0
}

// readPolicies reads RateLimit as the drafts of draft-ietf-httpapi-ratelimit-headers have it: "limit=2, remaining=0, reset=10" (7), or
// policies, each with what remains and for how long, `"burst";r=0;t=8, "day";r=90;t=3600` (8 and later). Those with nothing left
// count.
func readPolicies(text string, _ time.Time) (longest time.Duration) {
	if strings.Contains(text, "remaining=") {
		text = strings.NewReplacer(",", ";", "remaining=", "r=", "reset=", "t=").Replace(text)
	}
	for policy := range strings.SplitSeq(text, ",") {
		left, reset := "", ""
		for field := range strings.SplitSeq(policy, ";") {
			switch name, value, _ := strings.Cut(strings.TrimSpace(field), "="); name {
			case "r":
				left = strings.TrimSpace(value)
			case "t":
				reset = strings.TrimSpace(value)
			}
		}
		if left == "" || strings.Trim(left, "0") == "" {
			longest = max(longest, span(readNumber(reset), time.Second))
		}
	}
	return longest
}
