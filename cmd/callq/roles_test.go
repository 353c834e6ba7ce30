package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/migrations"
)

// What viewers and producers run of the program.
//
//callq:guarantee 13
func TestCommandsOfRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config = "limits: {api: {rate: 1/1h}}\nqueues: {default: {limits: [api]}}\n"
	w, _ = w.withRedis()
	logins := pgtest.NewLogins(t, w.postgres)
	daemon, viewer, producer := w, w, w
	daemon.postgres, viewer.postgres, producer.postgres = logins.Daemon, logins.Viewer, logins.Producer

	id := strings.TrimSpace(producer.do("enqueue", "--unique", "u"))
	producer.do("enqueue", "--unique", "u")
	daemon.do("dispatch", "--once")
	for _, line := range []string{
		"status", "verify", "calls list", "calls get " + id, "queues list", "limits list", "limits get api",
		"migrate status",
	} {
		viewer.do(strings.Fields(line)...)
	}
	for _, line := range []string{
		"enqueue", "calls cancel " + id, "limits set api 2/1h", "limits pause api", "queues pause default",
		"maintain retention", "maintain vacuum", "dispatch --once", "migrate roles", "migrate down --yes",
	} {
		refusedTo(t, viewer, line)
	}
	for _, line := range []string{
		"limits set api 2/1h", "limits reset api", "limits pause api", "limits resume api", "queues pause default",
		"queues resume default",
		"maintain retention", "calls cancel " + id, "verify", "status", "migrate status",
	} {
		daemon.do(strings.Fields(line)...)
	}
	for _, line := range []string{"migrate down --yes", "migrate roles"} {
		refusedTo(t, daemon, line)
	}
	if one[int](w, `SELECT current_setting('server_version_num')::integer`) < 170000 { // then only a table's owner may vacuum it
		refusedTo(t, daemon, "maintain vacuum")
	} else {
		daemon.do("maintain", "vacuum")
	}
	if a := viewer.run("calls", "wait", id); a.code != exitFailed || !strings.Contains(a.stdout, "cancelled") {
		t.Errorf("viewer: calls wait: exit code %d\n%s%s", a.code, a.stdout, a.stderr)
	}
	for _, line := range []string{"status", "calls list", "calls get " + id, "calls wait " + id, "enqueue --wait", "verify", "limits list"} {
		refusedTo(t, producer, line)
	}
	if n := one[int](w, `SELECT count(*) FROM call_queue`); n != 1 {
		t.Errorf("%d calls: enqueue --wait inserted one, though its role may not wait", n)
	}
}

func refusedTo(t *testing.T, w world, line string) {
	t.Helper()
	a := w.run(strings.Fields(line)...)
	if a.code != exitFailed || !regexp.MustCompile(`permission denied|may not vacuum|not own|be owner`).MatchString(a.stderr) {
		t.Errorf("%s: exit code %d\n%s", line, a.code, a.stderr)
	}
}

// Roles are made once however often they are asked for, and by more than one callq on a server at once.
func TestMigrateRoles(t *testing.T) {
	t.Parallel()
	one, other := newWorld(t), newWorld(t)
	prefix := pgtest.NewPrefix(t, one.postgres, other.postgres)
	codes := make(chan answer, 6)
	for i := range cap(codes) {
		go func() { codes <- []world{one, other}[i%2].run("migrate", "roles", "--prefix", prefix, "-o", "json") }()
	}
	for range cap(codes) {
		if a := <-codes; a.code != 0 || len(decode[[]string](t, a.stdout)) != 4 {
			t.Errorf("exit code %d: %s%s", a.code, a.stdout, a.stderr)
		}
	}
	other.exec(other.do("migrate", "roles", "--prefix", prefix, "--print"))

	// What was granted besides goes.
	viewer := one
	viewer.postgres = pgtest.NewLogin(t, one.postgres, prefix+"_viewer")
	one.exec("GRANT ALL ON call_queue, callq.call_audit TO " + prefix + "_viewer")
	viewer.exec("UPDATE callq.call_audit SET by = 'me'")
	one.do("migrate", "roles", "--prefix", prefix)
	if _, err := viewer.connect().Exec(t.Context(), "UPDATE callq.call_audit SET by = 'me'"); err == nil {
		t.Error("a privilege that was granted besides is still there")
	}

	for _, prefix := range []string{
		"", "Callq", "a-b", "a b", `a"; DROP TABLE call_queue; --`, "pg_x", strings.Repeat("a", 41),
	} {
		if a := one.run("migrate", "roles", "--prefix", prefix); a.code != exitUsage {
			t.Errorf("prefix %q: exit code %d", prefix, a.code)
		}
	}
	empty := newWorld(t)
	empty.empty()
	empty.answers(exitFailed, "migrate roles --prefix "+prefix, "run `callq migrate up`")
}

// An owner who may neither make roles nor grant the use of the schema migrates, learns what others are to
// run, and then grants.
func TestMigrateRolesWithoutCreateRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	prefix := pgtest.NewPrefix(t, w.postgres)
	admin, owner := w, w
	admin.exec("CREATE ROLE " + prefix + "_owner")
	owner.postgres = pgtest.NewLogin(t, w.postgres, prefix+"_owner")
	admin.exec(`DROP SCHEMA callq CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA "Calls"; GRANT ALL ON SCHEMA "Calls" TO ` + prefix + `_owner`)
	owner.config = "postgres: {table_schema: Calls}\n"
	for _, step := range []struct{ command, from, to string }{
		{"migrate up", "let an administrator run ", ";"},
		{"migrate roles --prefix " + prefix, "let an administrator run ", " and then"},
		{"migrate roles --prefix " + prefix, "let its owner run ", " and then"},
	} {
		if step.command != "migrate up" {
			owner.do("migrate", "up")
		}
		a := owner.run(strings.Fields(step.command)...)
		_, rest, found := strings.Cut(a.stderr, step.from)
		missing, _, _ := strings.Cut(rest, step.to)
		if a.code != exitFailed || !found {
			t.Fatalf("exit code %d, %s", a.code, a.stderr)
		}
		admin.exec(missing)
	}
	owner.do("migrate", "roles", "--prefix", prefix)
	producer := owner
	producer.postgres = pgtest.NewLogin(t, w.postgres, prefix+"_producer")
	producer.exec(`INSERT INTO "Calls".call_queue (queue) VALUES ('a') RETURNING id`)
	producer.exec(`SELECT id FROM "Calls".enqueue_call('http', unique_key => 'u')`)
	owner.do("verify")
	for range migrations.Version() {
		owner.do("migrate", "down", "--yes")
	}
}
