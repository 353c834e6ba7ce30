package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// spec is a call of the http task, as call_data says it.
type spec struct {
	method  string
	url     *url.URL
	headers http.Header
	host    string // of the Host header, if given
	body    []byte
	timeout time.Duration // 0: the queue's
}

// specData is the form of call_data.
type specData struct {
	Method  string                     `json:"method"`
	URL     string                     `json:"url"`
	Query   map[string]any             `json:"query"`
	Headers map[string]json.RawMessage `json:"headers"`
	JSON    json.RawMessage            `json:"json"`
	Form    map[string]any             `json:"form"`
	Body    *string                    `json:"body"`
	Timeout any                        `json:"timeout"`
}

// readSpec reads call_data. What is wrong with it is permanent: it would be wrong again.
func readSpec(data []byte) (*spec, error) {
	s, err := parseSpec(data)
	if err != nil {
		return nil, Permanent(fmt.Errorf("call_data: %w", err))
	}
	return s, nil
}

func parseSpec(data []byte) (*spec, error) {
	var d specData
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	decoder.UseNumber()
	if err := decoder.Decode(&d); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	s := &spec{method: strings.ToUpper(d.Method), headers: http.Header{}}
	if s.method == "" {
		s.method = http.MethodGet
	}
	if !isToken(s.method) || s.method == http.MethodConnect {
		return nil, fmt.Errorf("method %q cannot be sent", d.Method)
	}
	for _, part := range []func(*specData) error{s.setURL, s.setHeaders, s.setBody, s.setTimeout} {
		if err := part(&d); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *spec) setURL(d *specData) error {
	if d.URL == "" {
		return errors.New("url is missing")
	}
	u, err := url.Parse(d.URL)
	var parse *url.Error
	switch {
	case errors.As(err, &parse):
		return fmt.Errorf("url cannot be read: %w", parse.Err)
	case err != nil:
		return errors.New("url cannot be read")
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("url has the scheme %q; it may be http or https", u.Scheme)
	case u.Hostname() == "":
		return errors.New("url has no host")
	}
	query, err := values(d.Query)
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	if len(query) > 0 {
		u.RawQuery = strings.TrimPrefix(u.RawQuery+"&"+query.Encode(), "&")
	}
	u.Fragment, u.RawFragment = "", ""
	s.url = u
	return nil
}

// port is the URL's, or its scheme's.
func (s *spec) port() string {
	if port := s.url.Port(); port != "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443"}[s.url.Scheme]
}

// framing are the headers that say how a request is cut: net/http's to set.
func framing() []string {
	return []string{
		"Connection", "Content-Length", "Expect", "Keep-Alive", "Proxy-Connection", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Callq-Call-Id", "Callq-Attempt",
	}
}

func (s *spec) setHeaders(d *specData) error {
	for name, raw := range d.Headers {
		if !isToken(name) {
			return fmt.Errorf("header name %q cannot be sent", name)
		}
		name = http.CanonicalHeaderKey(name)
		if slices.Contains(framing(), name) {
			return fmt.Errorf("header %s cannot be set: it is callq's", name)
		}
		list, err := headerValues(raw)
		if err != nil {
			return fmt.Errorf("header %s: %w", name, err)
		}
		for _, value := range list {
			if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
				return fmt.Errorf("header %s: its value has control characters", name)
			}
		}
		if name == "Host" {
			s.host = list[0]
			continue
		}
		s.headers[name] = append(s.headers[name], list...)
	}
	return nil
}

func headerValues(raw json.RawMessage) ([]string, error) {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}, nil
	}
	var many []string
	if json.Unmarshal(raw, &many) == nil && len(many) > 0 {
		return many, nil
	}
	var secret struct {
		Secret string `json:"secret"`
	}
	if json.Unmarshal(raw, &secret) == nil && secret.Secret != "" {
		return nil, errors.New("secrets are not available in this version")
	}
	return nil, errors.New("its value must be a string or a list of strings")
}

