package httptask

import (
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Secret is a header's value, or the end of it, that calls name and do not hold. It leaves the worker in a
// request to one of its hosts and in no other way.
type Secret struct {
	Value string
	// Hosts may be sent it: host (on any port) or host:port, over https, or over http where the address is
	// private and allowed. Written http://host, over http wherever it is.
	Hosts []string
}

// Format and MarshalText keep the value out of whatever prints a configuration.
func (Secret) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(hiddenText)) }
func (Secret) MarshalText() ([]byte, error) { return []byte(hiddenText), nil }

// hiddenText stands where a secret was.
const (
	hiddenText  = "***"
	leastSecret = 4 // bytes: what is shorter is in every answer, and would be starred out there
)

// secrets are all that this worker knows. They are never changed.
type secrets map[string]secret

type secret struct {
	value     string
	hosts     hosts
	clear     hosts // those of them to which it may go over http wherever they are
	spellings []string
}

func newSecrets(configured map[string]Secret) (secrets, error) {
	s := secrets{}
	for name, c := range configured {
		var all, clear []string
		for _, host := range c.Hosts {
			plain, inClear := strings.CutPrefix(host, "http://")
			if all = append(all, plain); inClear {
				clear = append(clear, plain)
			}
		}
		switch {
		case len(c.Value) < leastSecret:
			return nil, fmt.Errorf("tasks: the secret %s has fewer than %d bytes: it could not be kept out of answers",
				name, leastSecret)
		case !utf8.ValidString(c.Value) || hasControl(c.Value) || strings.TrimSpace(c.Value) != c.Value:
			return nil, fmt.Errorf("tasks: the secret %s cannot be a header's value: "+
				"it has a line break, another control character, a space at an end or is not UTF-8", name)
		case len(c.Hosts) == 0:
			return nil, fmt.Errorf("tasks: the secret %s has no hosts that may be sent it", name)
		}
		s[name] = secret{c.Value, newHosts(all), newHosts(clear), spellings(c.Value)}
	}
	return s, nil
}

// may reports whether a request to u may carry the secret called name; onlyPrivate: to a private address only, for
// nothing encrypts it.
func (s secrets) may(name string, u *url.URL) (onlyPrivate bool, err error) {
	secret, known := s[name]
	if !known {
		return false, refused(fmt.Errorf("%q is not one of this worker's http_task.secrets", name))
	}
	h := hostOf(u)
	if !secret.hosts.have(h) {
		return false, refused(fmt.Errorf("the secret %s may not go to %s: it is not among its hosts in http_task.secrets",
			name, u.Host))
	}
	return u.Scheme != "https" && !secret.clear.have(h), nil
}

// spellings are how an API may repeat a value: as it is, and escaped for JSON, URLs and HTML.
func spellings(value string) []string {
	inJSON, _ := json.Marshal(value) // a string always can
	all := []string{value, url.QueryEscape(value), url.PathEscape(value), html.EscapeString(value)}
	ascii := strconv.QuoteToASCII(value)
	for _, q := range []string{string(inJSON), strconv.Quote(value), ascii, strings.ReplaceAll(ascii, "/", `\/`)} {
		all = append(all, q[1:len(q)-1])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// needles are what is starred out of an answer, and of errors: the secrets that its request may carry, as answers
// spell them. Whatever else were starred would tell its API, or who wrote the call, what they guess of a secret.
type needles struct {
	all     []string
	longest int // bytes of the longest of them; 0: there are none
}

func (s secrets) needles(u *url.URL) (n needles) {
	for name, secret := range s {
		if _, err := s.may(name, u); err == nil {
			n.all = append(n.all, secret.spellings...)
		}
	}
	for _, spelling := range n.all {
		n.longest = max(n.longest, len(spelling))
	}
	return n
}

// redact stars out every secret in a text, those too that overlap. Of a text that was cut off, its end goes, for a secret may
// begin there.
func (n needles) redact(text string, cut bool) string {
	type span struct{ from, to int }
	var found []span
	for _, spelling := range n.all {
		for from := 0; ; from++ {
			i := strings.Index(text[from:], spelling)
			if i < 0 {
				break
			}
			from += i
			found = append(found, span{from, from + len(spelling)})
		}
	}
	slices.SortFunc(found, func(a, b span) int { return a.from - b.from })
	var stars strings.Builder
	at := 0
	for _, f := range found {
		if f.from >= at { // else it overlaps what is starred already
			stars.WriteString(text[at:f.from] + hiddenText)
		}
		at = max(at, f.to)
	}
	short := stars.String() + text[at:]
	if cut {
		short = short[:max(0, len(short)-n.longest)]
	}
	return short
}

// redacted is err with no secret in its text.
func (n needles) redacted(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if short := n.redact(text, false); short != text {
		return &redactedError{short, err}
	}
	return err
}

type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }
