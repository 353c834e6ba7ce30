package access

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

func hashOf(t *testing.T, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(hash)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// door is a guarded handler that answers with who came in.
func door(t *testing.T, cfg Config) (ask func(method string, set ...func(*http.Request)) (int, string), log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	handler := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := Of(r.Context())
		_, _ = w.Write([]byte(who.Name + " " + who.Role.String()))
	}), func(w http.ResponseWriter, _ *http.Request, status int, why string) { http.Error(w, why, status) })
	return func(method string, set ...func(*http.Request)) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), method, "http://callq.example/api/x", nil)
		r.RemoteAddr = "192.0.2.1:1234"
		for _, s := range set {
			s(r)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code, strings.TrimSpace(w.Body.String())
	}, log
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Add(name, value) }
}

func from(address string) func(*http.Request) {
	return func(r *http.Request) { r.RemoteAddr = address }
}

func login(name, password string) func(*http.Request) {
	return func(r *http.Request) { r.SetBasicAuth(name, password) }
}

// Who has a login comes in with its role, and nobody else does: each refusal is logged, with no secret.
func TestLogins(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users")
	write(t, path, "# people\nana:"+hashOf(t, "s3cret")+":admin\nbob:"+hashOf(t, "pass:word")+"\n")
	ask, log := door(t, Config{
		Users:  path,
		Tokens: []Token{{"CI", "tok-1", Operator}, {"other", "tok-2", Viewer}},
		Proxy: Proxy{
			From:   []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")},
			Header: "X-Forwarded-User", Roles: map[string]Role{"alice": Admin},
		},
		Open: Who{"anybody", Admin}, // does not count beside logins
	})
	for _, c := range []struct {
		name   string
		set    []func(*http.Request)
		status int
		want   string
	}{
		{"a user", []func(*http.Request){login("ana", "s3cret")}, 200, "ana admin"},
		{"again, which is remembered", []func(*http.Request){login("ana", "s3cret")}, 200, "ana admin"},
		{"a user without a role", []func(*http.Request){login("bob", "pass:word")}, 200, "bob viewer"},
		{"a token", []func(*http.Request){header("Authorization", "Bearer tok-1")}, 200, "CI operator"},
		{"another", []func(*http.Request){header("Authorization", "bearer  tok-2")}, 200, "other viewer"},
		{"a proxy's user", []func(*http.Request){from("10.1.2.3:1"), header("X-Forwarded-User", "alice")}, 200, "alice admin"},
		{"over IPv6", []func(*http.Request){from("[fd00::1%eth0]:1"), header("X-Forwarded-User", "carol")}, 200, "carol viewer"},
		{"over mapped IPv4", []func(*http.Request){from("[::ffff:10.1.2.3]:1"), header("X-Forwarded-User", "alice")}, 200, "alice admin"},

		{"nobody", nil, 401, "there is no login"},
		{"a wrong password", []func(*http.Request){login("ana", "secret")}, 401, "the name or the password is wrong"},
		{"no such user", []func(*http.Request){login("eve", "s3cret")}, 401, "the name or the password is wrong"},
		{"an empty password", []func(*http.Request){login("ana", "")}, 401, "the name or the password is wrong"},
		{"a wrong token", []func(*http.Request){header("Authorization", "Bearer tok-3")}, 401, "there is no such token"},
		{"an empty token", []func(*http.Request){header("Authorization", "Bearer ")}, 401, "there is no such token"},
		{"a token as a password", []func(*http.Request){login("CI", "tok-1")}, 401, "the name or the password is wrong"},
		{"a wrong token through the proxy", []func(*http.Request){from("10.1.2.3:1"), header("X-Forwarded-User", "alice"), header("Authorization", "Bearer x")}, 401, "there is no such token"},
		{"another scheme", []func(*http.Request){header("Authorization", "Digest tok-1")}, 401, "there is no login"},
		{"the header from elsewhere", []func(*http.Request){header("X-Forwarded-User", "alice")}, 401, "counts only from the proxy's addresses"},
		{"an address that is told", []func(*http.Request){header("X-Forwarded-User", "alice"), header("X-Forwarded-For", "10.1.2.3")}, 401, "counts only from the proxy's addresses"},
		{"two users", []func(*http.Request){from("10.1.2.3:1"), header("X-Forwarded-User", "bob"), header("X-Forwarded-User", "alice")}, 401, "does not name one user"},
		{"an empty user", []func(*http.Request){from("10.1.2.3:1"), header("X-Forwarded-User", "")}, 401, "does not name one user"},
		{"a user with a line's end", []func(*http.Request){from("10.1.2.3:1"), header("X-Forwarded-User", "a\nb")}, 401, "does not name one user"},
	} {
		log.Reset()
		status, text := ask(http.MethodGet, c.set...)
		if status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.name, status, text, c.status, c.want)
		}
		if logged := log.String(); (status == 401) != strings.Contains(logged, "request refused") || strings.Contains(logged, "s3cret") || strings.Contains(logged, "tok-") {
			t.Errorf("%s: logged %q", c.name, logged)
		}
	}
}