func (s *spec) setBody(d *specData) error {
	var given []string
	if len(d.JSON) > 0 && string(d.JSON) != "null" {
		given = append(given, "json")
		s.body = d.JSON
		s.defaultType("application/json")
	}
	if d.Form != nil {
		given = append(given, "form")
		form, err := values(d.Form)
		if err != nil {
			return fmt.Errorf("form: %w", err)
		}
		s.body = []byte(form.Encode())
		s.defaultType("application/x-www-form-urlencoded")
	}
	if d.Body != nil {
		given = append(given, "body")
		s.body = []byte(*d.Body)
		s.defaultType("text/plain; charset=utf-8")
	}
	if len(given) > 1 {
		return fmt.Errorf("%s are given; a request has one body", strings.Join(given, " and "))
	}
	return nil
}

func (s *spec) defaultType(contentType string) {
	if s.headers.Get("Content-Type") == "" {
		s.headers.Set("Content-Type", contentType)
	}
}

func (s *spec) setTimeout(d *specData) error {
	switch t := d.Timeout.(type) {
	case nil:
		return nil
	case string:
		timeout, err := time.ParseDuration(t)
		if err != nil || timeout <= 0 {
			return fmt.Errorf("timeout %q is not a duration such as \"30s\"", t)
		}
		s.timeout = timeout
	case json.Number:
		seconds, err := t.Float64()
		if err != nil || seconds <= 0 || seconds > 1e6 {
			return fmt.Errorf("timeout %s is not a number of seconds", t)
		}
		s.timeout = time.Duration(seconds * float64(time.Second))
	default:
		return errors.New("timeout must be a duration such as \"30s\", or a number of seconds")
	}
	return nil
}

// values reads an object of strings, numbers and booleans, or lists of them.
func values(object map[string]any) (url.Values, error) {
	v := url.Values{}
	for name, value := range object {
		list, ok := value.([]any)
		if !ok {
			list = []any{value}
		}
		for _, one := range list {
			switch one := one.(type) {
			case string:
				v.Add(name, one)
			case json.Number:
				v.Add(name, one.String())
			case bool:
				v.Add(name, strconv.FormatBool(one))
			default:
				return nil, fmt.Errorf("%q must be a string, a number, a boolean or a list of them", name)
			}
		}
	}
	return v, nil
}

// isToken says whether a word can be a method or a header's name (RFC 9110, 5.6.2).
func isToken(word string) bool {
	return word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		letter := r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// request makes the request. Its body cannot be had again, so that net/http cannot send it twice.
func (s *spec) request(ctx context.Context, call *Call) (*http.Request, error) {
	var body io.Reader
	if s.body != nil {
		body = bytes.NewReader(s.body)
	}
	r, err := http.NewRequestWithContext(ctx, s.method, s.url.String(), body)
	if err != nil {
		return nil, Permanent(fmt.Errorf("call_data: %w", err))
	}
	r.GetBody = nil
	r.Header = s.headers.Clone()
	if s.host != "" {
		r.Host = s.host
	}
	id := strconv.FormatInt(call.ID, 10)
	r.Header.Set("Callq-Call-Id", id)
	r.Header.Set("Callq-Attempt", strconv.Itoa(call.Attempt))
	for name, value := range map[string]string{"Idempotency-Key": "callq-" + id, "User-Agent": "callq"} {
		if r.Header.Get(name) == "" {
			r.Header.Set(name, value)
		}
	}
	return r, nil
}

// String names the call without what may be secret in its URL.
func (s *spec) String() string {
	return s.method + " " + (&url.URL{Scheme: s.url.Scheme, Host: s.url.Host, Path: s.url.Path}).String()
}

// failed names the call in an error, and keeps the error's kind.
func (s *spec) failed(err error) error {
	return fmt.Errorf("%s: %w", s, err)
}
