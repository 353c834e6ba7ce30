package httptask

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestBustedCallData(t *testing.T) {
	t.Parallel()
	h := newTestTask(t, Config{})
	for _, c := range []struct{ data, want string }{
		{`null`, `"url": must begin with http`},
		{`[]`, "call_data: must be an object, and no array"},
		{`"http://x"`, "call_data: must be an object, and no string"},
		{`{`, "unexpected EOF"},
		{`{}`, `"url": must begin with http`},
		{`{"url":null}`, `"url": must begin with http`},
		{`{"url":"http://x","nope":1}`, `unknown field "nope"`},
		{`{"url":7}`, `"url": cannot be of the type number`},
		{`{"url":""}`, "must begin with http"},
		{`{"url":"x/y"}`, "must begin with http"},
		{`{"url":"//x/y"}`, "must begin with http"},
		{`{"url":"ftp://x"}`, "must begin with http"},
		{`{"url":"file:///etc/passwd"}`, "must begin with http"},
		{`{"url":"http:x"}`, "no host"},
		{`{"url":"http://"}`, "no host"},
		{`{"url":"http://:80"}`, "no host"},
		{`{"url":"http://hidden@/"}`, "no host"},
		{`{"url":"http://a b"}`, "escape"},
		{`{"url":"http://x\r\nA: b"}`, "control character"},
		{`{"url":"http://x/\u0000"}`, "control character"},
		{`{"url":"http://x/%zz?hidden"}`, "escape"},
		{`{"url":"http://bücher.example"}`, "xn--"},
		{`{"url":"http://a_b.example:"}`, "port"},
		{`{"url":"http://x:0"}`, "port"},
		{`{"url":"http://x:65536"}`, "port"},
		{`{"url":"http://x:hidden"}`, "port"},
		{`{"url":"http://[::1"}`, "]"},
		{`{"url":"http://0x7f.0.0.1"}`, "usual form"},
		{`{"url":"http://1.2.3.4.5"}`, "usual form"},
		{`{"url":"http://99999999999999999999999"}`, "usual form"},
		{`{"url":"http://x","method":""}`, "HTTP method"},
		{`{"url":"http://x","method":"G T"}`, "HTTP method"},
		{`{"url":"http://x","method":"GET\r\n"}`, "HTTP method"},
		{`{"url":"http://x","method":"connect"}`, "CONNECT"},
		{`{"url":"http://x","method":["GET"]}`, `"method": cannot be of the type array`},
		{`{"url":"http://x","query":"a=1"}`, `"query": cannot be of the type string`},
		{`{"url":"http://x","query":{"a":{}}}`, "must be a string, a number"},
		{`{"url":"http://x","query":{"a":[[1]]}}`, "must be a string, a number"},
		{`{"url":"http://x","query":{"a":null}}`, "must be a string, a number"},
		{`{"url":"http://x","form":{"a":[null]}}`, "must be a string, a number"},
		{`{"url":"http://x","form":[]}`, `"form": cannot be of the type array`},
		{`{"url":"http://x","body":{"a":1}}`, `"body": cannot be of the type object`},
		{`{"url":"http://x","json":1,"body":"b"}`, "only one of json, form and body"},
		{`{"url":"http://x","json":1,"form":{}}`, "only one of json, form and body"},
		{`{"url":"http://x","headers":[]}`, `"headers": cannot be of the type array`},
		{`{"url":"http://x","headers":{"":"c"}}`, "no header's name"},
		{`{"url":"http://x","headers":{"a b":"c"}}`, "no header's name"},
		{`{"url":"http://x","headers":{"a:":"c"}}`, "no header's name"},
		{`{"url":"http://x","headers":{"a\r\nb":"c"}}`, "no header's name"},
		{`{"url":"http://x","headers":{"é":"c"}}`, "no header's name"},
		{`{"url":"http://x","headers":{"a":"hidden\r\nc: d"}}`, "line break"},
		{`{"url":"http://x","headers":{"a":["b","\n"]}}`, "line break"},
		{`{"url":"http://x","headers":{"a":"\u0000"}}`, "line break"},
		{`{"url":"http://x","headers":{"a":"\u007f"}}`, "line break"},
		{`{"url":"http://x","headers":{"a":1}}`, "must be a string or {"},
		{`{"url":"http://x","headers":{"a":null}}`, "must be a string or {"},
		{`{"url":"http://x","headers":{"a":[["b"]]}}`, "must be a string or {"},
		{`{"url":"http://x","headers":{"a":{"secret":"KEY"}}}`, `"KEY" is not one of this worker's http_task.secrets`},
		{`{"url":"http://x","headers":{"a":{"secret":null}}}`, `"a": "" is not one of this worker's http_task.secrets`},
		{`{"url":"http://x","headers":{"a":{"prefix":"Bearer "}}}`, `"a": "" is not one of this worker's http_task.secrets`},
		{`{"url":"http://x","headers":{"a":{"secret":"KEY","prefix":7}}}`, `"prefix": cannot be of the type number`},
		{`{"url":"http://x","headers":{"a":[{"secret":"KEY","suffix":"x"}]}}`, `unknown field "suffix"`},
		{`{"url":"http://x","headers":{"content-length":"3"}}`, "connection"},
		{`{"url":"http://x","headers":{"Transfer-Encoding":"chunked"}}`, "connection"},
		{`{"url":"http://x","headers":{"connection":"close"}}`, "connection"},
		{`{"url":"http://x","headers":{"EXPECT":"100-continue"}}`, "connection"},
		{`{"url":"http://x","headers":{"Upgrade":"h2c"}}`, "connection"},
		{`{"url":"http://x","headers":{"TE":"trailers"}}`, "connection"},
		{`{"url":"http://x","headers":{"Trailer":"A"}}`, "connection"},
		{`{"url":"http://x","headers":{"Keep-Alive":"9"}}`, "connection"},
		{`{"url":"http://x","headers":{"HTTP2-Settings":"x"}}`, "connection"},
		{`{"url":"http://x","headers":{"callq-call-id":"9"}}`, "callq sets it"},
		{`{"url":"http://x","headers":{"Callq-Attempt":"9"}}`, "callq sets it"},
		{`{"url":"http://x","headers":{"host":"x"}}`, "connection"},
		{`{"url":"http://x","timeout":"soon"}`, "duration"},
		{`{"url":"http://x","timeout":"30"}`, "duration"},
		{`{"url":"http://x","timeout":[]}`, "duration"},
		{`{"url":"http://x","timeout":true}`, "duration"},
		{`{"url":"http://x","timeout":1e999}`, "duration"},
		{`{"url":"http://x","timeout":0}`, "above 0"},
		{`{"url":"http://x","timeout":-1}`, "above 0"},
		{`{"url":"http://x","timeout":"-1s"}`, "above 0"},
		{`{"url":"http://x","timeout":1e-12}`, "above 0"},
		{`{"url":"http://x/` + strings.Repeat("p", maxHeader) + `"}`, "header"},
	} {
		s := h.Run(t.Context(), callOf("%s", c.data), bound, func(context.Context) (Grant, error) {
			t.Errorf("%s: the start was asked for", c.data)
			return Grant{}, errNoStart
		})
		if s.Wrote || !isPermanent(s.Err) || !strings.HasPrefix(s.Err.Error(), "call_data: ") || !strings.Contains(s.Err.Error(), c.want) {
			t.Errorf("%.100s: got %+v, want %q", c.data, s, c.want)
		} else if strings.Contains(s.Err.Error(), "hidden") && !strings.Contains(c.data, ":hidden") {
			t.Errorf("%s: the error repeats what may be secret: %v", c.data, s.Err)
		}
	}
}

