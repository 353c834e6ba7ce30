package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/callq/callq/internal/admin"
)

// callsSQL makes call 1 done, 2 failed, 3 cancelled, 4 cancelled while it runs, 5 to 7 new, 8 handed over, 9 failed
// with another key.
const callsSQL = `
INSERT INTO call_queue (queue, status, attempts, failed_count, key, error_message, finished_at, failed_at, run_at) VALUES
    ('pay', 'done', 1, 0, 'k', NULL, now(), NULL, now()),
    ('pay', 'failed', 1, 1, 'k', 'busy', now(), now(), now()),
    ('pay', 'cancelled', 0, 0, 'k', NULL, now(), NULL, now()),
    ('pay', 'cancelled', 1, 0, 'k', NULL, now(), NULL, now()),
    ('pay', 'new', 0, 0, 'k', NULL, NULL, NULL, now()),
    ('pay', 'new', 0, 0, '', NULL, NULL, NULL, 'infinity'),
    ('mail', 'new', 0, 0, '', NULL, NULL, NULL, now()),
    ('pay', 'dispatched', 1, 0, 'k', NULL, NULL, NULL, now()),
    ('pay', 'failed', 0, 0, 'l', 'cost is 7', now(), now(), now());
UPDATE call_queue SET dispatched_at = now() WHERE attempts > 0;
INSERT INTO call_attempts (call_id, attempt, requests, code, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
SELECT id, 1, 1, CASE id WHEN 2 THEN 503 END, 1, now(), now(), now(), now(), CASE id WHEN 1 THEN 'done' ELSE 'error' END, 'pay', 'http', 'k', '[]' FROM call_queue WHERE id IN (1, 2);
INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, started_at, token, deadline, worker, epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, 1, 0, 1, 1, now(), now(), now() + interval '30 s', CASE id WHEN 4 THEN now() END, CASE id WHEN 4 THEN 7 END, CASE id WHEN 4 THEN now() + interval '1 h' END,
    CASE id WHEN 4 THEN 'w1' END, callq.epoch(), 'http', 'pay', 'http', 'k', '{}', '{}', '{}'
FROM call_queue WHERE id IN (4, 8)`

