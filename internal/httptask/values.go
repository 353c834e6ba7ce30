package httptask

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"
)

func readObject(data json.RawMessage) (map[string]json.RawMessage, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil || object == nil {
		return nil, errors.New("must be an object")
	}
	return object, nil
}

func readString(value json.RawMessage) (string, error) {
	var text *string
	if err := json.Unmarshal(value, &text); err != nil || text == nil {
		return "", errors.New("must be a string")
	}
	return *text, nil
}

// readValues reads an object of strings, numbers, booleans or arrays of these.
func readValues(value json.RawMessage) (url.Values, error) {
	object, err := readObject(value)
	if err != nil {
		return nil, err
	}
	values := url.Values{}
	for name, field := range object {
		for _, element := range elements(field) {
			text, err := readScalar(element)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", name, err)
			}
			values.Add(name, text)
		}
	}
	return values, nil
}

// elements are those of an array, or the value itself.
func elements(value json.RawMessage) []json.RawMessage {
	var list []json.RawMessage
	if err := json.Unmarshal(value, &list); err != nil || value[0] != '[' {
		return []json.RawMessage{value}
	}
	return list
}

func readScalar(value json.RawMessage) (string, error) {
	if text, err := readString(value); err == nil {
		return text, nil
	}
	if c := value[0]; c == '{' || c == '[' || c == 'n' {
		return "", errors.New("must be a string, a number, a boolean or an array of these")
	}
	return string(value), nil // a number keeps its digits
}

// readTimeout reads "30s" or seconds.
func readTimeout(value json.RawMessage) (time.Duration, error) {
	var seconds float64
	var d time.Duration
	if text, err := readString(value); err == nil {
		if d, err = time.ParseDuration(text); err != nil {
			return 0, errors.New(`must be a duration such as "30s" or "1m30s", or a number of seconds`)
		}
	} else if err := json.Unmarshal(value, &seconds); err != nil {
		return 0, errors.New(`must be a duration such as "30s", or a number of seconds`)
	} else if d = time.Duration(seconds * float64(time.Second)); seconds > math.MaxInt64/float64(time.Second) {
		d = math.MaxInt64
	}
	if d <= 0 {
		return 0, errors.New("must be above 0")
	}
	return d, nil
}

// isToken is RFC 9110's token: what methods and header names are made of.
func isToken(text string) bool { return consistsOf(text, "!#$%&'*+-.^_`|~") }

// isHost takes what a Host header may be, in ASCII.
func isHost(text string) bool { return consistsOf(text, "-._:[]") }

// consistsOf reports whether a text is letters and digits of ASCII and these others, and not empty.
func consistsOf(text, others string) bool {
	return text != "" && strings.IndexFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune(others, c)
	}) < 0
}

// hasControl reports whether a text has a control character other than a tab.
func hasControl(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) >= 0
}
