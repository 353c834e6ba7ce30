package httptask

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// request is a call's call_data, read: a request that net/http will write as it is.
type request struct {
	request *http.Request // without context and GetBody: net/http has no way to send the body again
	timeout time.Duration // zero: the queue's
	shown   string        // method, scheme, host and path; what may be secret is left out
	private bool          // only to a private address: it carries a secret, and nothing encrypts it
}

// fields is call_data while it is read.
type fields struct {
	method      string
	url         *url.URL
	query       url.Values
	header      http.Header
	secrets     []string // that the header names
	timeout     time.Duration
	bodies      []string // the fields that give a body
	body        string
	contentType string
}

// readRequest reads call_data. Whatever could keep the request from being written is an error here, before there is a
// connection; none of them repeats a value that may be secret. A field that is null counts as absent.
func readRequest(call *Call, s secrets) (*request, error) {
	values, err := readObject(call.Data)
	if err != nil {
		return nil, err
	}
	f := fields{method: http.MethodGet, header: http.Header{}}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if string(values[name]) == "null" {
			continue
		}
		if err := f.read(name, values[name], s); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
	}
	switch {
	case f.url == nil:
		return nil, errors.New(`"url" is missing`)
	case len(f.bodies) > 1:
		return nil, fmt.Errorf("only one of %s may be there", strings.Join(f.bodies, ", "))
	}
	return f.request(call, s)
}

func (f *fields) read(name string, value json.RawMessage, s secrets) (err error) {
	switch name {
	case "method":
		f.method, err = readMethod(value)
	case "url":
		f.url, err = readURL(value)
	case "query":
		f.query, err = readValues(value)
	case "headers":
		err = f.readHeader(value, s)
	case "timeout":
		f.timeout, err = readTimeout(value)
	case "json":
		f.bodies, f.body, f.contentType = append(f.bodies, name), string(value), "application/json"
	case "form":
		var form url.Values
		form, err = readValues(value)
		f.bodies, f.body, f.contentType = append(f.bodies, name), form.Encode(), "application/x-www-form-urlencoded"
	case "body":
		f.body, err = readString(value)
		f.bodies, f.contentType = append(f.bodies, name), "text/plain; charset=utf-8"
	default:
		err = errors.New("no such field; there are method, url, query, headers, json, form, body and timeout")
	}
	return err
}

// request makes the request, and has net/http write its header once, to know that it can.
func (f *fields) request(call *Call, s secrets) (*request, error) {
	u, header := f.url, f.header
	shown := fmt.Sprintf("%s %s://%s%s", f.method, u.Scheme, u.Host, u.EscapedPath())
	if more := f.query.Encode(); u.RawQuery != "" && more != "" {
		u.RawQuery += "&" + more
	} else {
		u.RawQuery += more
	}
	r := &http.Request{Method: f.method, URL: u, Host: u.Host, Header: header}
	result := &request{request: r, timeout: f.timeout, shown: shown}
	for _, name := range f.secrets {
		onlyPrivate, err := s.may(name, u)
		if err != nil {
			return nil, err
		}
		result.private = result.private || onlyPrivate
	}
	if user := u.User; user != nil {
		if password, _ := user.Password(); header["Authorization"] == nil {
			r.SetBasicAuth(user.Username(), password)
		}
		u.User = nil
	}
	if f.contentType != "" {
		setDefault(header, "Content-Type", f.contentType)
	}
	setDefaults(header, call) // readHeader lets nobody else set Callq-…
	if err := tryHeader(r); err != nil {
		return nil, err
	}
	if f.body != "" {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(f.body)), int64(len(f.body))
	}
	return result, nil
}

// setDefaults sets the headers that every request carries, unless the caller did.
func setDefaults(header http.Header, call *Call) {
	setDefault(header, "Idempotency-Key", call.IdempotencyKey)
	setDefault(header, "User-Agent", "callq")
	setDefault(header, "Callq-Call-Id", strconv.FormatInt(call.ID, 10))
	setDefault(header, "Callq-Attempt", strconv.Itoa(call.Attempt))
}