// Every verb of calls: what it answers to good use, to an id that there is not, and to a bad flag.
func TestCallsCommands(t *testing.T) {
	t.Parallel()
	type use struct {
		args  string
		code  int
		words string // in what is written, stdout first
	}
	uses := []use{
		{"list", 0, "cancelled, running"},
		{"list --status done,failed --queue pay --key k --task http -o jsonl", 0, `"error_message":"busy"`},
		{"list --key=", 0, "mail"},
		{"list --limit 2 --before 9", 0, "the next page: --before 7"},
		{"list --queue none -o json", 0, "[]"},
		{"list --code 402,5xx -o jsonl", 0, `"code":503`},
		{"list --code 200 -o json", 0, "[]"},
		{"list --code 40", 2, `"40" is no HTTP status`},
		{"list --status running", 2, "cancelled"},
		{"list --status=", 2, `invalid argument "" for "--status" flag`},
		{"list --queue=", 2, "it is empty"},
		{"list --limit 10001", 2, "outside 1 to 10000"},
		{"list --before x", 2, `invalid argument "x" for "--before" flag`},
		{"get 1", 0, "attempts       1"},
		{"get 1 99 -o json", 4, "no such call: [99]"},
		{"get 1.5", 2, `"1.5" is not the id`},
		{"get", 2, "requires at least 1 arg(s)"},
		{"why 1", 0, "it is done since"},
		{"why 2 8 -o jsonl", 0, `"code":"no_worker"`},
		{"why 4 -o json", 0, `"code": "running"`},
		{"why 4 -o json", 0, `"code": "cancelled"`},
		{"why 99", 4, "no such call: [99]"},
		{"why 5 99 -o json", 4, `"no_queue"`},
		{"why 0", 2, `"0" is not the id`},
		{"wait 1", 0, "done"},
		{"wait 1 -o json", 0, `"status": "done"`},
		{"wait 1 4 -o jsonl", 1, `"status":"cancelled","running":true`},
		{"wait 1 2 9", 1, "2 of 3 calls are not done"},
		{"wait 2 99", 4, "busy"},
		{"wait 99", 4, "no such call: [99]"},
		{"wait 5 --timeout 2s", 1, "not all have ended after 2s"},
		{"wait 5 1 99 --timeout 2s -o jsonl", 1, `"status":"new"`},
		{"wait x", 2, `"x" is not the id`},
		{"retry 2", 0, "true"},
		{"retry 2 3 -o json", 0, `"changed": true`},
		{"retry 1 2", 1, "1 of 2 calls was not retried"},
		{"retry 1 --done", 0, "true"},
		{"retry 4", 1, "cancelled, running"},
		{"retry 2 99", 4, "no such call: [99]"},
		{"retry 2 --queue pay", 2, "either ids or a filter"},
		{"retry", 2, "which calls?"},
		{"retry --queue pay", 2, "retry 2 calls? this cannot be undone, and there is nobody to ask: give --yes"},
		{"retry --queue pay --yes", 0, "retried 2 of 2 calls"},
		{"retry --code 503 --yes", 0, "retried 1 of 1 call"},
		{"retry --queue pay --done --yes", 0, "retried 3 of 3 calls"},
		{"retry --status done --yes -o json", 0, `"retried": 1`},
		{"retry --status failed,cancelled --key k --yes", 0, "retried 2 of 3 calls"},
		{"retry --status new --yes", 2, `"--status" flag: this is for calls that are failed, cancelled, done`},
		{"cancel 5 8", 0, "true"},
		{"cancel 3", 0, "cancelled"},
		{"cancel 1 5", 1, "1 of 2 calls was not cancelled"},
		{"cancel 99 5 4 98", 4, "no such call: [99 98]"},
		{"cancel 5 1 3 -o jsonl", 1, `{"id":5,"changed":true,"status":"cancelled","open":false}` + "\n" + `{"id":1,"changed":false`},
		{"cancel 1 x", 2, `"x" is not the id of a call`},
		{"cancel", 2, "which calls?"},
		{"cancel -- -1", 2, `"-1" is not the id`},
		{"cancel --all", 2, "cancel 4 calls?"},
		{"cancel --all --yes", 0, "cancelled 4 of 4 calls"},
		{"cancel --status new --queue mail --yes", 0, "cancelled 1 of 1 call"},
		{"cancel --queue none", 0, "cancelled 0 of 0 calls"},
		{"cancel --status done --yes", 2, `"--status" flag: this is for calls that are new, error, dispatched`},
		{"cancel --status= --yes", 2, `invalid argument "" for "--status" flag`},
		{"delete 1 5 --yes", 0, "true"},
		{"delete 1 5", 2, "delete 2 calls? this cannot be undone"},
		{"delete 8 --yes", 1, "dispatched, running"},
		{"delete 99 --yes", 4, "no such call: [99]"},
		{"delete --all", 2, "delete 5 calls?"},
		{"delete --all --yes", 0, "deleted 4 of 5 calls"},
		{"delete --status new,failed --yes -o json", 0, `"deleted": 5`},
		{"delete --status dispatched --yes", 2, "this is for calls that are done, failed, cancelled, new, error"},
		{"delete --yes", 2, "which calls?"},
	}
	verbs := map[string][]use{} // those of a verb share a database
	for _, test := range uses {
		verb, _, _ := strings.Cut(test.args, " ")
		verbs[verb] = append(verbs[verb], test)
	}
	for verb, uses := range verbs {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, test := range uses {
				w.exec(`TRUNCATE call_queue, call_attempts, callq.call_open, callq.call_flows, callq.call_inbox RESTART IDENTITY;` + callsSQL)
				a := w.run(append([]string{"calls"}, strings.Fields(test.args)...)...)
				if all := a.stdout + a.stderr; a.code != test.code || !strings.Contains(all, test.words) {
					t.Errorf("%s: exit code %d, want %d with %q:\n%s", test.args, a.code, test.code, test.words, all)
				}
				if a.code == exitUsage && a.stdout != "" {
					t.Errorf("%s: on stdout: %s", test.args, a.stdout)
				}
				if a.code != exitUsage && slices.Contains([]string{"retry", "cancel", "delete"}, verb) {
					w.do("verify")
				}
			}
		})
	}
}

// By filter, many calls are changed in transactions of at most 500, all that were counted and none that
// came later; what still runs is left.
func TestChangeMany(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO call_queue (queue) SELECT 'q' || i % 2 FROM generate_series(1, 4800) AS i`)
	w.exec(`CREATE TABLE seen (rows bigint);
		CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen SELECT count(*) FROM new; RETURN NULL; END $$;
		CREATE TRIGGER see AFTER UPDATE ON call_queue REFERENCING NEW TABLE AS new FOR EACH STATEMENT EXECUTE FUNCTION see();
		CREATE FUNCTION more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO call_queue (queue) VALUES ('q1'); RETURN NULL; END $$;
		CREATE TRIGGER more AFTER UPDATE ON call_queue FOR EACH STATEMENT EXECUTE FUNCTION more()`)
	if out := w.do("calls", "cancel", "--queue", "q1", "--yes", "-o", "json"); out != "{\n  \"cancelled\": 2400,\n  \"matched\": 2400\n}\n" {
		t.Error(out)
	}
	if out := w.do("calls", "retry", "--status", "cancelled", "--yes"); out != "retried 2,400 of 2,400 calls\n" {
		t.Error(out)
	}
	w.exec(`DO $$ BEGIN ASSERT (SELECT max(rows) = 500 AND sum(rows) = 4800 FROM seen), 'more than 500 in a transaction'; END $$`)
	if out := w.do("calls", "delete", "--status", "new", "--queue", "q0", "--yes"); out != "deleted 2,400 of 2,400 calls\n" {
		t.Error(out)
	}
	w.exec(`DO $$ BEGIN ASSERT (SELECT count(*) = 2400 + (SELECT count(*) FROM seen) FROM call_queue WHERE status = 'new'), 'others were changed'; END $$`)
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
