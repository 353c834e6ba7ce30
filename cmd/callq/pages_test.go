package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/pgtest"
)

// askAs asks a daemon under this name.
func askAs(t *testing.T, host, address, path string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	must(t, err)
	r.Host = host
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Error(err)
	}
	return answer.StatusCode, string(text)
}

// The pages of the program as a process, with a daemon's rights: what there is is shown, and to whom.
func TestPagesServed(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort + "limits: {api: {rate: 100/1s}}\nqueues: {pay: {limits: [api]}}\nbudgets: {search: {rate: 2/1h, burst: 1234}}\n"
	id := strings.TrimSpace(w.do("enqueue", "sms", "--queue", "pay", "--key", "<script>alert(1)</script>", "--data", `{"to": "<b>"}`))
	daemon := w
	daemon.postgres = pgtest.NewLogins(t, w.postgres).Daemon
	log := daemon.spawn("serve").ready().log
	address := addressIn(t, log)

	eventually(t, "status shows the worker and what it does not handle", func() bool {
		status, body := ask(t, address, "/")
		return status == http.StatusOK && strings.Contains(body, "no live worker handles task sms: 1 call waiting")
	})
	for path, words := range map[string]string{
		"/calls": `href="/calls/` + id, "/calls/" + id: "no live worker handles task sms", "/limits/api": "100 per 1s", "/queues/pay": "no live worker handles it", "/budgets": `data-l="Free now">1,234<`, "/budgets/search": "<dd>1,234</dd>",
		"/keys/%3Cscript%3Ealert(1)%3C%2Fscript%3E": "&lt;script&gt;alert(1)&lt;/script&gt;",
	} {
		status, body := ask(t, address, path)
		if status != http.StatusOK || !strings.Contains(body, words) || strings.Contains(body, "<script>") {
			t.Errorf("%s: %d, want %q\n%s", path, status, words, body)
		}
	}
	for path, want := range map[string]int{
		"/": http.StatusMisdirectedRequest, "/calls/" + id: http.StatusMisdirectedRequest,
		"/livez": http.StatusOK, "/readyz": http.StatusMisdirectedRequest, "/metrics": http.StatusMisdirectedRequest,
	} {
		if status, body := askAs(t, "evil.example", address, path); status != want || status != http.StatusOK && strings.Contains(body, "alert") {
			t.Errorf("%s as evil.example: %d, want %d\n%s", path, status, want, body)
		}
	}
	if a := w.run("status"); a.code != exitDone || strings.Contains(log.String(), "page not") {
		t.Errorf("%s%s", a.stderr, log)
	}
}

// dispatch and work have pages too, also before Postgres answers: then they say that it does not.
func TestPagesOfAll(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort
	away := w
	away.postgres = noPostgres
	for _, command := range []string{"serve", "dispatch", "work"} {
		here, without := w.start(command), away.start(command)
		eventually(t, command+" shows pages", func() bool {
			status, body := ask(t, addressIn(t, &here.stderr), "/")
			return status == http.StatusOK && strings.Contains(body, "<h2>Limits ")
		})
		status, body := ask(t, addressIn(t, &without.stderr), "/calls")
		if status != http.StatusServiceUnavailable || !strings.Contains(body, "Postgres cannot be reached: ") {
			t.Errorf("%s without Postgres: %d\n%s", command, status, body)
		}
		here.end()
		without.end()
	}
}

// What the pages' connections may do, and for how long: what nobody waits for any more ends in Postgres too.
func TestPagesConnections(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load(config.Source{Env: variables(newWorld(t).environ())})
	must(t, err)
	pool, err := openPagesPool(t.Context(), cfg)
	must(t, err)
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), `INSERT INTO call_queue (queue) VALUES ('a')`); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a page may write: %v", err)
	}
	if pool.Config().MaxConns != pageConns {
		t.Errorf("%d connections", pool.Config().MaxConns)
	}
	var bound string
	if err := pool.QueryRow(t.Context(), `SHOW statement_timeout`).Scan(&bound); err != nil || bound != "5s" {
		t.Errorf("statement_timeout %s, %v", bound, err)
	}
	conn, err := pool.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SET statement_timeout = 0`); err != nil { // as behind a pooler
		t.Fatal(err)
	}
	sleeping := func() bool {
		var is bool
		err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'active' AND query = 'SELECT pg_sleep(600)')`).Scan(&is)
		if err != nil {
			t.Error(err)
		}
		return is
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, `SELECT pg_sleep(600)`)
		ended <- err
	}()
	eventually(t, "it runs", sleeping)
	leave()
	if err := <-ended; err == nil {
		t.Error("it slept to its end")
	}
	eventually(t, "it has ended in Postgres", func() bool { return !sleeping() })
}