func TestTimeoutOfCallData(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]time.Duration{
		`"1m30s"`: 90 * time.Second, `"250ms"`: 250 * time.Millisecond, `30`: 30 * time.Second, `0.5`: time.Second / 2,
		`1e300`: 1e9 * time.Second, `null`: 0,
	} {
		c, err := readRequest(callOf(`{"url":"http://x","timeout":%s}`, data), nil)
		if err != nil || c.timeout != want {
			t.Errorf("%s: got %+v, %v, want %s", data, c, err, want)
		}
	}
}

// Errors and logs show the method, scheme, host and path only.
func TestWhatIsShown(t *testing.T) {
	t.Parallel()
	c, err := readRequest(callOf(`{"method":"post","url":"HTTPS://me:hidden@API.example:8443/a%%2Fb/ü?key=hidden#hidden","query":{"k":"hidden"}}`), nil)
	if want := "POST https://api.example:8443/a%2Fb/%C3%BC"; err != nil || c.shown != want {
		t.Errorf("got %+v, %v, want %s", c, err, want)
	}
}

// An API may have signed the query as it is.
func TestQueryIsKept(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		`{"url":"http://x/?a=1&"}`:                    "a=1&",
		`{"url":"http://x/?&&"}`:                      "&&",
		`{"url":"http://x/?&a=1","query":{"b":2}}`:    "&a=1&b=2",
		`{"url":"http://x/","query":{"b":2}}`:         "b=2",
		`{"url":"http://x/?a=1","query":{"b":[2,3]}}`: "a=1&b=2&b=3",
		`{"url":"http://x/?a=1","query":{}}`:          "a=1",
	} {
		c, err := readRequest(callOf("%s", data), nil)
		if err != nil || c.request.URL.RawQuery != want {
			t.Errorf("%s: got %+v, %v, want %s", data, c, err, want)
		}
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add(`{"method":"POST","url":"http://u:p@x:1/p?q#f","query":{"a":[1,"b",true]},"headers":{"A":["b"]},"form":{"a":1},"timeout":"1s"}`)
	f.Add(`{"url":"http://[::1%25eth0]/","headers":{"X":"x"},"json":[null],"timeout":1e9}`)
	f.Fuzz(func(t *testing.T, data string) {
		c, err := readRequest(callOf("%s", data), nil)
		if err != nil {
			return
		}
		var head strings.Builder
		r := c.request.Clone(t.Context())
		r.Body, r.ContentLength = nil, 0
		if err := r.Write(&head); err != nil {
			t.Fatalf("net/http does not write what was accepted: %v", err)
		}
		lines := strings.Split(head.String(), "\r\n")
		if strings.Count(lines[0], " ") != 2 || strings.ContainsAny(strings.Join(lines, ""), "\r\n\x00") {
			t.Errorf("not one request: %q", head.String())
		}
	})
}
