package main

import (
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/migrations"
)

// The privilege matrix: who may do what, by SQL and by the Go client.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	logins := pgtest.NewLogins(t, w.postgres)
	w.exec(`INSERT INTO call_queue (unique_key) VALUES ('taken')`)
	w.exec(`CREATE ROLE ` + logins.Prefix + `_other`) // may do nothing
	who := map[string]*pgx.Conn{}
	for name, login := range map[string]string{
		"producer": logins.Producer, "enqueuer": logins.Enqueuer, "daemon": logins.Daemon, "viewer": logins.Viewer,
		"other": pgtest.NewLogin(t, w.postgres, logins.Prefix+"_other"),
	} {
		who[name] = world{t: t, postgres: login}.connect()
	}
	const producer, enqueuer, daemon, viewer = "producer", "enqueuer", "daemon", "viewer"
	for _, c := range []struct {
		sql string
		may []string
	}{
		{`INSERT INTO call_queue (queue) VALUES ('a') RETURNING id, created_at, run_at`, []string{producer, daemon}},
		{`INSERT INTO call_queue
			(queue, task, key, call_data, cost, priority, run_at, expires_at, unique_key, max_attempts)
			VALUES (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)`, []string{producer, daemon}},
		{`INSERT INTO call_queue (unique_key) VALUES ('taken') ON CONFLICT (coalesce(queue, 'default'), unique_key)
			WHERE unique_key IS NOT NULL DO NOTHING`, []string{producer, daemon}},
		{`INSERT INTO call_queue (unique_key) VALUES ('taken') ON CONFLICT DO NOTHING`, []string{producer, daemon}},
		{`INSERT INTO call_queue (status) VALUES ('done')`, []string{daemon}},
		{`INSERT INTO call_queue (attempts) VALUES (1)`, []string{daemon}},
		{`INSERT INTO call_queue (created_at) VALUES (now())`, []string{daemon}},
		{`SELECT id FROM call_queue WHERE queue = 'a' AND unique_key = 'taken'`, []string{producer, daemon, viewer}},
		{`SELECT call_data FROM call_queue`, []string{daemon, viewer}},
		{`SELECT key, status FROM call_queue`, []string{daemon, viewer}},
		{`SELECT id, duplicate FROM enqueue_call('http', '{}')`, []string{producer, enqueuer, daemon}},
		{`SELECT id FROM enqueue_call(unique_key => 'taken')`, []string{producer, enqueuer, daemon}},
		{`SELECT id FROM call_queue`, []string{producer, daemon, viewer}},
		{`INSERT INTO call_queue (id) OVERRIDING SYSTEM VALUE VALUES (4711)`, []string{daemon}},
		{`SELECT nextval('call_queue_id_seq')`, nil},
		{`SELECT setval('call_queue_id_seq', 1)`, nil},
		{`UPDATE call_queue SET priority = 0`, []string{daemon}},
		{`DELETE FROM call_queue WHERE id = 0`, []string{daemon}},
		{`TRUNCATE call_queue`, nil},
		{`ALTER TABLE call_queue ADD COLUMN x integer`, nil},
		{`DROP TABLE call_queue`, nil},
		{`SELECT count(*) FROM call_attempts`, []string{daemon, viewer}},
		{`DELETE FROM call_attempts`, []string{daemon}},
		{`UPDATE call_attempts SET attempt = 0`, []string{daemon}},
		{`UPDATE call_attempts SET outcome = 'done'`, nil},
		{`UPDATE call_open SET token = 1`, []string{daemon}},
		{`UPDATE call_limits SET rate = 1`, []string{daemon}},
		{`SELECT FROM call_locks WHERE name = 'room' FOR UPDATE`, []string{daemon}},
		{`SELECT FROM call_locks FOR KEY SHARE`, []string{daemon}},
		{`INSERT INTO call_locks (name) VALUES ('more')`, nil},
		{`UPDATE call_locks SET name = name || ' of another'`, nil},
		{`DELETE FROM call_locks`, nil},
		{`UPDATE call_limit_changes SET rate = 1`, nil},
		{`DELETE FROM call_limit_changes`, nil},
		{`INSERT INTO call_audit (by, what, name, change) VALUES ('me', 'limit', 'a', 'b')`, []string{daemon}},
		{`UPDATE call_audit SET by = 'them'`, nil},
		{`DELETE FROM call_audit`, nil},
		{`SELECT count(*) FROM call_limits, call_limit_changes, call_queues, call_policies, call_dispatchers, call_pauses, call_audit,
			call_usage, call_workers, call_marks, call_locks, call_open, callq_migrations`, []string{daemon, viewer}},
		{`INSERT INTO callq_migrations (version_id, is_applied) VALUES (9, true)`, nil},
		{`NOTIFY callq_wake`, []string{producer, enqueuer, daemon, viewer, "other"}},
	} {
		for name, conn := range who {
			err := refusal(t, conn, c.sql)
			if pg, ok := errors.AsType[*pgconn.PgError](err); err != nil && (!ok || pg.Code != "42501") {
				t.Errorf("%s: %v\n%s", name, err, c.sql)
				continue
			}
			if may := slices.Contains(c.may, name); may != (err == nil) {
				t.Errorf("%s: allowed is %v, want %v: %v\n%s", name, err == nil, may, err, c.sql)
			}
		}
	}
}

// refusal runs a statement, and takes it back.
func refusal(t *testing.T, conn *pgx.Conn, sql string) error {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	_, err = tx.Exec(t.Context(), sql)
	return err
}