// Nobody shows the pages to a network without a login. What only says how it does may be asked there.
func TestPagesBeyondLoopback(t *testing.T) {
	t.Parallel()
	w := world{t: t, postgres: noPostgres, redis: noRedis}
	users, token := filepath.Join(t.TempDir(), "users"), filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	must(t, os.WriteFile(users, []byte("ana:$2a$04$E3Rp3AsdBFFAvRjhHLt8qeGpR5d4pTsMhDhvbpX6qcHwTSPuoGqGG:admin\n"), 0o600))
	for _, command := range []string{"serve", "dispatch", "work"} {
		for _, config := range []string{"http: {listen: ':0'}", "http: {listen: 0.0.0.0:0, actions: true}", "http: {listen: '[::]:0'}"} {
			w.config = config
			w.refuses(exitUsage, "nobody has to log in", command)
		}
	}
	for config, wants := range map[string][2]int{ // of the first page without a login, and with one
		"http: {listen: ':0', pages: false}":                                         {http.StatusNotFound, http.StatusNotFound},
		"http: {listen: 127.0.0.1:0}":                                                {http.StatusServiceUnavailable, http.StatusServiceUnavailable}, // there is no Postgres
		"http: {listen: ':0', auth: {users: " + users + "}}":                         {http.StatusUnauthorized, http.StatusUnauthorized},
		"http: {listen: ':0', auth: {tokens: {CI: {file: " + token + "}}}}":          {http.StatusUnauthorized, http.StatusServiceUnavailable},
		"http: {listen: ':0', auth: {proxy: {from: [127.0.0.1, '::1'], header: U}}}": {http.StatusUnauthorized, http.StatusServiceUnavailable},
	} {
		w.config = config
		d := w.start("work")
		_, port, _ := net.SplitHostPort(addressIn(t, &d.stderr))
		for i, want := range wants {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port+"/", nil)
			must(t, err)
			if i == 1 {
				r.Header.Set("Authorization", "Bearer secret")
				r.Header.Set("U", "alice")
				if strings.Contains(config, "header: U") {
					r.Header.Del("Authorization")
				}
			}
			answer, err := http.DefaultClient.Do(r)
			must(t, err)
			answer.Body.Close()
			if answer.StatusCode != want {
				t.Errorf("%s: %d, want %d", config, answer.StatusCode, want)
			}
		}
		if status, body := ask(t, "127.0.0.1:"+port, "/livez"); status != http.StatusOK {
			t.Errorf("%s: /livez: %d\n%s", config, status, body)
		}
		if strings.Contains(d.stderr.String(), "secret") {
			t.Errorf("%s: the log has the token", config)
		}
		d.end()
	}
	for config, want := range map[string]string{
		"http: {listen: ':0', auth: {users: /none}}":                       "http.auth: users: ",
		"http: {listen: ':0', auth: {tokens: {CI: {env: NO_SUCH_TOKEN}}}}": "http.auth.tokens.CI.env",
	} {
		w.config = config
		w.refuses(exitUsage, want, "work")
	}
}

// Scripts act on a daemon, with its rights, and by a token alone.
func TestScriptsAct(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	w.config = "http: {listen: '127.0.0.1:0', auth: {tokens: {CI: {file: " + token + ", role: admin}}}}\nlimits: {api: {rate: 100/1s}}\nqueues: {pay: {limits: [api]}}\n"
	id := strings.TrimSpace(w.do("enqueue", "sms", "--queue", "pay", "--in", "1h"))
	daemon := w
	daemon.postgres = pgtest.NewLogins(t, w.postgres).Daemon
	log := daemon.spawn("serve").ready().log
	for _, c := range []struct{ path, body, says string }{
		{"queues/pause", `{"queue": "pay", "key": "k", "for": "10m", "reason": "incident 7"}`, "queues list"},
		{"queues/resume", `{"queue": "pay", "key": "k"}`, ""},
		{"limits/set", `{"limit": "api", "rate": "50/1s"}`, "limits list"},
		{"limits/reset", `{"limit": "api"}`, ""},
		{"limits/pause", `{"limit": "api", "reason": "incident 8"}`, ""},
		{"limits/resume", `{"limit": "api"}`, ""},
		{"calls/run", `{"ids": [` + id + `]}`, ""},
		{"calls/cancel", `{"ids": [` + id + `]}`, ""},
		{"calls/retry", `{"ids": [` + id + `]}`, ""},
		{"calls/delete", `{"ids": [` + id + `]}`, ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addressIn(t, log)+"/api/"+c.path, strings.NewReader(c.body))
		must(t, err)
		answer, err := http.DefaultClient.Do(r)
		must(t, err)
		answer.Body.Close()
		if answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without a token: %d", c.path, answer.StatusCode)
		}
		r.Body = io.NopCloser(strings.NewReader(c.body))
		r.Header.Set("Authorization", "Bearer secret")
		answer, err = http.DefaultClient.Do(r)
		must(t, err)
		text, err := io.ReadAll(answer.Body)
		must(t, err)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK || !strings.Contains(string(text), `"changed":1`) {
			t.Errorf("%s: %d %s", c.path, answer.StatusCode, text)
		}
	}
	var acted, paused int
	must(t, w.connect().QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE change LIKE 'paused for key k until%' AND reason = 'incident 7')
		FROM callq.call_audit WHERE by = 'CI'`).Scan(&acted, &paused))
	if acted != 10 || paused != 1 {
		t.Errorf("%d lines in the audit, %d of the pause", acted, paused)
	}
}
