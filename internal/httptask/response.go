package httptask

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/callq/callq/internal/outcome"
	"golang.org/x/text/encoding/htmlindex"
	"golang.org/x/text/encoding/unicode"
)

const (
	maxBody = 64 << 10 // of an answer, kept in result at most
)

// answer is what the ledger keeps in result.
type answer struct {
	Status       int            `json:"status"`
	Headers      map[string]any `json:"headers"`                 // a string, or a list where a header came more than once
	Body         string         `json:"body"`                    // text, or as Encoding says
	Encoding     string         `json:"encoding,omitempty"`      // base64, where the body is no text
	Truncated    bool           `json:"truncated"`               // it is longer than what is kept
	Cut          bool           `json:"cut,omitempty"`           // it ended early: fewer bytes than announced, broken, or not in time
	CutReason    string         `json:"cut_reason,omitempty"`    // why
	HeadersError string         `json:"headers_error,omitempty"` // why they could not be read; the body is cut, too
}

// readResponse reads an answer with so many bytes of its body at most, without the secrets that it repeats.
func readResponse(r *http.Response, secrets needles, maxBytes int) answer {
	a := answer{Status: r.StatusCode, Headers: make(map[string]any, len(r.Header))}
	for name, values := range r.Header {
		list := make([]string, len(values))
		for i, value := range values {
			list[i] = readable(secrets.redact(value, false), maxBody)
		}
		if a.Headers[name] = list; len(list) == 1 {
			a.Headers[name] = list[0]
		}
	}
	packed := strings.ToLower(r.Header.Get("Content-Encoding"))
	if secrets.longest > 0 && packed != "" && packed != "identity" && packed != "gzip" {
		a.Truncated = true // a secret in it would not be found
		return a
	}
	most := maxBytes + max(1, secrets.longest)
	limit := most
	if packed == "gzip" {
		limit = max(limit, maxBody)
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, int64(limit)))
	long := len(data) == limit
	if a.Cut = err != nil; a.Cut {
		a.CutReason = readable(secrets.redact(err.Error(), false), 200)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) && r.ContentLength > 0 {
		a.CutReason = fmt.Sprintf("it ended after %d of %d bytes", len(data), r.ContentLength)
	}
	if headers, ok := errors.AsType[*headersError](err); ok {
		a.HeadersError = readable(secrets.redact(headers.Error(), false), maxBody)
	}
	if packed == "gzip" {
		unpacked, fits := gunzip(data, most)
		if unpacked == nil && secrets.longest > 0 {
			a.Truncated = true
			return a
		}
		if unpacked != nil {
			data, long = unpacked, long || !fits
		}
	}
	text := secrets.redact(string(data), long || a.Cut)
	if decoded, ok := decode(r.Header.Get("Content-Type"), text); ok {
		text = secrets.redact(decoded, long || a.Cut)
	}
	a.keep(text, maxBytes, long || a.Cut)
	a.Truncated = a.Truncated || long
	return a
}

// cut marks the answer's body as not whole, and why.
func (a *answer) cut() string {
	if reason, short := strings.CutPrefix(a.CutReason, "it ended "); short {
		return "the answer's body ended " + reason
	}
	return cmp.Or(a.HeadersError, "the answer's body was cut short: "+a.CutReason)
}

// keep keeps at most so many bytes of a body, which may end within a character. What is no text, or what jsonb does not take as one,
// is kept as base64: nothing of it is lost.
func (a *answer) keep(text string, maxBytes int, cut bool) {
	if len(text) > maxBytes {
		text, cut, a.Truncated = text[:maxBytes], true, true
	}
	whole := text
	for i := len(text) - 1; cut && i >= max(0, len(text)-utf8.UTFMax+1); i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRuneInString(text[i:]) {
				whole = text[:i]
			}
			break
		}
	}
	if utf8.ValidString(whole) && !strings.Contains(whole, "\x00") {
		a.Body = whole
		return
	}
	if most := maxBytes / 4 * 3; len(text) > most {
		text, a.Truncated = text[:most], true
	}
	a.Body, a.Encoding = base64.StdEncoding.EncodeToString([]byte(text)), "base64"
}

// gunzip unpacks the beginning of a body, at most so many bytes; fits: there are no more. Nil: it is not gzip.
func gunzip(data []byte, most int) (unpacked []byte, fits bool) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, false
	}
	unpacked, err = io.ReadAll(io.LimitReader(r, int64(most)))
	if err != nil && len(unpacked) == 0 {
		return nil, false
	}
	return unpacked, err == nil && len(unpacked) < most
}

// decode makes UTF-8 of a text whose Content-Type names another character set.
func decode(contentType, text string) (decoded string, ok bool) {
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil || params["charset"] == "" {
		return "", false
	}
	set, err := htmlindex.Get(params["charset"])
	if err != nil || set == unicode.UTF8 {
		return "", false
	}
	decoded, err = set.NewDecoder().String(text)
	return decoded, err == nil
}

// readable makes text fit for jsonb: valid UTF-8 without NUL, at most so many bytes.
func readable(text string, maxBytes int) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "�"), "�")
	if len(text) <= maxBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxBytes], "") // without the character that was cut
}

// Answer is what came back of a request.
type Answer struct {
	Status int
	Header http.Header
	At     time.Time // when it was read
	what   string    // the request, as errors show it
}

// Verdict is how a call ends by its answer: 2xx is done. What a refusal says is no failure. 408, 425 and 5xx are tried again; others,
// redirects too, are permanent. r is what the answer says of limits; nil: nothing.
func (a *Answer) Verdict(r *Refusal) error {
	if a.Status >= 200 && a.Status <= 299 {
		return nil
	}
	err := errors.New(strings.TrimSpace(fmt.Sprintf("%s: %d %s", a.what, a.Status, http.StatusText(a.Status))))
	switch {
	case r != nil && !r.Unsure:
		return outcome.Refused(r.After, err)
	case a.Status == http.StatusRequestTimeout, a.Status == http.StatusTooEarly, a.Status == http.StatusTooManyRequests,
		a.Status >= 500 && a.Status <= 599:
		return err
	}
	return outcome.Permanent(err)
}

// statusBytes is how much of an answer tells its status: "HTTP/1.1 200 ". It is enough to know HTTP/2 by, too.
const statusBytes = 16

// statusOf reads the status line that an answer begins with. 0: it does not, or announces another answer (1xx).
func statusOf(first []byte) int {
	const begin = "HTTP/1.x NNN"
	if len(first) <= len(begin) || string(first[:7]) != begin[:7] || first[7] != '0' && first[7] != '1' || first[8] != ' ' ||
		!strings.ContainsRune(" \r\n", rune(first[len(begin)])) {
		return 0
	}
	status, err := strconv.ParseUint(string(first[9:12]), 10, 16)
	if err != nil || status < 200 {
		return 0
	}
	return int(status)
}

// isHTTP2 knows HTTP/2 by the frame that its servers begin with: SETTINGS, of stream 0 (RFC 9113).
func isHTTP2(first []byte) bool {
	return len(first) >= 9 && first[0] == 0 && first[1] == 0 && first[2]%6 == 0 && string(first[3:9]) == "\x04\x00\x00\x00\x00\x00"
}
