package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/pgtest"
)

// page is docs/producers.md, and who runs its statements.
type page struct {
	t    *testing.T
	text string
	api  string // stands in for the API of the page
	conn *pgconn.PgConn
}

// block is the code block of the page that begins so.
func (p *page) block(info string) string {
	p.t.Helper()
	_, rest, found := strings.Cut(p.text, "\n```"+info+"\n")
	code, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		p.t.Fatalf("docs/producers.md has no block %q", info)
	}
	return strings.ReplaceAll(code, "https://api.example.com", p.api)
}

// runs runs statements as their writers' drivers do: as they are, or with texts for $1, ….
func (p *page) runs(sql string, args ...string) {
	p.t.Helper()
	var err error
	if len(args) == 0 {
		_, err = p.conn.Exec(p.t.Context(), sql).ReadAll()
	} else {
		values := make([][]byte, len(args))
		for i, arg := range args {
			values[i] = []byte(arg)
		}
		err = p.conn.ExecParams(p.t.Context(), sql, values, nil, nil, nil).Read().Err
	}
	if err != nil {
		p.t.Fatalf("%v\n%s", err, sql)
	}
}

// What docs/producers.md says is so: each statement, run as the role that it names, makes the calls it
// says; a daemon without any right to the schema makes them, and a viewer sees them.
//
//callq:guarantee 13
func TestProducersPage(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort + "limits: {api: {rate: 100/1s, per: key}}\nqueues: {payments: {limits: [api]}}\n"
	logins := pgtest.NewLogins(t, w.postgres)
	w.exec(`CREATE TABLE orders (id bigint, account bigint)`)
	w.exec(`GRANT SELECT, INSERT ON orders TO ` + logins.Prefix + `_producer`)
	var mu sync.Mutex
	arrived := map[string]bool{} // Callq-Call-Id
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		arrived[r.Header.Get("Callq-Call-Id")] = true
	}))
	t.Cleanup(api.Close)
	daemon, viewer := w, w
	daemon.postgres, viewer.postgres = logins.Daemon, logins.Viewer
	d := daemon.startReady("serve")

	p := openPage(t, api.URL, logins.Producer)
	charge := func(order int) string { // as jsonb has it
		return fmt.Sprintf(`{"url":"%s/charges","json":{"order":%d},"method":"POST"}`, api.URL, order)
	}
	p.runs(p.block("sql psql"))
	p.runs(p.block("sql outbox"))
	p.runs(p.block("sql many"))
	p.runs(p.block("sql django"))
	p.runs(p.block("sql rails"), "payments", "acct_42", charge(4711))
	copySQL, csv := p.block("sql copy"), p.block("csv")
	if _, err := p.conn.CopyFrom(t.Context(), strings.NewReader(csv), copySQL); err != nil {
		t.Fatal(err)
	}
	later := p.block("sql later")
	p.runs(later)
	p.runs(later) // a duplicate: nothing
	p.runs(p.block("sql wake"))
	p = openPage(t, api.URL, logins.Enqueuer)
	p.runs(p.block("sql call"))
	js := regexp.MustCompile(`(?s)client\.query\(\s*'([^']*)'`).FindStringSubmatch(p.block("js"))
	if js == nil {
		t.Fatal("the js block has no query")
	}
	p.runs(js[1], "http", charge(4711), "payments", "acct_42", "order-4712 by SQL")
	p.runs(p.block("sql wake"))

	copied := func(order int) string { return fmt.Sprintf(`{"url":"%s/charges?order=%d"}`, api.URL, order) }
	type row struct {
		queue, key, data string
		priority         int
	}
	want := map[row]int{
		{"payments", "acct_42", charge(4711), 5}: 5, // psql, django, rails, call, js
		{"payments", "acct_42", charge(4713), 5}: 2, // outbox, and many, which reads what it wrote
		{"payments", "acct_42", copied(4711), 5}: 1,
		{"payments", "acct_43", copied(4712), 9}: 1,
	}
	total := 0
	for _, n := range want {
		total += n
	}
	eventually(t, "the calls are done", func() bool {
		return len(decode[[]admin.Call](t, viewer.do("calls", "list", "--status", "done", "-o", "json"))) == total
	})
	mu.Lock()
	defer mu.Unlock()
	got := map[row]int{}
	for _, c := range decode[[]admin.Call](t, viewer.do("calls", "list", "-o", "json")) {
		call := decode[shown](t, viewer.do("calls", "get", fmt.Sprint(c.ID), "-o", "json"))
		if call.Status == callqueue.StatusNew {
			in := call.RunAt.Sub(call.CreatedAt)
			if in != time.Hour || call.ExpiresAt == nil || *call.UniqueKey != "reminder-4711" {
				t.Errorf("later: %+v", call.Record)
			}
			continue
		}
		if call.Task != "http" || call.Cost != 1 || call.FailedCount != 0 || call.MaxAttempts != nil ||
			call.ExpiresAt != nil || !arrived[fmt.Sprint(c.ID)] {
			t.Errorf("not as the page says: %+v, %s", call.Record, call.Data)
		}
		var data bytes.Buffer
		must(t, json.Compact(&data, call.Data))
		got[row{call.Queue, call.Key, data.String(), call.Priority}]++
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(row{})); diff != "" {
		t.Errorf("the calls: %s", diff)
	}
	if s := decode[admin.Status](t, viewer.do("status", "-o", "json")); len(s.Workers) != 1 || !s.Workers[0].Live {
		t.Errorf("a viewer's status: %+v", s.Workers)
	}
	viewer.do("verify")
	if code := d.end(); code != 0 {
		t.Errorf("the daemon ended with exit code %d\n%s", code, d.stderr.String())
	}
	if log := d.stderr.String(); strings.Contains(log, "42501") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the daemon's log:\n%s", log)
	}
}