// Every table, sequence and function of the schema is somebody's: a new one must be granted.
func TestRolesKnowEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	logins := pgtest.NewLogins(t, w.postgres)
	forgotten := one[[]string](w, `SELECT array_agg(x) FROM (
		SELECT c.oid::regclass::text || ': ' || r FROM pg_class c, unnest(ARRAY[$1, $2]) AS r
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v', 'p')
			AND NOT has_table_privilege(r, c.oid, 'SELECT')
		UNION ALL
		SELECT c.oid::regclass::text || ': ' || $1 FROM pg_class c
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname NOT IN ('callq_migrations', 'call_locks')
			AND NOT has_table_privilege($1, c.oid, 'INSERT')
		UNION ALL
		SELECT f.oid::regprocedure::text || ': ' || $1 FROM pg_proc f
		WHERE f.pronamespace = 'public'::regnamespace AND f.prorettype <> 'trigger'::regtype AND NOT has_function_privilege($1, f.oid, 'EXECUTE')) AS t (x)`,
		logins.Prefix+"_daemon", logins.Prefix+"_viewer")
	if len(forgotten) > 0 {
		t.Errorf("add to migrations/roles/roles.sql, its REVOKEs too:\n%s", strings.Join(forgotten, "\n"))
	}
}

// What a role holds beyond what it needs, it holds no more once the roles were made again.
func TestRolesTakeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	logins := pgtest.NewLogins(t, w.postgres)
	conn := w.connect()
	role := logins.Prefix + "_enqueuer"
	w.exec(`GRANT ALL ON ALL TABLES IN SCHEMA public TO ` + role + `; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO ` + role)
	if err := migrations.GrantRoles(t.Context(), conn.Config(), logins.Prefix); err != nil {
		t.Fatal(err)
	}
	left := one[[]string](w, `
		SELECT array_agg(relname::text) FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND CASE relkind
			WHEN 'S' THEN has_sequence_privilege($1, oid, 'USAGE, SELECT, UPDATE')
			WHEN 'i' THEN false ELSE has_table_privilege($1, oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') END`, role)
	if len(left) > 0 {
		t.Errorf("left to %s: %v", role, left)
	}
}

// The Go client does as a producer all that it does.
func TestProducersClient(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), pgtest.NewLogins(t, newWorld(t).postgres).Producer)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	client, err := callqueue.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	call := callqueue.Call{UniqueKey: "u"}
	first, err := client.Insert(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := client.Insert(t.Context(), call); id != first || !errors.Is(err, callqueue.ErrDuplicate) {
		t.Errorf("a duplicate: %d, %v", id, err)
	}
	if _, err := client.InsertMany(t.Context(), []callqueue.Call{{}, {UniqueKey: "v"}}); err != nil {
		t.Error(err)
	}
	_, err = client.InsertMany(t.Context(), []callqueue.Call{{}, call})
	duplicate, ok := errors.AsType[*callqueue.DuplicateError](err)
	if !ok || duplicate.ID != first || duplicate.Index != 1 {
		t.Errorf("a duplicate in a batch: %v", err)
	}
}

// What viewers and producers run of the program.
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
	for _, line := range []string{"status", "calls list", "calls get " + id, "verify", "limits list"} {
		refusedTo(t, producer, line)
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
		if a := <-codes; a.code != 0 || len(decode[[]migrations.Role](t, a.stdout)) != 4 {
			t.Errorf("exit code %d: %s%s", a.code, a.stdout, a.stderr)
		}
	}
	other.exec(other.do("migrate", "roles", "--prefix", prefix, "--print"))

	// What was granted besides goes.
	viewer := one
	viewer.postgres = pgtest.NewLogin(t, one.postgres, prefix+"_viewer")
	one.exec("GRANT ALL ON call_queue, call_audit TO " + prefix + "_viewer")
	viewer.exec("UPDATE call_audit SET by = 'me'")
	one.do("migrate", "roles", "--prefix", prefix)
	if err := refusal(t, viewer.connect(), "UPDATE call_audit SET by = 'me'"); err == nil {
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
	a := empty.run("migrate", "roles", "--prefix", prefix)
	if a.code != exitFailed || !strings.Contains(a.stderr, "run `callq migrate up`") {
		t.Errorf("an empty database: exit code %d, %s", a.code, a.stderr)
	}
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
	admin.exec(`DROP SCHEMA public CASCADE; CREATE SCHEMA "Calls"; GRANT ALL ON SCHEMA "Calls" TO ` + prefix + `_owner`)
	owner.postgres = withSearchPath(t, owner.postgres)
	owner.do("migrate", "up")

	for _, from := range []string{"let an administrator run ", "let its owner run "} {
		a := owner.run("migrate", "roles", "--prefix", prefix)
		_, rest, found := strings.Cut(a.stderr, from)
		missing, _, _ := strings.Cut(rest, " and then")
		if a.code != exitFailed || !found {
			t.Fatalf("exit code %d, %s", a.code, a.stderr)
		}
		admin.exec(missing)
	}
	owner.do("migrate", "roles", "--prefix", prefix)
	producer := owner
	producer.postgres = withSearchPath(t, pgtest.NewLogin(t, w.postgres, prefix+"_producer"))
	producer.exec("INSERT INTO call_queue (queue) VALUES ('a') RETURNING id")
	producer.exec("SELECT id FROM enqueue_call('http', unique_key => 'u')")
	owner.do("verify")
	for range migrations.Version() {
		owner.do("migrate", "down", "--yes")
	}
}

func withSearchPath(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", `"Calls"`)
	u.RawQuery = q.Encode()
	return u.String()
}
