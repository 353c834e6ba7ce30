package main

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/migrations"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.do("migrate", "down", "--yes")
	w.empty()
	w.refuses(0, "nothing to take back", "migrate", "down", "--yes")

	applied := make([]int, 4)
	var all sync.WaitGroup
	for i := range applied {
		all.Go(func() {
			applied[i] = len(decode[[]migrations.Migration](t, w.do("migrate", "up", "-o", "json")))
		})
	}
	all.Wait()
	sum := 0
	for _, n := range applied {
		sum += n
	}
	if want := len(decode[[]migrations.Migration](t, w.do("migrate", "status", "-o", "json"))); sum != want {
		t.Errorf("four at once applied %v steps, want %d in all", applied, want)
	}
}

// The SQL for other tools leaves a database that callq takes for its own.
func TestMigrateSQL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	text := w.do("migrate", "sql")
	w.empty()
	w.exec(text)
	for _, m := range decode[[]migrations.Migration](t, w.do("migrate", "status", "-o", "json")) {
		if !m.Applied {
			t.Errorf("%s is not applied", m.File)
		}
	}
	w.do("migrate", "up")
	w.do("enqueue")
	w.do("verify")
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stdin = `{"a": 1}`
	id := strings.TrimSpace(w.do("enqueue", "send_email", "--queue", "mail", "--key", "k", "--cost", "3", "--priority", "0",
		"--in", "1d", "--unique", "u", "--max-attempts", "7", "--data", "-"))
	call := decode[shown](t, w.do("calls", "get", id, "-o", "json"))
	if call.Queue != "mail" || call.Task != "send_email" || call.Key != "k" || call.Cost != 3 || call.Priority != 0 ||
		*call.UniqueKey != "u" || *call.MaxAttempts != 7 || string(call.Data) != "{\n    \"a\": 1\n  }" {
		t.Errorf("written: %+v %s", call.Record, call.Data)
	}
	if in := call.RunAt.Sub(call.CreatedAt); in < 24*time.Hour-time.Minute || in > 24*time.Hour+time.Minute {
		t.Errorf("runs in %s, want a day", in)
	}

	a := w.run("enqueue", "--queue", "mail", "--unique", "u")
	if a.code != 0 || strings.TrimSpace(a.stdout) != id || !strings.Contains(a.stderr, "not inserted") {
		t.Errorf("a duplicate: exit code %d, stdout %q, stderr %q", a.code, a.stdout, a.stderr)
	}
	for _, flag := range []string{"--cost", "--max-attempts"} {
		for _, few := range []string{"0", "-1"} {
			if a := w.run("enqueue", flag, few); a.code != 2 {
				t.Errorf("%s %s: exit code %d, stderr %q", flag, few, a.code, a.stderr)
			}
		}
	}
}

func TestEnqueueFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `{"key": "k%d", "call_data": {"n": %d}}`+"\n\n", i%7, i)
		}
		return b.String()
	}
	for _, test := range []struct {
		name, lines, words string
		code, inserted     int
	}{
		{"many", many(2500), "2500 calls inserted", 0, 2500},
		{"none", "\n", "0 calls inserted", 0, 0},
		{"the last is not JSON", many(1500) + `{"key": "k"`, "call 1501: unexpected EOF", 2, 0},
		{"an unknown field", `{"qeue": "a"}`, `call 1: json: unknown field "qeue"`, 2, 0},
		{"a wrong type", "{}\n" + `{"cost": "3"}`, "call 2: json: cannot unmarshal string", 2, 0},
		{"not an object", "null", "call 1: not a JSON object", 2, 0},
		{"not an object, behind one", "{} [1]", "call 2: not a JSON object", 2, 0},
		{"not a time", `{"run_at": "noon"}`, `call 1: parsing time "noon"`, 2, 0},
		{"out of range", many(1200) + `{"priority": 12}`, "call 1201: Priority is 12", 2, 0},
		{"a cost below nothing", `{"cost": -1}`, "call 1: Cost is -1", 2, 0},
		{"a cost of nothing", `{"cost": 0}`, "call 1: cost is 0", 2, 0},
		{"no attempts", "{}\n" + `{"max_attempts": 0}`, "call 2: max_attempts is 0", 2, 0},
		{"expires before it is due", `{"run_at": "2031-01-01T00:00:00Z", "expires_at": "2030-01-01T00:00:00Z"}`, "call 1: ExpiresAt is before it is due", 2, 0},
		{"data too large", many(3) + `{"call_data": "` + strings.Repeat("x", 300<<10) + `"}`, "call 4: Data is too large", 2, 0},
		{"data that jsonb does not take", many(3) + `{"call_data": "\u0000"}`, "call 4: the call was refused by Postgres", 2, 0},
		{"not UTF-8", `{"key": "` + "\xff" + `"}`, "call 1: not a JSON object in UTF-8", 2, 0},
		{"what is left out, as null", `{"queue": null, "call_data": null, "cost": null, "priority": null, "max_attempts": null, "run_at": null}`, "1 calls inserted", 0, 1},
		{"twice the same unique key", strings.Repeat(`{"unique_key": "u"}`+"\n", 2) + "{}", "2 calls inserted, 1 duplicates", 0, 2},
	} {
		w.stdin = test.lines
		before := one[int](w, `SELECT count(*) FROM call_queue`)
		a := w.run("enqueue", "--from", "-")
		if a.code != test.code || !strings.Contains(a.stderr, test.words) {
			t.Errorf("%s: exit code %d, want %d with %q:\n%.500s", test.name, a.code, test.code, test.words, a.stderr)
		}
		if got := one[int](w, `SELECT count(*) FROM call_queue`) - before; got != test.inserted {
			t.Errorf("%s: %d calls are there, want %d", test.name, got, test.inserted)
		}
	}
}