// The users' file is read again when it changes. One that cannot be read leaves the users as they were.
func TestUsersChange(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users")
	begun := time.Now().Add(-time.Hour)
	changes := 0
	change := func(text string) {
		write(t, path, text)
		changes++
		at := begun.Add(time.Duration(changes) * time.Minute)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	change("ana:" + hashOf(t, "one"))
	ask, _ := door(t, Config{Users: path})
	want := func(password string, status int) {
		t.Helper()
		if got, text := ask(http.MethodGet, login("ana", password)); got != status {
			t.Errorf("with password %s: %d %s, want %d", password, got, text, status)
		}
	}
	want("one", 200)
	change("ana:" + hashOf(t, "two") + ":admin")
	want("one", 401)
	want("two", 200)
	change("nonsense")
	want("two", 200)
	change("bob:" + hashOf(t, "two"))
	want("two", 401)
}

func TestReadUsers(t *testing.T) {
	t.Parallel()
	hash := hashOf(t, "x")
	for text, want := range map[string]string{
		"ana":                             "line 1 is not name:hash:role",
		":" + hash:                        "line 1 is not name:hash:role",
		"ana:{SHA}nonsense":               "line 1: the hash is not of bcrypt",
		"ana:" + hash + ":root":           `line 1: "root" is no role`,
		"ana:" + hash + "\n\nana:" + hash: "line 3: user ana is there twice",
	} {
		if _, err := readUsers([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	apache := strings.Replace(hash, "$2a$", "$2y$", 1) // as htpasswd writes it
	if users, err := readUsers([]byte("ana:" + apache + ":operator\r\n")); err != nil || users["ana"].role != Operator {
		t.Errorf("%v, %v", users, err)
	}
	if _, err := New(Config{Users: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a file that is not there is read")
	}
}

// A page of another site changes nothing, whoever's browser it is in; it may link here.
func TestOtherSites(t *testing.T) {
	t.Parallel()
	ask, log := door(t, Config{Open: Who{"loopback", Admin}, Hosts: []string{"proxied.example"}})
	for _, c := range []struct {
		name   string
		method string
		set    []func(*http.Request)
		status int
	}{
		{"a script without a browser", http.MethodPost, nil, 200},
		{"our own page", http.MethodPost, []func(*http.Request){header("Sec-Fetch-Site", "same-origin")}, 200},
		{"our own page, of an old browser", http.MethodPost, []func(*http.Request){header("Origin", "http://callq.example")}, 200},
		{"under the proxy's name", http.MethodPost, []func(*http.Request){header("Origin", "https://proxied.example")}, 200},
		{"a link from elsewhere", http.MethodGet, []func(*http.Request){header("Sec-Fetch-Site", "cross-site")}, 200},
		{"another site", http.MethodPost, []func(*http.Request){header("Sec-Fetch-Site", "cross-site"), header("Origin", "https://evil.example")}, 403},
		{"a sibling", http.MethodPost, []func(*http.Request){header("Sec-Fetch-Site", "same-site")}, 403},
		{"another site, of an old browser", http.MethodPost, []func(*http.Request){header("Origin", "https://evil.example")}, 403},
		{"no origin that can be told", http.MethodPost, []func(*http.Request){header("Origin", "null")}, 403},
		{"another site's DELETE", http.MethodDelete, []func(*http.Request){header("Origin", "https://evil.example")}, 403},
	} {
		log.Reset()
		if status, text := ask(c.method, c.set...); status != c.status || (status == 403) != strings.Contains(log.String(), "request refused") {
			t.Errorf("%s: %d %s, want %d; logged %q", c.name, status, text, c.status, log.String())
		}
	}
}
