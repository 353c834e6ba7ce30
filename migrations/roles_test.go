package migrations_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The privilege matrix: who may do what, by SQL and by the Go client.
//
//callq:guarantee 13
func TestPrivileges(t *testing.T) {
	t.Parallel()
	postgres := pgtest.NewURL(t)
	logins, admin := pgtest.NewLogins(t, postgres), connect(t, postgres)
	exec(t, admin, `INSERT INTO call_queue (unique_key) VALUES ('taken')`)
	exec(t, admin, `CREATE ROLE `+logins.Prefix+`_other`) // may do nothing
	who := map[string]*pgx.Conn{}
	for name, login := range map[string]string{
		"producer": logins.Producer, "enqueuer": logins.Enqueuer, "daemon": logins.Daemon, "viewer": logins.Viewer,
		"other": pgtest.NewLogin(t, postgres, logins.Prefix+"_other"),
	} {
		who[name] = connect(t, login)
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
		{`SELECT key, status FROM call_queue`, []string{producer, daemon, viewer}},
		{`SELECT error_message FROM call_queue`, []string{daemon, viewer}},
		{`SELECT ended_key FROM call_queue`, []string{daemon, viewer}},
		{`INSERT INTO call_queue (id, queue) VALUES (DEFAULT, 'a') RETURNING id, queue, task, key, cost, priority, run_at, unique_key, max_attempts`, []string{producer, daemon}},
		{`SELECT id, duplicate FROM enqueue_call('http', '{}')`, []string{producer, enqueuer, daemon}},
		{`SELECT id FROM enqueue_call(unique_key => 'taken')`, []string{producer, enqueuer, daemon}},
		{`SELECT id FROM call_queue`, []string{producer, daemon, viewer}},
		{`INSERT INTO call_queue (id) OVERRIDING SYSTEM VALUE VALUES (4711)`, []string{daemon}},
		{`SELECT nextval('call_queue_id_seq')`, nil},
		{`SELECT setval('call_queue_id_seq', 1)`, nil},
		{`UPDATE call_queue SET priority = 0`, []string{daemon}},
		{`SELECT id FROM callq.call_effective`, []string{daemon, viewer}},
		{`SELECT id FROM callq.call_effective FOR UPDATE`, []string{daemon}},
		{`UPDATE callq.call_effective SET status = 'new'`, nil},
		{`DELETE FROM call_queue WHERE id = 0`, []string{daemon}},
		{`TRUNCATE call_queue`, nil},
		{`ALTER TABLE call_queue ADD COLUMN x integer`, nil},
		{`DROP TABLE call_queue`, nil},
		{`SELECT count(*) FROM call_attempts`, []string{daemon, viewer}},
		{`DELETE FROM call_attempts`, []string{daemon}},
		{`UPDATE call_attempts SET attempt = 0`, []string{daemon}},
		{`UPDATE call_attempts SET outcome = 'done'`, nil},
		{`UPDATE callq.call_open SET token = 1`, []string{daemon}},
		{`UPDATE callq.call_limits SET rate = 1`, []string{daemon}},
		{`SELECT FROM callq.call_locks WHERE name = 'room' FOR UPDATE`, []string{daemon}},
		{`SELECT FROM callq.call_locks FOR KEY SHARE`, []string{daemon}},
		{`INSERT INTO callq.call_locks (name) VALUES ('more')`, nil},
		{`UPDATE callq.call_locks SET name = name || ' of another'`, nil},
		{`DELETE FROM callq.call_locks`, nil},
		{`UPDATE callq.call_limit_versions SET rate = 1`, nil},
		{`DELETE FROM callq.call_limit_versions`, nil},
		{`INSERT INTO callq.call_audit (by, what, name, change) VALUES ('me', 'limit', 'a', 'b')`, []string{daemon}},
		{`UPDATE callq.call_audit SET by = 'them'`, nil},
		{`DELETE FROM callq.call_audit`, nil},
		{`SELECT count(*) FROM callq.call_limits, callq.call_limit_versions, callq.call_queues, callq.call_policies, callq.call_dispatchers, callq.call_pauses, callq.call_audit,
			callq.call_usage, callq.call_workers, callq.call_epochs, callq.call_meta, callq.call_locks, callq.call_open, callq.migrations`, []string{daemon, viewer}},
		{`INSERT INTO callq.migrations (version_id, is_applied) VALUES (9, true)`, nil},
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
//
//callq:guarantee 13
func TestRolesKnowEverything(t *testing.T) {
	t.Parallel()
	postgres := pgtest.NewURL(t)
	logins, admin := pgtest.NewLogins(t, postgres), connect(t, postgres)
	forgotten := list(t, admin, `SELECT array_agg(x) FROM (
		SELECT c.oid::regclass::text || ': ' || r FROM pg_class c, unnest(ARRAY[$1, $2]) AS r
		WHERE c.relnamespace IN ('public'::regnamespace, 'callq'::regnamespace) AND c.relkind IN ('r', 'v', 'p')
			AND NOT has_table_privilege(r, c.oid, 'SELECT')
		UNION ALL
		SELECT c.oid::regclass::text || ': ' || $1 FROM pg_class c
		WHERE c.relnamespace IN ('public'::regnamespace, 'callq'::regnamespace) AND c.relkind = 'r' AND c.relname NOT IN ('migrations', 'call_locks')
			AND NOT has_table_privilege($1, c.oid, 'INSERT')
		UNION ALL
		SELECT f.oid::regprocedure::text || ': ' || $1 FROM pg_proc f
		WHERE f.pronamespace IN ('public'::regnamespace, 'callq'::regnamespace) AND f.prorettype <> 'trigger'::regtype AND NOT has_function_privilege($1, f.oid, 'EXECUTE')) AS t (x)`,
		logins.Prefix+"_daemon", logins.Prefix+"_viewer")
	if len(forgotten) > 0 {
		t.Errorf("add to migrations/roles/roles.sql, its REVOKEs too:\n%s", strings.Join(forgotten, "\n"))
	}
}

// What a role holds beyond what it needs, it holds no more once the roles were made again.
func TestRolesTakeBack(t *testing.T) {
	t.Parallel()
	postgres := pgtest.NewURL(t)
	logins, admin := pgtest.NewLogins(t, postgres), connect(t, postgres)
	role := logins.Prefix + "_enqueuer"
	exec(t, admin, `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role+`; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO `+role+`;
		GRANT ALL ON ALL TABLES IN SCHEMA callq TO `+role+`; GRANT ALL ON ALL SEQUENCES IN SCHEMA callq TO `+role)
	sql, err := migrations.RolesSQL(logins.Prefix, schema.Names{})
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.GrantRoles(t.Context(), admin.Config(), sql); err != nil {
		t.Fatal(err)
	}
	left := list(t, admin, `
		SELECT array_agg(relname::text) FROM pg_class
		WHERE relnamespace IN ('public'::regnamespace, 'callq'::regnamespace) AND CASE relkind
			WHEN 'S' THEN has_sequence_privilege($1, oid, 'USAGE, UPDATE') OR relname <> 'call_ruled_seq' AND has_sequence_privilege($1, oid, 'SELECT') -- that is anybody's
			WHEN 'i' THEN false ELSE has_table_privilege($1, oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') END`, role)
	if len(left) > 0 {
		t.Errorf("left to %s: %v", role, left)
	}
}

// The Go client does as a producer all that it does.
//
//callq:guarantee 13
func TestProducersClient(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), pgtest.NewLogins(t, pgtest.NewURL(t)).Producer)
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

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// list is what a query answers with an array.
func list(t *testing.T, conn *pgx.Conn, sql string, args ...any) (values []string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&values); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}