// enqueue --wait prints and exits as its calls end. Here Postgres ends them.
func TestEnqueueWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`
		CREATE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			NEW.status := CASE NEW.task WHEN 'http' THEN 'done' ELSE NEW.task END; NEW.finished_at := now(); RETURN NEW;
		END $$;
		CREATE TRIGGER ends BEFORE INSERT ON call_queue FOR EACH ROW EXECUTE FUNCTION ends()`)
	w.stdin = "{}\n" + `{"task": "failed"}`
	for _, test := range []struct {
		args  string
		code  int
		words string
	}{
		{"--wait", 0, "1   done"},
		{"--wait -o json", 0, `"status": "done"`},
		{"failed --wait", 1, "1 of 1 calls are not done"},
		{"new --wait --timeout 2s", 1, "not all have ended after 2s"},
		{"--from - --wait", 1, "1 of 2 calls are not done"},
	} {
		a := w.run(append([]string{"enqueue"}, strings.Fields(test.args)...)...)
		if a.code != test.code || !strings.Contains(a.stdout+a.stderr, test.words) {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s%s", test.args, a.code, test.code, test.words, a.stdout, a.stderr)
		}
	}
}

// A Postgres that goes away while a command waits for calls is what the exit code says.
func TestWaitWithoutPostgres(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w
	server.postgres = strings.Replace(w.postgres, "/"+one[string](w, `SELECT current_database()`), "/postgres", 1)
	id := strings.TrimSpace(w.do("enqueue"))
	name := one[string](w, `SELECT quote_ident(current_database())`)
	go func() {
		eventually(t, "it asks", func() bool {
			return one[bool](server, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE quote_ident(datname) = $1 AND query LIKE '%status NOT IN%')`, name)
		})
		server.exec(`ALTER DATABASE ` + name + ` ALLOW_CONNECTIONS false`)
		server.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE quote_ident(datname) = '` + name + `'`)
	}()
	if a := w.run("calls", "wait", id, "--timeout", "3s"); a.code != exitUnreachable {
		t.Errorf("exit code %d, want %d\n%s%s", a.code, exitUnreachable, a.stdout, a.stderr)
	}
	server.exec(`ALTER DATABASE ` + name + ` ALLOW_CONNECTIONS true`)
}

// Flags say what lines leave out; a repeated file changes nothing and gives the same ids.
func TestEnqueueFileAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stdin = `{"unique_key": "a"}` + "\n" + `{"unique_key": "b", "queue": "other", "priority": null}`
	args := []string{"enqueue", "mail", "--queue", "q", "--priority", "2", "--from", "-", "-o", "json"}
	first := decode[[]inserted](t, w.do(args...))
	again := decode[[]inserted](t, w.do(args...))
	if len(first) != 2 || len(again) != 2 {
		t.Fatalf("ids %v, then %v", first, again)
	}
	for i := range first {
		if first[i].Duplicate || !again[i].Duplicate || first[i].ID != again[i].ID {
			t.Errorf("line %d: %v, then %v", i+1, first[i], again[i])
		}
	}
	for i, queue := range []string{"q", "other"} {
		call := decode[shown](t, w.do("calls", "get", fmt.Sprint(first[i].ID), "-o", "json"))
		if call.Queue != queue || call.Task != "mail" || call.Priority != 2 {
			t.Errorf("line %d: %+v", i+1, call.Record)
		}
	}
}

