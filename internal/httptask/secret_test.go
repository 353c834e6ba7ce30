package httptask

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

const canary = `sk_live_"canary"/é&<door>`

func keyFor(hosts ...string) Config {
	return Config{Store: "all", Secrets: map[string]Secret{"KEY": {Value: canary, Hosts: hosts}}}
}

func TestSecretsThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		secret Secret
		want   string
	}{
		{Secret{}, "fewer than 4 bytes"},
		{Secret{Value: "abc", Hosts: []string{"x"}}, "fewer than 4 bytes"},
		{Secret{Value: "hidden"}, "no hosts"},
		{Secret{Value: "hidden\nX: y", Hosts: []string{"x"}}, "line break"},
		{Secret{Value: "hidden ", Hosts: []string{"x"}}, "a space at an end"},
		{Secret{Value: "hidden\xff", Hosts: []string{"x"}}, "UTF-8"},
	} {
		_, err := New(Config{Secrets: map[string]Secret{"KEY": c.secret}}, 1, NewArrivals())
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "KEY") {
			t.Errorf("%q: got %v, want %s", c.secret.Value, err, c.want)
		}
	}
}

// Whatever prints a configuration prints no secret.
func TestSecretIsNotPrinted(t *testing.T) {
	t.Parallel()
	cfg := keyFor("x")
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("text", "cfg", cfg.Secrets)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("json", "cfg", cfg.Secrets)
	inJSON, err := json.Marshal(cfg.Secrets)
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(inJSON)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		all += fmt.Sprintf(verb, cfg.Secrets["KEY"]) + fmt.Sprintf(verb, cfg)
	}
	if strings.Contains(all, "canary") || strings.Contains(all, fmt.Sprintf("%x", "canary")) || !strings.Contains(all, hiddenText) {
		t.Errorf("printed: %s", all)
	}
}

// A secret within an encoded body, which a call may ask for, could not be seen: where there may be one, the body is not kept.
func TestEncodedAnswersKeepNoSecret(t *testing.T) {
	t.Parallel()
	server := serveHTTP(t, false, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", r.Header.Get("Accept-Encoding"))
		_, _ = io.WriteString(w, "something encoded")
	})
	for _, c := range []struct {
		encoding, host string
		kept           bool
	}{
		{"gzip", "127.0.0.1", false},
		{"br", "127.0.0.1", false},
		{"identity", "127.0.0.1", true},
		{"gzip", "api.example", true},
	} {
		s := newTestTask(t, keyFor(c.host)).Run(t.Context(), callOf(`{"url":%q,"headers":{"Accept-Encoding":%q}}`, server.URL, c.encoding), bound, granted)
		var got answer
		if err := json.Unmarshal(s.Result, &got); err != nil || (got.Body != "") != c.kept || got.Truncated == c.kept {
			t.Errorf("%s, where %s may be sent a secret: kept %+v (%v)", c.encoding, c.host, got, err)
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	s, err := newSecrets(map[string]Secret{"KEY": {canary, []string{"x"}}, "SHORT": {"sk_live", []string{"x"}}, "TWICE": {"twice-twice-", []string{"x"}}, "LEAD": {"user-sk_live", []string{"x"}}})
	if err != nil {
		t.Fatal(err)
	}
	secrets := s.needles(&url.URL{Scheme: "https", Host: "x"})
	inJSON, _ := json.Marshal(canary)
	var unescaped bytes.Buffer
	e := json.NewEncoder(&unescaped)
	e.SetEscapeHTML(false)
	_ = e.Encode(canary)
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"nothing of it", "nothing of it"},
		{canary, "***"},
		{"twice-twice-", "***"},
		{"a " + canary + canary + " b", "a ****** b"},
		{string(inJSON), `"***"`},
		{fmt.Sprintf("%q", canary), `"***"`},
		{fmt.Sprintf("%+q", canary), `"***"`},
		{`{"a":"` + strings.ReplaceAll(`sk_live_\"canary\"/\u00e9&<door>`, "/", `\/`) + `"}`, `{"a":"***"}`},
		{"?k=" + url.QueryEscape(canary) + "&b", "?k=***&b"},
		{"/" + url.PathEscape(canary) + "/b", "/***/b"},
		{`<b>sk_live_&#34;canary&#34;/é&amp;&lt;door&gt;</b>`, "<b>***</b>"},
		{"the shorter sk_live alone", "the shorter *** alone"},
		{"a beginning: " + canary[:20], "a beginning: ***" + canary[7:20]}, // sk_live is a secret of its own
		{"a beginning: twice-twi", "a beginning: twice-twi"},
		{"two: twice-twice-" + canary + canary, "two: *********"},
		{"two that overlap: user-" + canary + " b", "two that overlap: *** b"},
		{"one that overlaps itself: twice-twice-twice- b", "one that overlaps itself: *** b"},
	} {
		if got := secrets.redact(c.text, false); got != c.want {
			t.Errorf("redact(%q) = %q, want %q", c.text, got, c.want)
		}
	}
	// Where a text was cut off, a secret may begin within as many bytes as the longest has.
	rest := strings.Repeat("x", secrets.longest)
	for part := range len(canary) {
		if got := secrets.redact("kept"+rest+canary[:part], true); len(got) > len("kept")+part || !strings.HasPrefix("kept"+rest, got) {
			t.Errorf("cut off after %d bytes of it: %q", part, got)
		}
	}
}

