package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/doctor"
)

// Two processes with different files: the last applied holds, and the log, status and doctor say who has another. A
// restart with the former file turns nothing back; --apply does, and so does config apply.
func TestProcessesDiffer(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	const quiet = "http: {listen: 'off'}\n"
	former, newer := w, w
	former.config = quiet + "limits: {api: {rate: 10/1h}, own: {rate: 1/s}}\nqueues: {pay: {limits: [api]}, mail: {limits: [own]}}\n"
	newer.config = quiet + "limits: {api: {rate: 6/1h}}\nqueues: {pay: {limits: [api], max_attempts: 7}}\n"
	status := func() admin.Status { return decode[admin.Status](t, w.do("status", "-o", "json")) }
	if s := status(); s.Policy != nil {
		t.Errorf("in force is %+v before any was applied", s.Policy)
	}
	first := former.start("dispatch")
	w.holds("10 per 1h")
	if s := status(); len(s.Others) > 0 || len(s.Dispatchers) != 1 || s.Policy == nil || s.Policy.By != s.Dispatchers[0] {
		t.Errorf("one process: %+v, %q of %q", s.Policy, s.Others, s.Dispatchers)
	}
	second := newer.start("dispatch")
	w.holds("6 per 1h")
	differs := func(n int) {
		t.Helper()
		s := status()
		if len(s.Others) != n {
			t.Errorf("another file have %q, want %d", s.Others, n)
		}
		out, _ := w.doctor()
		for _, text := range []string{w.do("status"), out[slices.IndexFunc(out, func(f doctor.Finding) bool { return f.Check == "rules" })].What} {
			if !strings.Contains(text, "another configuration than the one in force, which "+s.Policy.By+" applied at ") {
				t.Errorf("that they differ is not said:\n%s", text)
			}
		}
	}
	differs(1)
	for _, d := range []*daemon{first, second} {
		eventually(t, "the log says that they differ", func() bool {
			return strings.Contains(d.stderr.String(), "dispatchers have another configuration than the one in force")
		})
	}

	again := former.start("dispatch")
	eventually(t, "the log says that it is not applied", func() bool {
		return strings.Contains(again.stderr.String(), "a newer configuration has replaced this one")
	})
	former.do("dispatch", "--once")
	w.holds("6 per 1h")
	differs(2)
	former.do("dispatch", "--once", "--apply")
	w.holds("10 per 1h")
	if out := newer.do("config", "apply"); !strings.Contains(out, "limit api: 6 per 1h") || !strings.Contains(out, "queue mail: removed") {
		t.Errorf("config apply says\n%s", out)
	}
	w.holds("6 per 1h")
	if out := newer.do("config", "apply"); !strings.HasSuffix(out, ": as it was\n") {
		t.Errorf("config apply again says\n%s", out)
	}
	if s := status(); !strings.Contains(s.Policy.By, "@") {
		t.Errorf("who applied is %q", s.Policy.By)
	}
	first.end()
	again.end()
	if out := w.do("status"); strings.Contains(out, "another configuration") {
		t.Errorf("nobody differs any more:\n%s", out)
	}
}

// Two workers with different http_task: status names the keys, what each has, and no secret's value.
func TestWorkersDiffer(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	const quiet = "http: {listen: 'off'}\nlog: {level: error}\n"
	key := filepath.Join(t.TempDir(), "key")
	must(t, os.WriteFile(key, []byte(secretCanary), 0o600))
	one, other := w, w
	one.config = quiet + "http_task: {hosts: [api.example.com]}\n"
	other.config = quiet + "http_task: {secrets: {KEY: {file: " + key + ", hosts: [api.example.com]}}}\n"
	one.start("work")
	eventually(t, "the first lives", func() bool { return len(decode[admin.Status](t, w.do("status", "-o", "json")).Workers) == 1 })
	if out := w.do("status"); strings.Contains(out, "differ") {
		t.Errorf("one worker differs from itself:\n%s", out)
	}
	other.start("work")
	eventually(t, "both live", func() bool { return len(decode[admin.Status](t, w.do("status", "-o", "json")).Workers) == 2 })
	var out string
	eventually(t, "status says so", func() bool { out = w.do("status"); return strings.Contains(out, "differ") })
	has(t, out, "live workers differ on http_task.hosts (", `: ["api.example.com"]; `, ": [])",
		"live workers differ on http_task.secrets (", `: {"KEY": ["api.example.com"]})`)
	if strings.Contains(out, "http_task.store") || strings.Contains(out, "canary") {
		t.Errorf("status names what is the same, or a secret:\n%s", out)
	}
}

