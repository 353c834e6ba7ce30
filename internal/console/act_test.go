package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/access"
	"github.com/callq/callq/internal/pgtest"
)

// acting is a site with calls, rules and somebody who may act.
type acting struct {
	*site
	pool *pgxpool.Pool
}

func newActing(t *testing.T, role access.Role) *acting {
	t.Helper()
	pool := pgtest.New(t)
	for _, sql := range []string{
		`INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, slack, send_within, queues, applied_at, applied_by, complete_since, epoch)
			VALUES ('api', 1, 5, '1 h', '3.6 s', '1 s', '1 s', '{pay}', now(), 'config', now(), callq.epoch())`,
		`INSERT INTO callq.call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost) VALUES ('pay', '{api}', '', 3, '1 s', '1 m', '30 s', 'retry')`,
		`INSERT INTO call_queue (queue, status, failed_at, finished_at, error_message)
			SELECT 'pay', 'failed', now(), now(), 'card ' || i || ' was declined' FROM generate_series(1, 3) i`, // calls 1 to 3
		`INSERT INTO call_queue (queue, run_at, key) SELECT 'pay', now() + interval '1 day', 'acct_42' FROM generate_series(1, 3)`, // 4 to 6
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%v\n%s", err, sql)
		}
	}
	return &acting{newSite(t, pool, plentiful, role), pool}
}

