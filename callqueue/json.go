package callqueue

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

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
	for i := 0; i < len(text); {
		switch b := text[i]; {
		case b == '"':
			n, r := inspectString(text[i:])
			if r == 0 {
				return `holds \u0000, which Postgres cannot store`, false
			}
			if utf16.IsSurrogate(r) {
				return "holds half of a surrogate pair, which Postgres cannot store", false
			}
			escaped = escaped || r == utf8.RuneError
			i += n
		case b == '-' || '0' <= b && b <= '9':
			n := len(text[i:]) - len(bytes.TrimLeft(text[i:], "+-.0123456789eE"))
			if !bounded(text[i : i+n]) {
				return "holds a number that is too large, too small or too long", false
			}
			i += n
		default:
			i++
		}
	}
	return "", escaped
}

// inspectString returns the length of the string that the text starts with, and the worst escape in it: 0 or half of a
// surrogate pair (it stops there), U+FFFD, or else a space.
func inspectString(text []byte) (int, rune) {
	worst := ' '
	for i := 1; ; {
		switch {
		case text[i] == '"':
			return i + 1, worst
		case text[i] != '\\':
			i++
		case text[i+1] != 'u':
			i += 2
		default:
			r := escape(text[i:])
			i += 6
			if utf16.IsSurrogate(r) && text[i] == '\\' && text[i+1] == 'u' {
				if pair := utf16.DecodeRune(r, escape(text[i:])); pair != utf8.RuneError {
					r = pair
					i += 6
				}
			}
			if r == 0 || utf16.IsSurrogate(r) {
				return i, r
			}
			if r == utf8.RuneError {
				worst = r
			}
		}
	}
}

// escape decodes the \uXXXX that the text starts with.
func escape(text []byte) rune {
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return 0 // cannot happen in valid JSON
	}
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