// What the file has of budgets is in force, and status says what is free.
func TestStatusShowsBudgets(t *testing.T) {
	t.Parallel()
	w, server := newWorld(t).withRedis()
	const quiet = "http: {listen: 'off'}\nlog: {level: error}\n"
	wide, newer := w, w
	wide.config = quiet + "budgets: {mail: {rate: 1/h}, search-api: {rate: 2/h, burst: 40, on_outage: open}}\n"
	newer.config = quiet + "budgets: {search-api: {rate: 1/h, burst: 40}}\nqueues: {agents: {needs: {search-api: 38}}}\n"
	budgets := func() map[string]admin.Budget {
		rows := map[string]admin.Budget{}
		for _, b := range decode[admin.Status](t, w.do("status", "-o", "json")).Budgets {
			rows[b.Name] = b
		}
		return rows
	}
	if n := len(budgets()); n > 0 {
		t.Errorf("%d budgets before any was published", n)
	}
	wide.start("dispatch")
	eventually(t, "they are in force", func() bool { return len(budgets()) == 2 })

	options, err := redis.ParseURL(server.URL())
	must(t, err)
	client := redis.NewClient(options)
	defer client.Close()
	search, mail := budgets()["search-api"], budgets()["mail"]
	if _, err := budget.Draw(t.Context(), client, "", 0, budget.Units{Name: "search-api", Rule: search.Rule(), N: 3}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := budget.Draw(t.Context(), client, "", budget.Forever, budget.Units{Name: "mail", Rule: mail.Rule(), N: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if b := budgets()["search-api"]; b.Free == nil || *b.Free != 37 || b.Waiting != 0 || b.Rate != "2 per 1h" || b.Burst != 40 || b.OnOutage != "open" {
		t.Errorf("search-api is %+v", b)
	}
	if b := budgets()["mail"]; b.Free == nil || *b.Free != 0 || b.Waiting < 50*time.Minute || b.OnOutage != "closed" || b.Burst != 1 {
		t.Errorf("mail is %+v", b)
	}
	out := strings.Join(strings.Fields(w.do("status")), " ")
	has(t, out, "BUDGET RATE BURST ON OUTAGE FREE mail 1 per 1h 1 closed 0; draws wait for up to ", "search-api 2 per 1h 40 open 37")

	newer.do("config", "apply")
	if b := budgets()["search-api"]; len(budgets()) != 1 || b.Units != 1 || b.OnOutage != "closed" {
		t.Errorf("search-api is %+v", b)
	}

	has(t, strings.Join(strings.Fields(w.do("status")), " "), "search-api 1 per 1h 40 closed 37; too few for a call of agents (38)")
	w.do("enqueue", "http", "--queue", "agents")
	has(t, w.do("calls", "why", "1"), "each call of queue agents needs 38 of budget search-api, of which 37 are free and 0 of these promised; they suffice in about ")
	has(t, w.run("doctor").stdout, "ok       budgets\n")

	refused := w
	refused.config = quiet + "budgets: {mail: {rate: 1/h}, search-api: {rate: 2/h}}\nqueues: {agents: {needs: {search-api: 1}}}\n"
	_, err = client.TxPipelined(t.Context(), func(p redis.Pipeliner) error { // between the two nothing is claimed
		p.Del(t.Context(), "callq:budget:{search-api}")
		p.LPush(t.Context(), "callq:budget:{search-api}", "x")
		return nil
	})
	must(t, err)
	refused.do("config", "apply")
	has(t, w.do("calls", "why", "1"), "of which nothing is known: WRONGTYPE ", "delete that key")
	has(t, w.run("doctor").stdout, "problem  budgets: draws on search-api fail: WRONGTYPE ", "fix: something else wrote to the budget's key in Redis: delete that key")
	has(t, w.do("status"), "mail  ", " 0; draws wait")
	newer.do("config", "apply")

	server.Kill()
	has(t, w.do("calls", "why", "1"), "of which nothing is known: ")
	if out := w.do("status"); strings.Count(out, "unknown: ") != 1 {
		t.Errorf("without Redis it does not say that what is free is unknown:\n%s", out)
	}
	if b := budgets()["search-api"]; b.Free != nil {
		t.Errorf("without Redis %d are free", *b.Free)
	}
}
