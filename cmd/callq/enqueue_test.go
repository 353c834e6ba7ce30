package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

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
		{"many", many(2500), "2,500 calls inserted", 0, 2500},
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
		{"what is left out, as null", `{"queue": null, "call_data": null, "cost": null, "priority": null, "max_attempts": null, "run_at": null}`, "1 call inserted", 0, 1},
		{"twice the same unique key", strings.Repeat(`{"unique_key": "u"}`+"\n", 2) + "{}", "2 calls inserted, 1 duplicate", 0, 2},
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
		{"failed --wait", 1, "1 of 1 call is not done"},
		{"new --wait --timeout 2s", 1, "not all have ended after 2s"},
		{"--from - --wait", 1, "1 of 2 calls is not done"},
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

// A call done without an attempt that is: verify names it and exits 3.
//
//callq:guarantee 6

// What a handler settled above its call's cost is said, and breaks no rule; calls get has it.
//
//callq:guarantee 6

// What it rests on is said beside the verdict, and a time since which is looked may be given.
//
//callq:guarantee 6