func setDefault(header http.Header, name, value string) {
	if header[name] == nil {
		header.Set(name, value)
	}
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

// isNumber reports whether a host's last label makes it an IPv4 address to some resolvers: 2130706433, 0x7f.1, 127.1.
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

// readHeader reads the headers, and which secrets are among their values.
func (f *fields) readHeader(value json.RawMessage, s secrets) error {
	object, err := readObject(value)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if err := checkName(name); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		for _, element := range elements(object[name]) {
			text, secret, err := readHeaderValue(element, s)
			if err != nil {
				return fmt.Errorf("%q: %w", name, err)
			}
			if secret != "" {
				f.secrets = append(f.secrets, secret)
			}
			f.header.Add(name, text)
		}
	}
	return nil
}

// checkName refuses names that frame the request or belong to the connection, which are net/http's,
// and those that callq sets.
func checkName(name string) error {
	switch canonical := http.CanonicalHeaderKey(name); {
	case frames(name):
		return errFrames
	case canonical == "Callq-Attempt" || canonical == "Callq-Call-Id":
		return errors.New("may not be set: callq sets it")
	case !isToken(name):
		return errors.New("is no header's name")
	}
	return nil
}

var errFrames = errors.New("may not be set: it is about the connection, not the call")

// frames reports whether a header is about the connection.
func frames(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Connection", "Content-Length", "Expect", "Host", "Http2-Settings", "Keep-Alive", "Proxy-Authenticate",
		"Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// readHeaderValue reads a text, or {"secret": NAME, "prefix": TEXT}: then it returns the name, too.
func readHeaderValue(value json.RawMessage, s secrets) (text, name string, err error) {
	object, err := readObject(value)
	if err != nil || object["secret"] == nil {
		if text, err = readString(value); err != nil {
			return "", "", errors.New(`must be a string or {"secret": NAME}, or an array of these`)
		}
	} else {
		for field, value := range object {
			switch field {
			case "secret":
				name, err = readString(value)
			case "prefix":
				text, err = readString(value)
			default:
				err = errors.New("no such field; there are secret and prefix")
			}
			if err != nil {
				return "", "", fmt.Errorf("%q: %w", field, err)
			}
		}
		secret, known := s[name]
		if !known {
			return "", "", refused(fmt.Errorf("%q is not one of this worker's http_task.secrets", name))
		}
		text += secret.value
	}
	if hasControl(text) {
		return "", "", errors.New("has a line break or another control character")
	}
	return text, name, nil
}

// readTimeout reads "30s" or seconds.
func readTimeout(value json.RawMessage) (d time.Duration, err error) {
	var seconds float64
	if text, notText := readString(value); notText == nil {
		d, err = time.ParseDuration(text)
	} else if err = json.Unmarshal(value, &seconds); err == nil {
		const most = 1e9 // 30 years
		d = time.Duration(min(seconds, most) * float64(time.Second))
	}
	switch {
	case err != nil:
		return 0, errors.New(`must be a duration such as "30s" or "1m30s", or a number of seconds`)
	case d <= 0:
		return 0, errors.New("must be above 0")
	}
	return d, nil
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
			text, err := readString(element)
			if err != nil {
				if c := element[0]; c == '{' || c == '[' || c == 'n' {
					return nil, fmt.Errorf("%q: must be a string, a number, a boolean or an array of these", name)
				}
				text = string(element) // a number keeps its digits
			}
			values.Add(name, text)
		}
	}
	return values, nil
}

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

// elements are those of an array, or the value itself.
func elements(value json.RawMessage) []json.RawMessage {
	var list []json.RawMessage
	if err := json.Unmarshal(value, &list); err != nil || value[0] != '[' {
		return []json.RawMessage{value}
	}
	return list
}

// isToken is RFC 9110's token: what methods and header names are made of.
func isToken(text string) bool { return consistsOf(text, "!#$%&'*+-.^_`|~") }

// isHost takes what a URL's host may be, in ASCII.
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
