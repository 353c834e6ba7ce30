package httptask

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// maxRemotes is how many limits an answer may speak of. No API has as many; what a hostile one adds is not read.
const maxRemotes = 100

// Remote is one of the API's own limits as an answer has it. -1: it does not, or not in a way that can be read.
type Remote struct {
	Name             string // as in Refusal.Names; "": it has none
	Limit, Remaining int64
	Reset            time.Duration // from the answer on
}

func unknown() Remote { return Remote{Limit: -1, Remaining: -1, Reset: -1} }

// says reports whether anything is known.
func (r Remote) says() bool { return r.Limit >= 0 || r.Remaining >= 0 || r.Reset >= 0 }

// remoteForm is a way in which APIs say what is left of a limit: the names of three headers. A * in them stands for the limit's name.
type remoteForm struct{ limit, remaining, reset string }

func remoteForms() []remoteForm {
	return []remoteForm{
		{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
		{"X-Rate-Limit-Limit", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset"},
		{"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"},
		{"X-Ratelimit-Limit-*", "X-Ratelimit-Remaining-*", "X-Ratelimit-Reset-*"},
		{"Anthropic-Ratelimit-*-Limit", "Anthropic-Ratelimit-*-Remaining", "Anthropic-Ratelimit-*-Reset"},
	}
}

// resetAfter is the same as X-Ratelimit-Reset by no clock. It is not about a limit named "after".
const resetAfter = "X-Ratelimit-Reset-After"

// Remotes reads what an answer of any status says of the API's own limits: form by form, those of a form by name, policies as the
// header has them.
func (a *Answer) Remotes(forms Forms) []Remote {
	header, date := forms.without(a.Header), a.date()
	var list []Remote
	for _, f := range remoteForms() {
		for _, of := range f.limits(header) {
			if r := f.read(header, of, date); r.says() {
				list = append(list, r)
			}
		}
	}
	list = append(list, policies(header)...)
	if r := readBucket(textOf(header, "X-Shopify-Shop-Api-Call-Limit")); r.says() {
		list = append(list, r)
	}
	return list[:min(len(list), maxRemotes)]
}

// limits are what the form's * stands for in a header, sorted.
func (f remoteForm) limits(header http.Header) []string {
	var list []string
	for name := range header {
		for _, pattern := range []string{f.limit, f.remaining, f.reset} {
			if of, ok := match(pattern, name); ok && name != resetAfter {
				list = append(list, of)
			}
		}
	}
	if f.reset == "X-Ratelimit-Reset" && header.Get(resetAfter) != "" {
		list = append(list, "")
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (f remoteForm) read(header http.Header, of string, date time.Time) Remote {
	text := func(pattern string) string { return textOf(header, strings.Replace(pattern, "*", of, 1)) }
	r := Remote{Name: limitName(of), Limit: readLimit(text(f.limit)), Remaining: readCount(text(f.remaining)), Reset: -1}
	if wait, ok := readReset(text(f.reset), date); ok {
		r.Reset = wait
	}
	if f.reset == "X-Ratelimit-Reset" {
		if wait, ok := readSeconds(textOf(header, resetAfter), date); ok {
			r.Reset = wait
		}
	}
	return r
}

// policies reads RateLimit, with the limits that RateLimit-Policy has of the same names.
func policies(header http.Header) []Remote {
	quotas := readPolicies(strings.Join(header["Ratelimit-Policy"], ","))
	var list []Remote
	for _, r := range readPolicies(strings.Join(header["Ratelimit"], ",")) {
		i := slices.IndexFunc(quotas, func(q Remote) bool { return q.Name == r.Name && r.Name != "" })
		if i >= 0 && r.Limit < 0 {
			r.Limit = quotas[i].Limit
		}
		if r.says() {
			list = append(list, r)
		}
	}
	return list
}

// readPolicies reads RateLimit as the drafts of draft-ietf-httpapi-ratelimit-headers have it: "limit=2, remaining=0, reset=10" (7), or
// policies, each with what remains and for how long, `"burst";r=0;t=8, "day";r=90;t=3600` (8 and later).
func readPolicies(text string) []Remote {
	var list []Remote
	plain := unknown() // draft 7 has one limit, and a member for each part of it
	members := splitUnquoted(text, ',')
	for _, member := range members[:min(len(members), maxRemotes)] {
		fields := splitUnquoted(member, ';')
		head := strings.TrimSpace(fields[0])
		if !strings.HasPrefix(head, `"`) && strings.Contains(head, "=") {
			readParameters(&plain, fields)
			continue
		}
		r := unknown()
		if name, ok := policyName(head); ok {
			r.Name = limitName(name)
			readParameters(&r, fields[1:])
			list = append(list, r)
		}
	}
	if plain.says() {
		list = append(list, plain)
	}
	return list
}

// readParameters reads what is known by its key. Others, such as pk, say nothing of what is left.
func readParameters(r *Remote, fields []string) {
	for _, field := range fields {
		key, value, _ := strings.Cut(field, "=")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "q", "limit":
			r.Limit = readCount(value)
		case "r", "remaining":
			r.Remaining = readCount(value)
		case "t", "reset":
			if wait, ok := readSeconds(value, time.Time{}); ok {
				r.Reset = wait
			}
		}
	}
}

// policyName reads the name of a policy, which RFC 9651 quotes: a backslash stands before a quote or a backslash. Some send a bare
// word.
func policyName(text string) (name string, ok bool) {
	inner, quoted := strings.CutPrefix(text, `"`)
	if !quoted {
		return text, text != ""
	}
	inner, ok = strings.CutSuffix(inner, `"`)
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(inner), ok
}

// splitUnquoted splits text at what is not within quotes.
func splitUnquoted(text string, separator byte) []string {
	var parts []string
	from, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++ // whatever follows, it ends no quotes
		case c == '"':
			quoted = !quoted
		case c == separator && !quoted:
			parts = append(parts, text[from:i])
			from = i + 1
		}
	}
	return append(parts, text[from:])
}

// readBucket reads Shopify's bucket, what is used of it and its size: 12/40.
func readBucket(text string) Remote {
	r := unknown()
	used, size, _ := strings.Cut(text, "/")
	if n, most := readCount(used), readCount(size); n >= 0 && most >= 0 {
		r.Limit, r.Remaining = most, max(0, most-n)
	}
	return r
}

// readLimit reads a limit, of several the first: `100, 100;w=60`.
func readLimit(text string) int64 {
	if i := strings.IndexAny(text, ",;"); i >= 0 {
		text = text[:i]
	}
	return readCount(strings.TrimSpace(text))
}

// readCount reads a number of requests or the like, without its decimals. -1: it is none, or none that a limit could have.
func readCount(text string) int64 {
	const most = 1e15
	n := readNumber(text)
	if n > most {
		return -1
	}
	return int64(n)
}