// A host repeats what a call says. What is starred tells nobody what a secret is: of a stranger's answers nothing
// is, and of those of its hosts only the whole.
func TestRedactionTellsNothing(t *testing.T) {
	t.Parallel()
	server := serveHTTP(t, false, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Echo", r.Header.Get("X-Guess"))
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, r.Header.Get("X-Guess"))
	})
	const secret = "sk_live_0123456789"
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for _, c := range []struct {
		name, guess, want string
		hosts             []string
	}{
		{name: "a stranger, the beginning", guess: secret[:9], want: secret[:9], hosts: []string{"api.example"}},
		{name: "a stranger, all of it", guess: secret, want: secret, hosts: []string{"api.example"}},
		{name: "another port", guess: secret, want: secret, hosts: []string{"127.0.0.1:1"}},
		{name: "its host, the beginning", guess: secret[:17], want: secret[:17], hosts: []string{"127.0.0.1"}},
		{name: "its host, all of it", guess: secret, want: hiddenText, hosts: []string{"127.0.0.1"}},
		{name: "its host and port", guess: secret, want: hiddenText, hosts: []string{"http://127.0.0.1:" + port}},
	} {
		h := newTestTask(t, Config{Secrets: map[string]Secret{"KEY": {secret, c.hosts}}})
		path := server.URL + "/" + c.guess
		s := h.Run(t.Context(), callOf(`{"url":%q,"headers":{"X-Guess":%q}}`, path, c.guess), bound, granted)
		var got answer
		if err := json.Unmarshal(s.Result, &got); err != nil {
			t.Fatalf("%s: %v of %+v", c.name, err, s)
		}
		if got.Body != c.want || got.Headers["X-Echo"] != c.want || !strings.Contains(s.Err.Error(), "/"+c.want+":") {
			t.Errorf("%s: kept %q, %q and %v, want %q", c.name, got.Body, got.Headers["X-Echo"], s.Err, c.want)
		}
	}
}

// Where a secret may go. The API is there each time: what must not arrive would.
func TestSecretGoesToItsHostsOnly(t *testing.T) {
	t.Parallel()
	var arrived atomic.Value
	count := func(w http.ResponseWriter, r *http.Request) { arrived.Store(r.Header.Get("Authorization")) }
	secure, plain := serveHTTP(t, true, count), serveHTTP(t, false, count)
	_, https, _ := net.SplitHostPort(secure.Listener.Addr().String())
	_, http, _ := net.SplitHostPort(plain.Listener.Addr().String())
	for _, c := range []struct {
		name, url string
		hosts     []string
		public    bool // the API's address counts as a public one
		want      string
	}{
		{name: "its host", url: "https://127.0.0.1:" + https, hosts: []string{"127.0.0.1"}},
		{name: "its host, in capitals", url: "https://LOCALHOST:" + https, hosts: []string{"LocalHost"}},
		{name: "its host and port", url: "https://127.0.0.1:" + https, hosts: []string{"127.0.0.1:" + https}},
		{name: "one of its hosts", url: "https://127.0.0.1:" + https, hosts: []string{"api.example", "127.0.0.1"}},
		{name: "another port", url: "https://127.0.0.1:" + https, hosts: []string{"127.0.0.1:1"}, want: "not among its hosts"},
		{name: "another host", url: "https://127.0.0.1:" + https, hosts: []string{"api.example"}, want: "not among its hosts"},
		{name: "another name of the address", url: "https://localhost:" + https, hosts: []string{"127.0.0.1"}, want: "not among its hosts"},
		{name: "the end of a name", url: "https://localhost:" + https, hosts: []string{"host"}, want: "not among its hosts"},
		{name: "the beginning of a name", url: "https://localhost:" + https, hosts: []string{"localhost.example"}, want: "not among its hosts"},
		{name: "a star", url: "https://localhost:" + https, hosts: []string{"*"}, want: "not among its hosts"},
		{name: "its host as a user's name", url: "https://api.example@127.0.0.1:" + https, hosts: []string{"api.example"}, want: "not among its hosts"},
		{name: "http to a private address", url: "http://127.0.0.1:" + http, hosts: []string{"127.0.0.1"}},
		{name: "http to a public address", url: "http://127.0.0.1:" + http, hosts: []string{"127.0.0.1"}, public: true, want: "may not go over http"},
		{name: "https to a public address", url: "https://127.0.0.1:" + https, hosts: []string{"127.0.0.1"}, public: true},
		{name: "http where it may", url: "http://127.0.0.1:" + http, hosts: []string{"http://127.0.0.1"}, public: true},
		{name: "http where it may, another port", url: "http://127.0.0.1:" + http, hosts: []string{"http://127.0.0.1:1"}, public: true, want: "not among its hosts"},
		{name: "https where http may", url: "https://127.0.0.1:" + https, hosts: []string{"http://127.0.0.1"}, public: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := keyFor(c.hosts...)
			cfg.TLS = certificatesOf(secure).Clone()
			cfg.TLS.ServerName = "example.com" // as the API's certificate has it
			h := newTestTask(t, cfg)
			if c.public {
				h.addresses = &addresses{}
			}
			for _, reused := range []bool{false, true} {
				arrived.Store("nothing")
				started := false
				s := h.Run(t.Context(), callOf(`{"url":%q,"headers":{"Authorization":{"secret":"KEY","prefix":"Bearer "}}}`, c.url), bound, noting(&started))
				switch {
				case c.want == "" && (s.Err != nil || arrived.Load() != "Bearer "+canary):
					t.Errorf("got %+v, and %v arrived", s, arrived.Load())
				case c.want != "" && (!isPermanent(s.Err) || !strings.Contains(s.Err.Error(), c.want) || s.Wrote || started || arrived.Load() != "nothing"):
					t.Errorf("got %+v, want %s; %v arrived", s, c.want, arrived.Load())
				}
				if c.want != "" && !reused { // so that there is a connection to be used again
					h.Run(t.Context(), callOf(`{"url":%q}`, c.url), bound, granted)
				}
			}
		})
	}
}