func openPage(t *testing.T, api, database string) *page {
	t.Helper()
	text, err := os.ReadFile("../../docs/producers.md")
	must(t, err)
	conn, err := pgx.Connect(t.Context(), database)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return &page{t: t, text: string(text), api: api, conn: conn.PgConn()}
}

// The page's Go is that of an example, which is compiled.
func TestProducersPageGo(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("../../callqueue/example_test.go")
	must(t, err)
	page, err := os.ReadFile("../../docs/producers.md")
	must(t, err)
	_, rest, _ := strings.Cut(string(page), "\n```go\n")
	code, _, _ := strings.Cut(rest, "```")
	if code == "" || !strings.Contains(wordsOf(string(example)), wordsOf(code)) {
		t.Errorf("callqueue/example_test.go does not hold the page's Go:\n%s", code)
	}
}

// An explicit NULL in any column a producer may set is its default, from the insert to the ledger;
// and so is a model's whole row, callq's columns too, as the owner of the tables may send it.
func TestExplicitNulls(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort + "queues: {default: {}, other: {max_attempts: 1}}\n"
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/fails" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(api.Close)
	done := callqueue.Progress{Status: callqueue.StatusDone}
	given := callqueue.Record{Queue: "other", Task: "http", Key: "k", Cost: 7, Priority: 3, Progress: done}
	defaults := callqueue.Record{Queue: "default", Task: "http", Cost: 1, Priority: 5, Progress: done}
	fails := func(r *callqueue.Record) { r.Status, r.FailedCount = callqueue.StatusFailed, 1 }
	const ago = time.Hour // run_at, where it is given
	cases := []struct {
		column, value string
		runAgo        time.Duration
		want          func(*callqueue.Record)
	}{
		{"queue", "'other'", ago, func(r *callqueue.Record) { r.Queue = "default" }},
		{"task", "'http'", ago, func(*callqueue.Record) {}},
		{"key", "'k'", ago, func(r *callqueue.Record) { r.Key = "" }},
		{"cost", "7", ago, func(r *callqueue.Record) { r.Cost = 1 }},
		{"priority", "3", ago, func(r *callqueue.Record) { r.Priority = 5 }},
		{"run_at", "now() - interval '1 hour'", 0, func(*callqueue.Record) {}},
		{"expires_at", "now() + interval '1 day'", ago, func(*callqueue.Record) {}},
		{"unique_key", "'u'", ago, func(*callqueue.Record) {}},
		{"max_attempts", "2", ago, fails},                         // once, which is enough for the queue
		{"call_data", `'{"url": "` + api.URL + `"}'`, ago, fails}, // {} has no url
	}
	var columns []string
	for _, c := range cases {
		columns = append(columns, c.column)
	}
	insert := func(values []string) {
		w.exec(fmt.Sprintf("INSERT INTO call_queue (%s) VALUES (%s)", strings.Join(columns, ", "), strings.Join(values, ", ")))
	}
	for i, null := range columns {
		var values []string
		for _, c := range cases {
			switch {
			case c.column == null:
				values = append(values, "NULL")
			case c.column == "unique_key":
				values = append(values, fmt.Sprintf("'u%d'", i))
			case c.column == "call_data" && null == "max_attempts":
				values = append(values, `'{"url": "`+api.URL+`/fails"}'`)
			default:
				values = append(values, c.value)
			}
		}
		insert(values)
	}
	insert(slices.Repeat([]string{"NULL"}, len(columns)))
	w.exec(`INSERT INTO call_queue (status, attempts, failed_count, max_attempts, expires_at, dispatched_at, finished_at,
		failed_at, queue, task, key, cost, priority, unique_key, error_message, call_data)
		VALUES ('new', 0, 0, NULL, NULL, NULL, NULL, NULL, 'default', 'http', '', 1, 5, NULL, NULL,
		'{"url": "` + api.URL + `"}')`)

	w.startReady("serve")
	eventually(t, "the calls have ended", func() bool {
		ended := decode[[]admin.Call](t, w.do("calls", "list", "--status", "done,failed", "-o", "json"))
		return len(ended) == len(columns)+2
	})
	check := func(id int, name string, want callqueue.Record, runAgo time.Duration) {
		call := w.get(fmt.Sprint(id))
		got := callqueue.Record{
			Queue: call.Queue, Task: call.Task, Key: call.Key, Cost: call.Cost, Priority: call.Priority,
			Progress: callqueue.Progress{Status: call.Status, FailedCount: call.FailedCount},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if call.Attempts != 1 || len(call.Ledger) != 1 || call.Ledger[0].Cost != want.Cost {
			t.Errorf("%s: %d attempts, with the ledger: %+v", name, call.Attempts, call.Ledger)
		}
		if got := call.CreatedAt.Sub(call.RunAt); got != runAgo && want.Status == done.Status {
			t.Errorf("%s: due %s before it was inserted, want %s", name, got, runAgo)
		}
	}
	for i, c := range cases {
		want := given
		c.want(&want)
		check(i+1, "NULL in "+c.column, want, c.runAgo)
	}
	check(len(columns)+2, "callq's columns too", defaults, 0)
	fails(&defaults)
	check(len(columns)+1, "NULL in every column", defaults, 0)
	w.do("verify")
}

func wordsOf(text string) string { return strings.Join(strings.Fields(text), " ") }

// A database in LATIN1 is sent UTF-8, and sends it. What it cannot hold is refused where it is enqueued, and keeps no
// call from ending.
func TestLatin1Database(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = "http: {listen: \"127.0.0.1:0\"}\nhttp_task: {allow_private: true, store: all}\nqueues: {default: {max_attempts: 1}}\n"
	server, err := url.Parse(w.postgres)
	must(t, err)
	name := strings.TrimPrefix(server.Path, "/") + "_latin1"
	w.exec(`CREATE DATABASE ` + name + ` ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	inUTF8 := w
	t.Cleanup(func() { inUTF8.exec(`DROP DATABASE ` + name + ` WITH (FORCE)`) })
	server.Path = "/" + name
	w.postgres = server.String()
	w.do("migrate", "up")
	w.spawn("serve").ready()

	asked := make(chan string, 10)
	api := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked <- string(body)
		_, _ = io.WriteString(answer, r.URL.Query().Get("answer"))
	}))
	t.Cleanup(api.Close)
	garbled := answers(t, "日本\r\n\r\n")

	ended := func(data string, status callqueue.Status) string {
		t.Helper()
		id := strings.TrimSpace(w.do("enqueue", "--data", data))
		eventually(t, "the call has ended", func() bool { return w.get(id).Status == status })
		return w.do("calls", "get", id, "-o", "json")
	}
	if out := ended(`{"url": "`+api.URL+`?answer=naïve", "method": "POST", "body": "é"}`, callqueue.StatusDone); <-asked != "é" || !strings.Contains(out, "naïve") {
		t.Errorf("of é and naïve is left: %s", out)
	}
	if out := ended(`{"url": "`+api.URL+`?answer=%E6%97%A5", "method": "POST"}`, callqueue.StatusDone); strings.Contains(out, "日") {
		t.Errorf("LATIN1 has 日: %s", out)
	}
	has(t, ended(`{"url": "http://`+garbled+`"}`, callqueue.StatusFailed), `\\u65e5\\u672c`)
	if a := w.run("enqueue", "--data", `{"url": "`+api.URL+`", "body": "日本"}`); a.code == exitDone || !strings.Contains(a.stderr, "LATIN1") {
		t.Errorf("enqueued what LATIN1 does not have: %d %s", a.code, a.stderr)
	}
	if encoding := one[string](w, `SHOW server_encoding`); encoding != "LATIN1" {
		t.Errorf("the database's encoding is %s, so that this shows nothing", encoding)
	}
}
