package tasks

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net"
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
	byName  map[string]secret
	needles []string // the values, as they are and as answers escape them
	hide    *strings.Replacer
}

type secret struct {
	value string
	hosts map[string]bool // over https
	clear map[string]bool // over http too
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
		s.byName[name] = secret{c.Value, hostSet(over), hostSet(clear)}
		s.needles = append(s.needles, spellings(c.Value)...)
	}
	// At one place the longest first, so that no tail of one is left.
	slices.SortFunc(s.needles, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, needle := range s.needles {
		pairs = append(pairs, needle, hiddenText)
	}
	s.hide = strings.NewReplacer(pairs...)
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

// redact stars out every secret in a text, and the beginning of one at its end, where it may have been
// cut off.
func (s *secrets) redact(text string) string {
	if len(s.needles) == 0 {
		return text
	}
	last := 0 // bytes at the end that are a secret, or the beginning of one
	for _, needle := range s.needles {
		for n := min(len(needle), len(text)); n >= max(leastSecret, last+1); n-- {
			if strings.HasSuffix(text, needle[:n]) {
				last = n
				break
			}
		}
	}
	if last > 0 {
		return s.hide.Replace(text[:len(text)-last]) + hiddenText
	}
	return s.hide.Replace(text)
}

// redacted is err with no secret in its text.
func (s *secrets) redacted(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if short := s.redact(text); short != text {
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
	hosts := [][2]string{{r.URL.Hostname(), portOf(r.URL)}}
	// What shares an address with many names goes by the header: it must be the secret's host too.
	if r.Host != r.URL.Host {
		host, port, err := net.SplitHostPort(r.Host)
		if err != nil {
			host, port = strings.Trim(r.Host, "[]"), portOf(r.URL)
		}
		hosts = append(hosts, [2]string{host, port})
	}
	for _, h := range hosts {
		inClear := inSet(own.clear, h[0], h[1])
		if !inClear && !inSet(own.hosts, h[0], h[1]) {
			return false, refused(fmt.Errorf("the secret %s may not go to %s: it is not among its hosts in http_task.secrets",
				name, net.JoinHostPort(h[0], h[1])))
		}
		onlyPrivate = onlyPrivate || r.URL.Scheme != "https" && !inClear
	}
	return onlyPrivate, nil
}

func hasControl(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) >= 0
}