// An API that repeats what it is sent, in every way there is.
func TestEchoedSecretIsNotKept(t *testing.T) {
	t.Parallel()
	raw := func(answer func(conn net.Conn, auth string)) string {
		return "http://" + serveConns(t, func(conn *net.TCPConn) {
			defer conn.Close()
			head := make([]byte, 4096)
			n, _ := conn.Read(head)
			_, auth, _ := strings.Cut(string(head[:n]), "Authorization: ")
			auth, _, _ = strings.Cut(auth, "\r\n")
			answer(conn, auth)
		})
	}
	handled := func(answer http.HandlerFunc) string { return serveHTTP(t, false, answer).URL }
	for name, url := range map[string]string{
		"body, header and its name": handled(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Echo", r.Header.Get("Authorization"))
			w.Header()["X-Twice"] = []string{r.Header.Get("Authorization"), "b"}
			_ = r.Header.Write(w)
			_ = json.NewEncoder(w).Encode(r.Header)
		}),
		"an error": handled(func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, r.Header.Get("Authorization"), http.StatusInternalServerError)
		}),
		"a redirect": handled(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere.example/?k="+url.QueryEscape(r.Header.Get("Authorization")), http.StatusFound)
		}),
		"cut after it": handled(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", maxBody-20)+r.Header.Get("Authorization")+strings.Repeat("y", maxBody))
		}),
		"whose end is where the body is cut": handled(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", maxBody-len(r.Header.Get("Authorization"))+1)+r.Header.Get("Authorization")+"y")
		}),
		"before where the body is cut": handled(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat(r.Header.Get("Authorization"), 2*maxBody/len(canary)))
		}),
		"a status line": raw(func(conn net.Conn, auth string) {
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 %s\r\nContent-Length: 0\r\n\r\n", auth)
		}),
		"not HTTP":     raw(func(conn net.Conn, auth string) { _, _ = fmt.Fprintf(conn, "%s\r\n\r\n", auth) }),
		"a bad header": raw(func(conn net.Conn, auth string) { _, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\n%s\r\n\r\n", auth) }),
		"a bad length": raw(func(conn net.Conn, auth string) {
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n", auth)
		}),
		"cut within it by a hang-up": raw(func(conn net.Conn, auth string) {
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n%s", auth[:len(auth)-5])
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestTask(t, keyFor("127.0.0.1"))
			s := h.Run(t.Context(), callOf(`{"url":%q,"headers":{"Authorization":[{"secret":"KEY","prefix":"Bearer "}],"X":"kept"}}`, url), bound, granted)
			if !s.Wrote || s.Result == nil && s.Err == nil {
				t.Fatalf("got %+v", s)
			}
			kept := fmt.Sprintf("%s %v", s.Result, s.Err)
			for _, part := range []string{"canary", "sk_live", "door"} {
				if strings.Contains(kept, part) {
					t.Errorf("%q is in %.2000s", part, kept)
				}
			}
			if !strings.Contains(kept, hiddenText) && name != "a status line" && !strings.HasPrefix(name, "cut") {
				t.Errorf("it was not echoed, so that this shows nothing: %.2000s", kept)
			}
		})
	}
}
