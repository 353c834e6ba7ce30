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
	body        []byte
	contentType string
}

// readRequest reads call_data. Whatever could keep the request from being written is an error
// here, before there is a connection; none of them repeats a value that may be secret. A field that
// is null counts as absent.
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
		f.header, f.secrets, err = readHeader(value, s)
	case "timeout":
		f.timeout, err = readTimeout(value)
	case "json":
		f.setBody(name, string(value), "application/json")
	case "form":
		var form url.Values
		form, err = readValues(value)
		f.setBody(name, form.Encode(), "application/x-www-form-urlencoded")
	case "body":
		var text string
		text, err = readString(value)
		f.setBody(name, text, "text/plain; charset=utf-8")
	default:
		err = errors.New("no such field; there are method, url, query, headers, json, form, body and timeout")
	}
	return err
}

func (f *fields) setBody(field, body, contentType string) {
	f.bodies, f.body, f.contentType = append(f.bodies, field), []byte(body), contentType
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
	if host := header["Host"]; host != nil {
		r.Host = host[0]
		header.Del("Host")
	}
	result := &request{request: r, timeout: f.timeout, shown: shown}
	for _, name := range f.secrets {
		onlyPrivate, err := s.may(name, r)
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
	if len(f.body) > 0 {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(f.body)), int64(len(f.body))
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

// isNumber reports whether a host's last label makes it an IPv4 address to some resolvers: 2130706433,
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
