package tasks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// httpCall is the call_data of the task http, read: a request that net/http will write as it is.
type httpCall struct {
	request *http.Request // without context and GetBody: net/http has no way to send the body again
	timeout time.Duration // zero: the queue's
	shown   string        // method, scheme, host and path; what may be secret is left out
	private bool          // only to a private address: it carries a secret, and nothing encrypts it
}

// userAgent is sent unless the call has one of its own.
const userAgent = "callq"

// readHTTPCall reads call_data. Whatever could keep the request from being written is an error
// here, before there is a connection; none of them repeats a value that may be secret. A field that
// is null counts as absent.
func readHTTPCall(call *Call, s *secrets) (*httpCall, error) {
	fields, err := readFields(call.Data)
	if err != nil {
		return nil, err
	}
	c := &httpCall{}
	var method string
	var target *url.URL
	var query url.Values
	var body []byte
	var bodies []string
	header, contentType := http.Header{}, ""
	var used []string // secrets
	for _, name := range sortedKeys(fields) {
		value := fields[name]
		if string(value) == "null" {
			continue
		}
		switch name {
		case "method":
			method, err = readMethod(value)
		case "url":
			target, err = readURL(value)
		case "query":
			query, err = readValues(value)
		case "headers":
			header, used, err = readHeader(value, s)
		case "timeout":
			c.timeout, err = readTimeout(value)
		case "json":
			bodies, body, contentType = append(bodies, name), value, "application/json"
		case "form":
			var form url.Values
			form, err = readValues(value)
			bodies, body, contentType = append(bodies, name), []byte(form.Encode()), "application/x-www-form-urlencoded"
		case "body":
			var text string
			text, err = readString(value)
			bodies, body, contentType = append(bodies, name), []byte(text), "text/plain; charset=utf-8"
		default:
			err = errors.New("no such field; there are method, url, query, headers, json, form, body and timeout")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strconv.Quote(clean(name)), err)
		}
	}
	switch {
	case target == nil:
		return nil, errors.New(`"url" is missing`)
	case len(bodies) > 1:
		return nil, fmt.Errorf("only one of %s may be there", strings.Join(bodies, ", "))
	}
	if method == "" {
		method = http.MethodGet
	}
	c.shown = fmt.Sprintf("%s %s://%s%s", method, target.Scheme, target.Host, target.EscapedPath())
	c.request = &http.Request{Method: method, URL: withQuery(target, query), Host: target.Host, Header: header}
	if host := header["Host"]; host != nil {
		c.request.Host = host[0]
		header.Del("Host")
	}
	for _, name := range used {
		onlyPrivate, err := s.may(name, c.request)
		if err != nil {
			return nil, err
		}
		c.private = c.private || onlyPrivate
	}
	return c, c.build(call, body, contentType)
}

// build completes the request and has net/http write its header once, to know that it can.
func (c *httpCall) build(call *Call, body []byte, contentType string) error {
	r := c.request
	header, target := r.Header, r.URL
	if user := target.User; user != nil {
		if password, _ := user.Password(); header["Authorization"] == nil {
			r.SetBasicAuth(user.Username(), password)
		}
		target.User = nil
	}
	if contentType != "" {
		setDefault(header, "Content-Type", contentType)
	}
	setOwn(header, call) // readHeader lets nobody else set Callq-…
	if err := tryHeader(r); err != nil {
		return err
	}
	if len(body) > 0 {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	return nil
}

// setOwn sets what each request carries, unless the caller did.
func setOwn(header http.Header, call *Call) {
	setDefault(header, "Idempotency-Key", call.IdempotencyKey)
	setDefault(header, "User-Agent", userAgent)
	setDefault(header, "Callq-Call-Id", strconv.FormatInt(call.ID, 10))
	setDefault(header, "Callq-Attempt", strconv.Itoa(call.Attempt))
}

// tryHeader has net/http write the header of a request without a body, to know that it can, in one piece.
func tryHeader(r *http.Request) error {
	var head bytes.Buffer
	if err := r.Write(&head); err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	if n := head.Len() + len("Content-Length: \r\n") + 20; n > maxHeader {
		return fmt.Errorf("the request's header, with the URL, has %d bytes; %d are allowed", n, maxHeader)
	}
	return nil
}

func setDefault(header http.Header, name, value string) {
	if header[name] == nil {
		header.Set(name, value)
	}
}

func readFields(data json.RawMessage) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields == nil {
		return nil, errors.New("must be an object")
	}
	return fields, nil
}

