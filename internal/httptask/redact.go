package httptask

import (
	"net/http"
	"slices"
	"strings"
)

// needles are what is starred out of an answer, and of errors: the secrets that its request may carry, as answers
// spell them. Whatever else were starred would tell its API, or who wrote the call, what they guess of a secret.
type needles []string

func (s secrets) needles(r *http.Request) (n needles) {
	for name, secret := range s {
		if _, err := s.may(name, r); err == nil {
			n = append(n, secret.spellings...)
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