// post sends a body, as a form where it is one.
func (a *acting) post(path, body string, set ...func(*http.Request)) (int, string) {
	a.t.Helper()
	r := httptest.NewRequestWithContext(a.t.Context(), http.MethodPost, "http://localhost:7460"+path, strings.NewReader(body))
	if strings.HasPrefix(path, "/do/") {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, s := range set {
		s(r)
	}
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func (a *acting) want(sql string) {
	a.t.Helper()
	var holds bool
	if err := a.pool.QueryRow(a.t.Context(), sql).Scan(&holds); err != nil || !holds {
		a.t.Errorf("does not hold: %s, %v", sql, err)
	}
}

// Each action does what it says, by a script and by the form that its page shows, and is in the audit with who, why and what.
func TestEachAction(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, fields string // of the form's address
		json         string
		before       string // SQL
		after        string // holds then
		change       string // of the audit
	}{
		{"queues/pause", "queue=pay", `{"queue": "pay"`, ``, `SELECT until = 'infinity' AND reason = 'why' FROM callq.call_pauses WHERE what = 'queue' AND name = 'pay' AND key = ''`, "paused"},
		{"queues/pause", "queue=pay&key=acct_42", `{"queue": "pay", "key": "acct_42", "for": "1h"`, ``, `SELECT until > now() FROM callq.call_pauses WHERE name = 'pay' AND key = 'acct_42'`, "paused for key acct_42"},
		{
			"queues/resume", "queue=pay", `{"queue": "pay"`, `INSERT INTO callq.call_pauses (what, name, until, reason, at, by) VALUES ('queue', 'pay', 'infinity', '', now(), '')`,
			`SELECT count(*) = 0 FROM callq.call_pauses`, "resumed",
		},
		{"limits/pause", "limit=api", `{"limit": "api", "until": "2100-01-01T00:00:00Z"`, ``, `SELECT until > now() FROM callq.call_pauses WHERE what = 'limit' AND name = 'api'`, "paused"},
		{
			"limits/resume", "limit=api", `{"limit": "api"`, `INSERT INTO callq.call_pauses (what, name, until, reason, at, by) VALUES ('limit', 'api', 'infinity', '', now(), '')`,
			`SELECT count(*) = 0 FROM callq.call_pauses`, "resumed",
		},
		{"limits/set", "limit=api&rate=20/1h", `{"limit": "api", "rate": "20/1h"`, ``, `SELECT rate = 20 FROM callq.call_limits WHERE name = 'api'`, "20 per 1h"},
		{
			"limits/reset", "limit=api", `{"limit": "api"`, `UPDATE callq.call_limits SET config = '{"units": 9, "window": 3600000000000}'`,
			`SELECT rate = 9 AND config IS NULL FROM callq.call_limits WHERE name = 'api'`, "9 per 1h",
		},
		{
			"limits/open", "limit=api", `{"limit": "api"`, `UPDATE callq.call_limits SET missing_until = now() + interval '1 h'`,
			`SELECT missing_until IS NULL FROM callq.call_limits WHERE name = 'api'`, "opened",
		},
		{"calls/retry", "ids=1", `{"ids": [1]`, ``, `SELECT status = 'new' FROM call_queue WHERE id = 1`, "retry"},
		{"calls/retry", "status=failed&queue=pay", `{"status": "failed", "queue": "pay"`, ``, `SELECT count(*) = 6 FROM call_queue WHERE status = 'new'`, "retry of 3 calls"},
		{
			"calls/retry", "status=failed&shape=" + url.QueryEscape("card # was declined"), `{"status": "failed", "shape": "card # was declined"`, ``,
			`SELECT count(*) = 6 FROM call_queue WHERE status = 'new'`, "retry of 3 calls",
		},
		{
			"calls/retry", "status=done&queue=old", `{"status": "done", "queue": "old"`, `INSERT INTO call_queue (queue, status, finished_at) VALUES ('old', 'done', now())`,
			`SELECT status = 'new' FROM call_queue WHERE queue = 'old'`, "retry of 1 call",
		},
		{"calls/cancel", "ids=4,5", `{"ids": [4, 5]`, ``, `SELECT count(*) = 2 FROM call_queue WHERE status = 'cancelled'`, "cancel"},
		{"calls/cancel", "key=acct_42", `{"key": "acct_42"`, ``, `SELECT count(*) = 3 FROM call_queue WHERE status = 'cancelled'`, "cancel of 3 calls"},
		{"calls/delete", "ids=1", `{"ids": [1]`, ``, `SELECT count(*) = 0 FROM call_queue WHERE id = 1`, "delete"},
		{"calls/delete", "all=1", `{"all": true`, ``, `SELECT count(*) = 3 FROM call_queue`, "delete of 3 calls"},
		{"calls/run", "ids=4", `{"ids": [4]`, ``, `SELECT run_at <= now() FROM call_queue WHERE id = 4`, "run"},
		{"calls/run", "queue=pay&status=waiting", `{"queue": "pay", "status": "waiting"`, ``, `SELECT count(*) = 0 FROM call_queue WHERE run_at > now()`, "run of 3 calls"},
	} {
		for _, way := range []string{"script", "form"} {
			t.Run(c.name+" "+c.fields+" "+way, func(t *testing.T) {
				t.Parallel()
				a := newActing(t, access.Admin)
				if _, err := a.pool.Exec(t.Context(), c.before); err != nil {
					t.Fatal(err)
				}
				var status int
				var text string
				if way == "script" {
					status, text = a.post("/api/"+c.name, c.json+`, "reason": "why"}`)
				} else {
					form := a.form("/do/" + c.name + "?back=/queues&" + c.fields)
					form.Set("reason", "why")
					status, text = a.post("/do/"+c.name, form.Encode())
					if !strings.Contains(text, `href="/queues"`) {
						t.Errorf("no way back: %s", text)
					}
				}
				if status != http.StatusOK {
					t.Fatalf("%d %s", status, text)
				}
				a.want(c.after)
				a.want(fmt.Sprintf(`SELECT count(*) = 1 FROM callq.call_audit WHERE by = 'loopback' AND reason = 'why' AND strpos(change, '%s') > 0`, c.change))
			})
		}
	}
}

// form is what the page of a form sends.
func (a *acting) form(path string) url.Values {
	a.t.Helper()
	status, text := a.ask(http.MethodGet, path)
	if status != http.StatusOK {
		a.t.Fatalf("%s: %d\n%s", path, status, text)
	}
	values := url.Values{}
	_, text, _ = strings.Cut(text, `<form class="act"`)
	text, _, _ = strings.Cut(text, "</form>")
	for _, field := range regexp.MustCompile(`<input[^>]* name="([^"]*)"(?: value="([^"]*)")?`).FindAllStringSubmatch(text, -1) {
		values.Set(html.UnescapeString(field[1]), html.UnescapeString(field[2]))
	}
	if strings.Contains(text, `<select name="for"`) {
		values.Set("for", "")
	}
	return values
}

// What makes no sense, fits nothing, or came before is refused, and changes nothing.
func TestActionsRefuse(t *testing.T) {
	t.Parallel()
	a := newActing(t, access.Admin)
	for _, c := range []struct {
		name, json string
		status     int
		want       string
	}{
		{"queues/pause", `{"queue": "pay", "minutes": 5}`, 400, "minutes"},
		{"queues/pause", `nonsense`, 400, "not one JSON object"},
		{"queues/pause", `{"queue": "pay"} {}`, 400, "not one JSON object"},
		{"queues/pause", `{}`, 400, "queue is missing"},
		{"queues/pause", `{"queue": "none"}`, 404, "no such queue"},
		{"queues/pause", `{"queue": "\u0000"}`, 404, "nothing of this name"},
		{"queues/pause", `{"queue": "pay", "for": "soon"}`, 400, `"soon" is no length of time`},
		{"queues/pause", `{"queue": "pay", "until": "2001-01-01T00:00:00Z"}`, 400, "has passed"},
		{"queues/pause", `{"queue": "pay", "for": "1h", "until": "2101-01-01T00:00:00Z"}`, 400, "one of them"},
		{"queues/resume", `{"queue": "pay", "for": "1h"}`, 400, "belong to a pause"},
		{"queues/pause", `{"queue": "pay", "limit": "api"}`, 400, "give the queue"},
		{"limits/pause", `{"limit": "api", "all": true}`, 400, "which calls"},
		{"calls/cancel", `{"ids": [4], "for": "1h"}`, 400, "belong to queues"},
		{"queues/start", `{"queue": "pay"}`, 404, "no such action"},
		{"limits/set", `{"limit": "api"}`, 400, "rate"},
		{"limits/set", `{"limit": "api", "rate": "0/1h"}`, 400, "rate"},
		{"limits/set", `{"limit": "api", "rate": "20"}`, 400, "it cannot have this rate"},
		{"limits/set", `{"limit": "none", "rate": "1/1h"}`, 404, "no such queue or limit"},
		{"limits/open", `{"limit": "api"}`, 400, "reason is missing"},
		{"calls/retry", `{}`, 400, "which calls?"},
		{"calls/retry", `{"ids": [1], "queue": "pay"}`, 400, "which calls?"},
		{"calls/retry", `{"ids": [99]}`, 404, "99"},
		{"calls/retry", `{"status": "new"}`, 400, "failed, cancelled, done"},
		{"calls/retry", `{"status": "gone"}`, 400, "status:gone is none"},
		{"calls/retry", `{"status": "failed", "expect": 2}`, 409, "3 calls fit by now"},
		{"calls/cancel", `{"ids": [4], "done": true}`, 400, "belong to calls/retry"},
	} {
		status, text := a.post("/api/"+c.name, c.json)
		var body struct{ Error string }
		if err := json.Unmarshal([]byte(text), &body); err != nil || status != c.status || !strings.Contains(body.Error, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.name, c.json, status, text, c.status, c.want)
		}
	}
	a.want(`SELECT count(*) = 0 FROM callq.call_audit WHERE what <> 'calls'`)
	a.want(`SELECT count(*) = 0 FROM callq.call_pauses`)

	// A form acts once, however often it is sent.
	form := a.form("/do/queues/pause?queue=pay")
	if status, text := a.post("/do/queues/pause", form.Encode()); status != 400 || !strings.Contains(text, "say why") {
		t.Errorf("without a reason: %d %s", status, text)
	}
	form.Set("reason", "incident")
	if status, text := a.post("/do/queues/pause", form.Encode()); status != 200 {
		t.Errorf("once: %d %s", status, text)
	}
	if status, text := a.post("/api/queues/resume", `{"queue": "pay"}`); status != 200 || !strings.Contains(text, "resumed") {
		t.Errorf("resumed: %d %s", status, text)
	}
	if status, text := a.post("/do/queues/pause", form.Encode()); status != 409 || !strings.Contains(text, "done already") {
		t.Errorf("again: %d %s", status, text)
	}
	a.want(`SELECT count(*) = 0 FROM callq.call_pauses`)

	// A way back leads nowhere else.
	for _, back := range []string{"https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"} {
		if _, text := a.ask(http.MethodGet, "/do/queues/pause?queue=pay&back="+url.QueryEscape(back)); !strings.Contains(text, `<a href="/">Do nothing</a>`) {
			t.Errorf("back to %s: %s", back, text)
		}
	}
}