// Two files with the same unique keys in opposite order are both inserted: neither ends with a deadlock.
func TestEnqueueFilesInOppositeOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 1500
	up, down := w, w
	for i := range n {
		up.stdin += fmt.Sprintf(`{"unique_key": "k%d"}`+"\n", i)
		down.stdin += fmt.Sprintf(`{"unique_key": "k%d"}`+"\n", n-1-i)
	}
	var both sync.WaitGroup
	for _, w := range []world{up, down} {
		both.Go(func() { w.do("enqueue", "--from", "-") })
	}
	both.Wait()
	if got := one[int64](w, `SELECT count(*) FROM call_queue`); got != n {
		t.Errorf("%d calls, want %d", got, n)
	}
}

func TestCallsList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO call_queue (queue, key, run_at) SELECT 'q' || i % 2, 'k' || i % 3, 'infinity' FROM generate_series(1, 10) AS i`)
	w.exec(`UPDATE call_queue SET status = 'failed', failed_at = now(), finished_at = now(), error_message = E'gave\n\x1b[31mup' WHERE id = 4`)
	ids := func(args ...string) string {
		var b strings.Builder
		for _, c := range decode[[]admin.Call](t, w.do(append([]string{"calls", "list", "-o", "json"}, args...)...)) {
			fmt.Fprintf(&b, "%d ", c.ID)
		}
		return strings.TrimSpace(b.String())
	}
	for _, test := range []struct{ args, want string }{
		{"", "10 9 8 7 6 5 4 3 2 1"},
		{"--limit 3", "10 9 8"},
		{"--limit 3 --before 8", "7 6 5"},
		{"--queue q1", "9 7 5 3 1"},
		{"--queue q1 --key k0", "9 3"},
		{"--status failed", "4"},
		{"--status failed,new --limit 7", "10 9 8 7 6 5 4"},
		{"--status new --before 6", "5 3 2 1"},
		{"--key=", ""},
		{"--task mail", ""},
	} {
		if got := ids(strings.Fields(test.args)...); got != test.want {
			t.Errorf("calls list %s: %s, want %s", test.args, got, test.want)
		}
	}
	for form, id := range map[string]string{"jsonl": `(?m)^\{"id":(\d+)`, "json": `(?m)^    "id": (\d+)`, "table": `(?m)^(\d+) `} {
		got := ""
		for _, found := range regexp.MustCompile(id).FindAllStringSubmatch(w.do("calls", "list", "-o", form), -1) {
			got += found[1]
		}
		if got != "10987654321" {
			t.Errorf("%s has the calls %s", form, got)
		}
	}
	if table := w.do("calls", "list"); !strings.Contains(table, "gave  [31mup") {
		t.Errorf("an error message drives the terminal: %q", table)
	}
}

// A call done without an attempt that is: verify names it and exits 3.
//
//callq:guarantee 6
func TestVerifyFinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO call_queue (queue) VALUES ('q')`)
	w.exec(`UPDATE call_queue SET status = 'done', finished_at = now()`)
	a := w.run("verify")
	if a.code != exitFindings || !strings.Contains(a.stdout, "the call is done, and no attempt is") {
		t.Errorf("exit code %d:\n%s%s", a.code, a.stdout, a.stderr)
	}
	a = w.run("verify", "-o", "json")
	if r := decode[verify.Report](t, a.stdout); a.code != exitFindings || len(r.Findings) == 0 || r.Findings[0].CallID != 1 {
		t.Errorf("exit code %d, findings %+v", a.code, r.Findings)
	}
}

