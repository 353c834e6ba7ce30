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
	request *http.Request // without context
	timeout time.Duration // zero: the queue's
	shown   string        // method, scheme, host and path; what may be secret is left out
	private bool          // only to a private address: it carries a secret, and nothing encrypts it
}

// callData is call_data as it is written. A field that is null counts as absent.
type callData struct {
	Method  string                     `json:"method"`
	URL     string                     `json:"url"`
	Query   values                     `json:"query"`
	Headers map[string]json.RawMessage `json:"headers"`
	JSON    *json.RawMessage           `json:"json"`
	Form    values                     `json:"form"`
	Body    *string                    `json:"body"`
	Timeout timeout                    `json:"timeout"`
}

// readRequest reads call_data. Whatever could keep the request from being written is an error here, before there is a
// connection; none of them repeats a value that may be secret.
func readRequest(call *Call, s secrets) (*request, error) {
	d := callData{Method: http.MethodGet}
	if err := readStrictly(call.Data, &d); err != nil {
		return nil, err
	}
	method := strings.ToUpper(d.Method)
	if !isToken(method) || method == http.MethodConnect {
		return nil, errors.New(`"method": is no HTTP method, or CONNECT, which is not possible`)
	}
	u, err := readURL(d.URL)
	if err != nil {
		return nil, fmt.Errorf(`"url": %w`, err)
	}
	shown := fmt.Sprintf("%s %s://%s%s", method, u.Scheme, u.Host, u.EscapedPath())
	if more := url.Values(d.Query).Encode(); u.RawQuery == "" {
		u.RawQuery = more
	} else if more != "" {
		u.RawQuery += "&" + more
	}
	header, onlyPrivate, err := d.header(u, s)
	if err != nil {
		return nil, fmt.Errorf(`"headers": %w`, err)
	}
	body, contentType, err := d.content()
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		setDefault(header, "Content-Type", contentType)
	}
	r := &http.Request{Method: method, URL: u, Host: u.Host, Header: header}
	if user := u.User; user != nil {
		if password, _ := user.Password(); header["Authorization"] == nil {
			r.SetBasicAuth(user.Username(), password)
		}
		u.User = nil
	}
	setDefaults(header, call) // checkName lets no other set Callq-…
	if err := tryHeader(r); err != nil {
		return nil, err
	}
	if body != "" {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil }
		r.Body, _ = r.GetBody()
		r.ContentLength = int64(len(body))
	}
	return &request{request: r, timeout: time.Duration(d.Timeout), shown: shown, private: onlyPrivate}, nil
}

// content is the request's body, and the type that it has unless the header says otherwise.
func (d *callData) content() (body, contentType string, err error) {
	given := 0
	if d.JSON != nil {
		given++
		body, contentType = string(*d.JSON), "application/json"
	}
	if d.Form != nil {
		given++
		body, contentType = url.Values(d.Form).Encode(), "application/x-www-form-urlencoded"
	}
	if d.Body != nil {
		given++
		body, contentType = *d.Body, "text/plain; charset=utf-8"
	}
	if given > 1 {
		err = errors.New("only one of json, form and body may be there")
	}
	return body, contentType, err
}

// header is the request's. onlyPrivate: it carries a secret that may go to private addresses alone.
func (d *callData) header(u *url.URL, s secrets) (header http.Header, onlyPrivate bool, err error) {
	header = http.Header{}
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		if err := checkName(name); err != nil {
			return nil, false, fmt.Errorf("%q: %w", name, err)
		}
		for _, element := range elements(d.Headers[name]) {
			text, private, err := readHeaderValue(element, u, s)
			if err != nil {
				return nil, false, fmt.Errorf("%q: %w", name, err)
			}
			header.Add(name, text)
			onlyPrivate = onlyPrivate || private
		}
	}
	return header, onlyPrivate, nil
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

func readURL(text string) (*url.URL, error) {
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

// readHeaderValue reads a text, or {"secret": NAME, "prefix": TEXT} for a request to u. onlyPrivate is as for header.
func readHeaderValue(value json.RawMessage, u *url.URL, s secrets) (text string, onlyPrivate bool, err error) {
	switch value[0] {
	case '"':
		err = json.Unmarshal(value, &text)
	case '{':
		var named struct {
			Secret string `json:"secret"`
			Prefix string `json:"prefix"`
		}
		if err = readStrictly(value, &named); err == nil {
			text = named.Prefix + s[named.Secret].value
			onlyPrivate, err = s.may(named.Secret, u)
		}
	default:
		err = errors.New(`must be a string or {"secret": NAME}, or an array of these`)
	}
	if err == nil && hasControl(text) {
		err = errors.New("has a line break or another control character")
	}
	return text, onlyPrivate, err
}

// timeout is written "30s", or as seconds.
type timeout time.Duration

func (t *timeout) UnmarshalJSON(data []byte) (err error) {
	var text string
	var seconds float64
	var d time.Duration
	switch {
	case string(data) == "null":
		return nil
	case json.Unmarshal(data, &text) == nil:
		d, err = time.ParseDuration(text)
	default:
		err = json.Unmarshal(data, &seconds)
		d = time.Duration(min(seconds, 1e9) * float64(time.Second)) // 30 years at most
	}
	if err != nil || d <= 0 {
		return errors.New(`"timeout": must be a duration above 0, such as "30s" or "1m30s", or a number of seconds`)
	}
	*t = timeout(d)
	return nil
}

// values are written as an object of strings, numbers, booleans or arrays of these.
type values url.Values

func (v *values) UnmarshalJSON(data []byte) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil || object == nil {
		return err
	}
	*v = values{}
	for name, field := range object {
		for _, element := range elements(field) {
			text := string(element) // a number keeps its digits
			switch element[0] {
			case '{', '[', 'n':
				return fmt.Errorf("%q: must be a string, a number, a boolean or an array of these", name)
			case '"':
				_ = json.Unmarshal(element, &text) // it is valid: the whole was read
			}
			(*v)[name] = append((*v)[name], text)
		}
	}
	return nil
}

// readStrictly reads an object that has no other fields.
func readStrictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	switch wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); {
	case ok && wrong.Field == "":
		return errors.New("must be an object, and no " + wrong.Value)
	case ok:
		return fmt.Errorf("%q: cannot be of the type %s", wrong.Field, wrong.Value)
	}
	return err
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