// Above 1,000 calls the number is typed, and a script says how many it expects.
func TestManyCalls(t *testing.T) {
	t.Parallel()
	a := newActing(t, access.Operator)
	if _, err := a.pool.Exec(t.Context(), `INSERT INTO call_queue (queue) SELECT 'many' FROM generate_series(1, 1001)`); err != nil {
		t.Fatal(err)
	}
	if status, text := a.post("/api/calls/cancel", `{"queue": "many"}`); status != 409 || !strings.Contains(text, `\"expect\": 1001`) {
		t.Errorf("a script that does not say: %d %s", status, text)
	}
	form := a.form("/do/calls/cancel?queue=many")
	form.Set("reason", "a mistake")
	if status, text := a.post("/do/calls/cancel", form.Encode()); status != 400 || !strings.Contains(text, "type how many calls") {
		t.Errorf("not typed: %d %s", status, text)
	}
	form.Set("expect", "1000")
	if status, text := a.post("/do/calls/cancel", form.Encode()); status != 409 {
		t.Errorf("typed wrongly: %d %s", status, text)
	}
	form.Set("expect", "1,001")
	if status, text := a.post("/do/calls/cancel", form.Encode()); status != 200 || !strings.Contains(text, "1,001 of 1,001 calls cancelled") {
		t.Errorf("typed: %d %s", status, text)
	}
	a.want(`SELECT count(*) = 1001 FROM call_queue WHERE queue = 'many' AND status = 'cancelled'`)
	a.want(`SELECT array_agg(change ORDER BY id) = '{cancel of 1\,001 calls,cancelled 1\,001 of 1\,001}' FROM callq.call_audit`)
}

