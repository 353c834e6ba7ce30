package tasks

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
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
type secrets struct {
	byName map[string]secret
}

type secret struct {
	value     string
	hosts     map[string]bool // over https
	clear     map[string]bool // over http too
	spellings []string
}

func newSecrets(configured map[string]Secret) (*secrets, error) {
	s := &secrets{byName: map[string]secret{}}
	for name, c := range configured {
		var over, clear []string
		for _, host := range c.Hosts {
			if plain, ok := strings.CutPrefix(host, "http://"); ok {
				clear = append(clear, plain)
			} else {
				over = append(over, host)
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
		s.byName[name] = secret{c.Value, hostSet(over), hostSet(clear), spellings(c.Value)}
	}
	return s, nil
}

// spellings are how an API may repeat a value: as it is, and escaped for JSON, URLs and HTML.
func spellings(value string) []string {
	quoted, _ := json.Marshal(value) // a string always can
	ascii := strconv.QuoteToASCII(value)
	quotedAll := []string{string(quoted), strconv.Quote(value), ascii, strings.ReplaceAll(ascii, "/", `\/`)}
	all := []string{value, url.QueryEscape(value), url.PathEscape(value), html.EscapeString(value)}
	for _, q := range quotedAll {
		all = append(all, q[1:len(q)-1])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// needles are what is starred out of an answer, and of errors: the secrets that its request may carry, as answers
// spell them. Whatever else were starred would tell its API, or who wrote the call, what they guess of a secret.
type needles []string

func (s *secrets) needles(r *http.Request) (n needles) {
	for name, own := range s.byName {
		if _, err := s.may(name, r); err == nil {
			n = append(n, own.spellings...)
		}
	}
	return n
}

// longest is how many bytes the longest of them has.
func (n needles) longest() (most int) {
	for _, needle := range n {
		most = max(most, len(needle))
	}
	return most
}

// redact stars out every secret in the first keep bytes of a text, though it ends behind them; and the beginning
// of one at the end of a text that broke off there.
func (n needles) redact(text string, keep int, brokeOff bool) string {
	var found [][2]int // from, to
	for _, needle := range n {
		for from := 0; ; from++ {
			i := strings.Index(text[from:], needle)
			if i < 0 {
				break
			}
			from += i
			found = append(found, [2]int{from, from + len(needle)})
		}
		for size := min(len(needle), len(text)); brokeOff && size >= leastSecret; size-- {
			if strings.HasSuffix(text, needle[:size]) {
				found = append(found, [2]int{len(text) - size, len(text)})
				break
			}
		}
	}
	keep = min(keep, len(text))
	if len(found) == 0 {
		return text[:keep]
	}
	slices.SortFunc(found, func(a, b [2]int) int { return a[0] - b[0] })
	var short strings.Builder
	at := 0
	for _, f := range found {
		if f[0] >= keep {
			break
		}
		if f[0] >= at { // else it overlaps what is starred already
			short.WriteString(text[at:f[0]] + hiddenText)
		}
		at = max(at, f[1])
	}
	if at < keep {
		short.WriteString(text[at:keep])
	}
	return short.String()
}

// redacted is err with no secret in its text.
func (n needles) redacted(err error) error {
	if err == nil || len(n) == 0 {
		return err
	}
	text := err.Error()
	if short := n.redact(text, len(text), false); short != text {
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

// secretRef is {"secret": "STRIPE_KEY", "prefix": "Bearer "}, a header's value in call_data.
type secretRef struct{ name, prefix string }

// readSecretRef reads one; false: the value is none.
func readSecretRef(value json.RawMessage) (ref secretRef, ok bool, err error) {
	fields, err := readFields(value)
	if err != nil || fields["secret"] == nil {
		return ref, false, nil
	}
	for name, field := range fields {
		switch name {
		case "secret":
			ref.name, err = readString(field)
		case "prefix":
			ref.prefix, err = readString(field)
		default:
			err = errors.New("no such field; there are secret and prefix")
		}
		if err != nil {
			return ref, true, fmt.Errorf("%s: %w", strconv.Quote(clean(name)), err)
		}
	}
	return ref, true, nil
}

// may says whether the request, with what else it says of its host, may carry the secret called name;
// onlyPrivate: to a private address only, for nothing encrypts it.
func (s *secrets) may(name string, r *http.Request) (onlyPrivate bool, err error) {
	own := s.byName[name]
	for _, h := range hostsOf(r) {
		inClear := h.in(own.clear)
		if !inClear && !h.in(own.hosts) {
			return false, refused(fmt.Errorf("the secret %s may not go to %s: it is not among its hosts in http_task.secrets", name, h))
		}
		onlyPrivate = onlyPrivate || r.URL.Scheme != "https" && !inClear
	}
	return onlyPrivate, nil
}

func hasControl(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) >= 0
}