// What a handler settled above its call's cost is said, and breaks no rule; calls get has it.
//
//callq:guarantee 6
func TestVerifySaysWhatWasSettledAbove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO call_queue (queue, cost) VALUES ('q', 8)`)
	w.exec(`UPDATE call_queue SET status = 'done', attempts = 1, dispatched_at = now(), finished_at = now()`)
	w.exec(`INSERT INTO call_attempts (call_id, attempt, cost, settled, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
		SELECT 1, 1, 8, 12, at, at, at, at, 'done', 'q', 'mine', '', jsonb_build_array(
			jsonb_build_object('limit', 'tokens', 'key', '', 'cost', 12, 'until', at))
		FROM (SELECT finished_at FROM call_queue) q (at)`)
	w.exec(`INSERT INTO callq.call_limits (name, version, rate, window_size, count_cost, slack, send_within, queues, applied_at, applied_by, epoch)
		VALUES ('tokens', 1, 10, '1 h', true, '1 s', '1 s', '{q}', now(), 'test', callq.epoch())`)
	w.exec(`INSERT INTO callq.call_limit_versions (limit_name, version, effective_from, rate, window_size, count_cost, slack, send_within, queues, applied_by)
		VALUES ('tokens', 1, now() - interval '1 h', 10, '1 h', true, '1 s', '1 s', '{q}', 'test')`)
	if out := w.do("verify"); !regexp.MustCompile(`8 of 10 +4\n`).MatchString(out) || !strings.Contains(out, "every rule holds") {
		t.Errorf("verify says\n%s", out)
	}
	if use := decode[verify.Report](t, w.do("verify", "-o", "json")).Limits[0]; use.Most != 8 || use.Above != 4 {
		t.Errorf("verify says %+v", use)
	}
	has(t, w.do("calls", "get", "1", "-o", "json"), `"settled": 12`)
}

// The screen names what waits for want of a queue or a worker.
func TestStatus(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = "limits: {api: {rate: 5/m}}\nqueues: {pay: {limits: [api]}}\n"
	w.exec(`INSERT INTO call_queue (queue, run_at) VALUES ('mial', '-infinity')`)
	for range 7 {
		w.exec(`INSERT INTO call_queue (queue) VALUES ('pay')`)
	}
	w.exec(`INSERT INTO call_queue (queue, task) VALUES ('pay', 'sms')`)
	w.exec(`INSERT INTO call_queue (queue, run_at) VALUES ('pay', now() + interval '1 hour')`)
	w.do("dispatch", "--once")
	w.do("dispatch", "--once")

	s := decode[admin.Status](t, w.do("status", "-o", "json"))
	queues := map[string]admin.Queue{}
	for _, q := range s.Queues {
		queues[q.Name] = q
	}
	if q := queues["mial"]; q.Configured || q.Due != 1 {
		t.Errorf("the queue that is in no configuration: %+v", q)
	}
	if q := queues["pay"]; !q.Configured || q.Due != 3 || q.Scheduled != 1 || q.Waiting != 4 || q.Dispatched != 5 {
		t.Errorf("the queue at its limit: %+v", q)
	}
	if l := s.Limits[0]; l.Name != "api" || l.Occupied != 5 || l.Room != 0 || l.State != "open" || l.Rate != "5 per 1m, sliding window" {
		t.Errorf("the limit: %+v", l)
	}
	if u := s.Unhandled; len(u) != 3 || u[0].Waiting != 3 || u[1].Queue != "mial" || u[2].Task != "sms" {
		t.Errorf("tasks that nobody handles: %+v", s.Unhandled)
	}
	if s.Oldest == nil || s.Oldest.ID != 1 {
		t.Errorf("the oldest: %+v", s.Oldest)
	}
	screen := w.do("status")
	has(t, screen, "not in the configuration", "no worker is alive", "no live worker handles task sms: 1 calls wait", "oldest due call: 1 in mial")
	w.config = "limits: {other: {rate: 5/m}}\n"
	w.do("dispatch", "--once")
	has(t, w.do("limits", "list"), "idle: no queue uses it")
}

// What it rests on is said beside the verdict, and a time since which is looked may be given.
//
//callq:guarantee 6
func TestVerifySaysWhatItRestsOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO callq.call_clock_gains (at, by) VALUES (now(), '70 s')`)
	w.exec(`INSERT INTO callq.call_meta (name, at) VALUES ('ledger', '2026-11-01T00:00:00Z')`)
	w.exec(`INSERT INTO callq.call_audit (by, what, name, change) VALUES ('ann', 'limit', 'api', 'opened: the API was asked')`)
	out := w.do("verify")
	has(t, out, "This rests on:", "arrived after 2026-11-01 00:00:00Z", "70 s at ", "api, by ann at ", "opened: the API was asked", "tables' owner")
	if r := decode[verify.Report](t, w.do("verify", "--since", "7d", "-o", "json")); r.Since == nil || len(r.RestsOn) < 4 {
		t.Errorf("since 7 days: %+v", r)
	}
	has(t, w.do("verify", "--since", "2026-11-20T00:00:00Z"), "2026-11-20 00:00:00Z")
	w.refuses(2, "24h", "verify", "--since", "yesterday")
}