// A role that is too low is refused, on the server, and is shown no button.
func TestRoles(t *testing.T) {
	t.Parallel()
	for role, may := range map[access.Role]map[string]bool{
		access.Viewer:   {},
		access.Operator: {"queues/pause": true, "limits/pause": true, "calls/retry": true},
		access.Admin:    {"queues/pause": true, "limits/pause": true, "calls/retry": true, "limits/set": true},
	} {
		a := newActing(t, role)
		for name, body := range map[string]string{
			"queues/pause": `{"queue": "pay", "reason": "x"}`, "limits/pause": `{"limit": "api", "reason": "x"}`, "calls/retry": `{"ids": [1], "reason": "x"}`,
			"limits/set": `{"limit": "api", "rate": "3/1h", "reason": "x"}`,
		} {
			want := http.StatusForbidden
			if may[name] {
				want = http.StatusOK
			}
			if status, text := a.post("/api/"+name, body); status != want {
				t.Errorf("%s, %s: %d %s", role, name, status, text)
			}
			if want == http.StatusForbidden {
				if status, _ := a.ask(http.MethodGet, "/do/"+name+"?queue=pay&limit=api&ids=1"); status != want {
					t.Errorf("%s, the form of %s: %d", role, name, status)
				}
				if status, _ := a.post("/do/"+name, "queue=pay&limit=api&ids=1&reason=x&rate=3/1h"); status != want {
					t.Errorf("%s, %s by form: %d", role, name, status)
				}
			}
		}
		_, queue := a.ask(http.MethodGet, "/queues/pay")
		_, limit := a.ask(http.MethodGet, "/limits/api")
		if strings.Contains(queue, "/do/") != (role > access.Viewer) || strings.Contains(limit, "/do/limits/set") != (role == access.Admin) {
			t.Errorf("%s: buttons of who may, and others not", role)
		}
		if refusals := strings.Count(a.log.String(), "request refused"); (refusals > 0) == (role == access.Admin) {
			t.Errorf("%s: %d refusals logged", role, refusals)
		}
	}
	a := newActing(t, access.Admin)
	if status, _ := a.post("/api/queues/pause", `{"queue": "pay"}`, func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }); status != http.StatusForbidden {
		t.Errorf("from another site: %d", status)
	}
	a.want(`SELECT count(*) = 0 FROM callq.call_pauses`)
}

// Who leaves before an action has ended does not stop it.
func TestActionGoesOn(t *testing.T) {
	t.Parallel()
	a := newActing(t, access.Operator)
	tx, err := a.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM call_queue WHERE id = 4 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan int)
	go func() {
		status, _ := a.post("/api/calls/cancel", `{"ids": [4], "reason": "x"}`, func(r *http.Request) { *r = *r.WithContext(ctx) })
		left <- status
	}()
	a.eventually(`SELECT count(*) = 1 FROM callq.call_audit`)
	leave()
	if status := <-left; status == http.StatusOK {
		t.Errorf("it has ended: %d", status)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.eventually(`SELECT status = 'cancelled' FROM call_queue WHERE id = 4`)
}

func (a *acting) eventually(sql string) {
	a.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var holds bool
		err := a.pool.QueryRow(a.t.Context(), sql).Scan(&holds)
		if err != nil || time.Now().After(deadline) {
			a.t.Fatalf("does not come to hold: %s, %v", sql, err)
		}
		if holds {
			return
		}
	}
}