func readString(value json.RawMessage) (string, error) {
	var text *string
	if err := json.Unmarshal(value, &text); err != nil || text == nil {
		return "", errors.New("must be a string")
	}
	return *text, nil
}

func readMethod(value json.RawMessage) (string, error) {
	method, err := readString(value)
	switch {
	case err != nil:
		return "", err
	case !isToken(method):
		return "", errors.New("is no HTTP method")
	case strings.EqualFold(method, http.MethodConnect):
		return "", errors.New("CONNECT is not possible")
	}
	return strings.ToUpper(method), nil
}

func readURL(value json.RawMessage) (*url.URL, error) {
	text, err := readString(value)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(escaped(text))
	if err != nil {
		if parseErr, ok := errors.AsType[*url.Error](err); ok {
			err = parseErr.Err // the whole would repeat the URL
		}
		return nil, err
	}
	u.Host = strings.ToLower(u.Host)
	switch host := u.Hostname(); {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must begin with http:// or https://")
	case host == "" || u.Opaque != "":
		return nil, errors.New("has no host")
	case !isHost(u.Host):
		return nil, errors.New("the host may have letters, digits, dots and hyphens only (xn--… for others)")
	case isNumber(host[strings.LastIndexByte(strings.TrimSuffix(host, "."), '.')+1:]):
		if _, err := netip.ParseAddr(host); err != nil {
			return nil, fmt.Errorf("%q is neither a name nor an address in its usual form", host)
		}
	}
	if port := u.Port(); port != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, errors.New("the port must be 1..65535")
		}
	}
	return u, nil
}

// isNumber says that a host's last label makes it an IPv4 address to some resolvers: 2130706433,
// 0x7f.1, 127.1.
func isNumber(label string) bool {
	label = strings.TrimSuffix(label, ".")
	_, err := strconv.ParseUint(label, 0, 64)
	return err == nil || label != "" && strings.Trim(label, "0123456789") == ""
}

// escaped escapes what no URL has as it is. net/http would send it raw in a query, and for its sake
// undo all escapes of a path.
func escaped(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c >= 0x80 || strings.IndexByte(" \"<>\\^`{|}", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func withQuery(u *url.URL, query url.Values) *url.URL {
	if more := query.Encode(); u.RawQuery != "" && more != "" {
		u.RawQuery += "&" + more
	} else {
		u.RawQuery += more
	}
	return u
}

// readValues reads an object of strings, numbers, booleans or arrays of these.
func readValues(value json.RawMessage) (url.Values, error) {
	fields, err := readFields(value)
	if err != nil {
		return nil, err
	}
	values := url.Values{}
	for name, field := range fields {
		for _, element := range elements(field) {
			text, err := readScalar(element)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", clean(name), err)
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
func isToken(text string) bool {
	return text != "" && strings.IndexFunc(text, func(c rune) bool {
		return !isAlphanumeric(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	}) < 0
}

// isHost takes what a Host header may be, in ASCII.
func isHost(text string) bool {
	return text != "" && strings.IndexFunc(text, func(c rune) bool {
		return !isAlphanumeric(c) && !strings.ContainsRune("-._:[]", c)
	}) < 0
}

func isAlphanumeric(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func sortedKeys(fields map[string]json.RawMessage) []string {
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
