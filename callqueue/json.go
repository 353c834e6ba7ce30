package callqueue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

const emptyData = "{}"

// encode returns the data as JSON that jsonb stores.
func (c *Client) encode(data any) (string, error) {
	var text []byte
	var marshalled bool
	switch d := data.(type) {
	case nil:
	case json.RawMessage:
		text = d
	case []byte:
		text = d
	default:
		marshalled = true
		var err error
		if text, err = json.Marshal(data); err != nil {
			return "", err
		}
	}
	if text == nil {
		return emptyData, nil
	}
	if len(text) > c.maxData {
		return "", fmt.Errorf("%w: %d bytes, of at most %d", ErrTooLarge, len(text), c.maxData)
	}
	flaw, replaced := inspect(text)
	switch {
	case flaw != "":
		return "", errors.New(flaw)
	case marshalled && replaced:
		// json.Marshal writes this escape for bytes that are not UTF-8, and U+FFFD itself as it is.
		return "", errors.New(`is not valid UTF-8 (json.Marshal wrote \ufffd)`)
	}
	return string(text), nil
}

// jsonb's numbers have up to 131,072 digits before the point and 16,383 after it. These bounds are well within, and keep
// a short number from becoming a very long one.
const (
	maxNumberBytes    = 15_000
	maxNumberExponent = 1_000
)

// inspect returns why jsonb would not store the text, or "" if it would. Beyond JSON's grammar, jsonb refuses U+0000,
// lone surrogates and numbers that are too large. escaped reports whether the text has the escape \ufffd.
func inspect(text []byte) (flaw string, escaped bool) {
	if !utf8.Valid(text) {
		return "is not valid UTF-8", false
	}
	if !json.Valid(text) {
		return "is not valid JSON", false
	}
	// Valid from here on: a backslash is in a string, and a digit outside one is in a number.
	inString := false
	for i := 0; i < len(text); i++ {
		switch b := text[i]; {
		case b == '"':
			inString = !inString
		case b == '\\' && text[i+1] != 'u':
			i++
		case b == '\\':
			r := escape(text[i:])
			i += 5
			if utf16.IsSurrogate(r) && bytes.HasPrefix(text[i+1:], []byte(`\u`)) {
				if pair := utf16.DecodeRune(r, escape(text[i+1:])); pair != utf8.RuneError {
					r = pair
					i += 6
				}
			}
			switch {
			case r == 0:
				return `holds \u0000, which Postgres cannot store`, false
			case utf16.IsSurrogate(r):
				return "holds half of a surrogate pair, which Postgres cannot store", false
			}
			escaped = escaped || r == utf8.RuneError
		case !inString && (b == '-' || '0' <= b && b <= '9'):
			n := len(text[i:]) - len(bytes.TrimLeft(text[i:], "+-.0123456789eE"))
			if !bounded(text[i : i+n]) {
				return "holds a number that is too large, too small or too long", false
			}
			i += n - 1
		}
	}
	return "", escaped
}

// escape decodes the \uXXXX that the text, which is valid JSON, starts with.
func escape(text []byte) rune {
	n, _ := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(n)
}

func bounded(number []byte) bool {
	if len(number) > maxNumberBytes {
		return false
	}
	e := bytes.IndexAny(number, "eE")
	if e < 0 {
		return true
	}
	exponent, err := strconv.Atoi(string(number[e+1:]))
	return err == nil && -maxNumberExponent <= exponent && exponent <= maxNumberExponent
}
