package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/local"
)

// soundWorld has servers as doctor wants them, and a database "sound" in which a dispatcher and a worker live for
// the next hour: so that a test sees what it did itself.
func soundWorld(t *testing.T) world {
	t.Helper()
	server, err := local.StartPostgres(t.Context(), local.Postgres{Settings: map[string]string{"max_prepared_transactions": "5"}})
	must(t, err)
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	w := world{t: t, postgres: server.URL("postgres"), config: atAnyPort + "limits: {api: {rate: 100/1h}}\nqueues: {default: {limits: [api]}}\n"}
	w, _ = w.withRedis()
	w.exec("CREATE ROLE callq_owner; CREATE ROLE former SUPERUSER")
	w.exec("CREATE DATABASE sound OWNER callq_owner")
	sound := w.on("sound")
	owner := sound
	owner.postgres += "&role=callq_owner"
	owner.do("migrate", "up")
	sound.do("dispatch", "--once")
	sound.exec(`INSERT INTO callq.call_dispatchers SELECT 'd', 'host/1', hash, now() + interval '1 hour' FROM callq.call_policies;
		INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
		VALUES ('w', 'http', '{http}', '{}', 10, now(), now() + interval '1 hour')`)
	return w
}

// on is another database of w's server.
func (w world) on(database string) world {
	w.postgres = strings.Replace(w.postgres, "/postgres?", "/"+database+"?", 1)
	return w
}

// moveOwner is what docs/operating.md says to run where a superuser owns callq's tables.
func moveOwner(t *testing.T) string {
	t.Helper()
	_, rest, _ := strings.Cut(string(readRepo(t, "docs/operating.md")), "```sql owner\n")
	block, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/operating.md has no block sql owner")
	}
	return block
}

func (w world) doctor(args ...string) ([]doctor.Finding, answer) {
	w.t.Helper()
	a := w.run(append([]string{"doctor", "-o", "json"}, args...)...)
	if a.stdout == "" {
		return nil, a
	}
	return decode[[]doctor.Finding](w.t, a.stdout), a
}

// hold has a transaction of its own run statements, and leaves it open until the test ends.
func (w world) hold(sql ...string) {
	w.t.Helper()
	conn := w.connect()
	for _, s := range sql {
		if _, err := conn.Exec(w.t.Context(), s); err != nil {
			w.t.Fatal(err)
		}
	}
}

// afterwards runs SQL when the test ends.
func (w world) afterwards(sql string) { w.t.Helper(); w.t.Cleanup(func() { w.exec(sql) }) }

// harmed is something that is wrong, and how doctor says so.
type harmed struct {
	harm  func(*world)
	check string // "": there is nothing to find
	level admin.Level
	what  string
	fix   string
}

// Each problem, as it comes about on real servers: doctor names it, says what mends it, and ends with 3;
// what is only a note leaves 0. A system that is well has neither.
func TestDoctor(t *testing.T) {
	t.Parallel()
	server := soundWorld(t)
	sql := func(sql string) func(*world) {
		return func(w *world) {
			w.exec(strings.ReplaceAll(sql, "DATABASE own", "DATABASE "+databaseOf(w.t, w.postgres)))
		}
	}
	options := func(o string) func(*world) { return func(w *world) { w.postgres += "&options=" + o } }
	// Statements of w then see another clock: one in its schema is found before Postgres's own.
	later := func(by string) func(*world) {
		return func(w *world) {
			w.exec(`CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT pg_catalog.clock_timestamp() + interval '` + by + `' $$`)
			w.postgres += "&options=-c%20search_path%3Dpublic,pg_catalog"
		}
	}
	const dispatched = `; INSERT INTO call_queue (status, attempts) VALUES ('dispatched', 1)`
	const open = `INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs, started_at, deadline)
		SELECT id, 1, 0, 1, 1, now(), now(), now() - interval '1 minute', callq.epoch(), 'http', 'default', 'http', '', '{}', '{}', '{}', `
	const late = `INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, finished_at, outcome, queue, task, key, charged)
		SELECT n, 1, 1, now(), now(), now(), CASE WHEN n % 5 = 0 THEN 'not_sent' ELSE 'done' END, 'default', 'http', '', '[]' FROM generate_series(1, 60) AS n`

	// The cases of a group are on one database: doctor looks once, and finds them all.
	for _, group := range []struct {
		name  string
		exit  int
		cases []harmed
	}{
		{"well", exitDone, []harmed{
			{harm: sql(`INSERT INTO call_queue (queue, task) VALUES ('nope', 'http'), ('default', 'echo'); UPDATE call_queue SET status = 'cancelled', finished_at = now()`)},
			{harm: func(w *world) { w.exec(`REASSIGN OWNED BY callq_owner TO former`); w.exec(moveOwner(w.t)) }},
			{harm: sql(`INSERT INTO call_queue (status, finished_at) VALUES ('done', now()), ('cancelled', now())`)},
		}},
		{"notes", exitDone, []harmed{
			{sql(`ALTER FUNCTION enqueue_call OWNER TO postgres`), "owner", doctor.Note, "belong to a superuser, postgres", "docs/operating.md"},
			{sql(`ALTER DATABASE own SET statement_timeout = '2s'`), "settings", doctor.Note, "cut short", "SET statement_timeout = 0"},
			{func(w *world) { w.do("limits", "set", "api", "5/1h") }, "set by hand", doctor.Note, "limit api has a rate that an operator set", "callq limits reset api"},
			{sql(`UPDATE callq.call_limits SET known_at = now(), missing_until = now() - interval '10 minutes'`), "limits", doctor.Note, "what was left of limit api", "limits open"},
			{sql(`INSERT INTO callq.call_epochs VALUES ('former', now(), 'missing', 'worker w', now() - interval '2 s')`), "failovers", doctor.Note, "made again, and calls that were inserted then are gone (worker w)", "callq verify"},
			{func(w *world) { w.do("queues", "pause", "default") }, "set by hand", doctor.Note, "queue default is paused: by an operator", "callq queues resume default"},
			{func(w *world) { w.do("limits", "pause", "api", "--key", "acct_42") }, "set by hand", doctor.Note, "limit api, key acct_42 is paused: by an operator", "callq limits resume api --key acct_42"},
		}},
		{"no schema", exitFindings, []harmed{
			{sql(`DROP SCHEMA public CASCADE; DROP SCHEMA callq CASCADE; CREATE SCHEMA public`), "schema version", doctor.Problem, "the database has schema version 0", "callq migrate up"},
		}},
		{"an older schema", exitFindings, []harmed{
			{func(w *world) { w.do("migrate", "down", "--yes") }, "schema version", doctor.Problem, "this callq needs", "callq migrate up"},
		}},
		{"a newer schema", exitFindings, []harmed{
			{sql(`INSERT INTO callq.migrations (version_id, is_applied) VALUES (99, true)`), "schema version", doctor.Problem, "version 99", "newer callq"},
		}},
		{"another schema", exitFindings, []harmed{
			{sql(`ALTER TABLE call_queue DISABLE TRIGGER call_queue_inserted`), "schema", doctor.Problem, "call_queue: trigger call_queue_inserted is CREATE TRIGGER call_queue_inserted", "callq migrate sql"},
			{sql(`CREATE OR REPLACE FUNCTION callq.calls_inserted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`), "schema", doctor.Problem, "functions: calls_inserted() is ", "callq migrate sql"},
			{sql(`DROP TABLE callq.call_audit`), "schema", doctor.Problem, "call_audit: column at is gone, and the migrations made it timestamp with time zone NOT NULL DEFAULT clock_timestamp()", "callq migrate sql"},
		}},
		{"clock behind", exitFindings, []harmed{
			{later("-3 hours"), "clocks", doctor.Problem, "behind this machine's", "NTP"},
			{sql(`UPDATE callq.call_limits SET missing_until = now() + interval '1 hour'`), "limits", doctor.Problem, "limit api is shut until", "limits open"},
			{
				sql(`INSERT INTO callq.call_routes (number, rule, goes_on) VALUES (1, 'r', false); INSERT INTO callq.call_routed (rule, failed, error) VALUES ('r', 2, 'call 7: no')`),
				"routes", doctor.Problem, "a route left 2 calls as they were", "callq routes test",
			},
		}},
		{"old snapshots", exitFindings, []harmed{
			{func(w *world) { w.hold("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"); later("1 hour")(w) }, "old snapshots", doctor.Problem, "idle in transaction: SELECT 1", "SELECT pg_terminate_backend("},
			{func(w *world) {
				w.exec(`BEGIN; INSERT INTO callq.call_audit (by, what, name, change) VALUES ('', '', '', ''); PREPARE TRANSACTION 'it''s'`)
				w.afterwards(`ROLLBACK PREPARED 'it''s'`)
				later("1 hour")(w)
			}, "old snapshots", doctor.Problem, "prepared transaction it's", "ROLLBACK PREPARED 'it''s';"},
		}},
		{"held", exitFindings, []harmed{
			{func(w *world) {
				w.exec(`INSERT INTO call_queue (status, attempts) VALUES ('dispatched', 1);` + open + `now(), now() + interval '1 day' FROM call_queue`)
				w.hold("BEGIN", "SAVEPOINT s", "UPDATE call_queue SET error_message = 'mine'")
				later("3 seconds")(w)
			}, "held rows", doctor.Problem, "it is idle in transaction: UPDATE call_queue", "SELECT pg_terminate_backend("},
		}},
		{"shared", exitFindings, []harmed{
			{func(w *world) {
				w.exec(`INSERT INTO call_queue (status, attempts) VALUES ('dispatched', 1);` + open + `now(), now() + interval '1 day' FROM call_queue`)
				w.hold("BEGIN", "SELECT FROM callq.call_open FOR SHARE")
				w.hold("BEGIN", "SELECT FROM callq.call_open FOR SHARE")
				later("3 seconds")(w)
			}, "held rows", doctor.Problem, "it is idle in transaction: SELECT FROM callq.call_open FOR SHARE", "SELECT pg_terminate_backend("},
		}},
		{"settings", exitFindings, []harmed{
			{sql(`ALTER DATABASE own SET synchronous_commit = off`), "settings", doctor.Problem, "synchronous_commit is off", "ALTER DATABASE own SET synchronous_commit = on;"},
			{options("-c%20default_transaction_isolation%3Dserializable"), "settings", doctor.Problem, "serializable", "connection's options"},
			{sql(`ALTER ROLE postgres IN DATABASE own SET session_replication_role = replica`), "settings", doctor.Problem, "triggers do not fire", "ALTER ROLE postgres IN DATABASE own"},
		}},
		{"nobody there", exitFindings, []harmed{
			{sql(`INSERT INTO call_queue (expires_at, error_message) VALUES (now(), 'callq cannot end it: not this one')`), "calls set aside", doctor.Problem, "call 1: callq cannot end it: not this one", "triggers"},
			{sql(`DELETE FROM callq.call_workers`), "workers", doctor.Problem, "no worker is alive", "callq work"},
			{sql(`UPDATE callq.call_dispatchers SET heartbeat_at = now() - interval '7 s'`), "dispatchers", doctor.Problem, "no dispatcher is alive", "callq dispatch"},
			{sql(`UPDATE callq.call_limits SET complete_since = NULL`), "limits", doctor.Problem, "not yet counted", "dispatcher"},
		}},
		{"they differ", exitFindings, []harmed{
			{sql(`INSERT INTO call_queue (status) VALUES ('dispatched'); ` + open + `NULL, NULL FROM call_queue`), "overdue attempts", doctor.Problem, "still hold their units: 1", "callq maintain sweep"},
			{sql(`INSERT INTO callq.call_dispatchers VALUES ('b', 'host/2', 'other', now() + interval '1 hour')`), "rules", doctor.Problem, "another configuration than the one in force", "callq config apply"},
			{sql(`UPDATE callq.call_workers SET http = '{"hosts": []}'; INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at, http) SELECT 'b', pool, tasks, labels, slots, now(), heartbeat_at, '{"hosts": ["x"]}' FROM callq.call_workers`), "http settings", doctor.Problem, "on http_task.hosts (w: []; b: [\"x\"]): a call goes where any of them may send it", "SIGHUP"},
			{sql(`INSERT INTO call_queue (task) VALUES ('echo')`), "tasks", doctor.Problem, "no live worker handles task echo: 1 call", `w.Handle("echo", …)`},
			{sql(`INSERT INTO call_queue (queue) VALUES ('nope')`), "queues", doctor.Problem, "1 call waiting in queue nope", "under queues"},
			{sql(`UPDATE callq.call_limits SET epoch = 'older'`), "limits", doctor.Problem, "limit api is shut: Postgres failed over", "dispatcher"},
			{sql(`INSERT INTO callq.call_meta VALUES ('beside', extract(epoch FROM now()))`), "servers", doctor.Problem, "a copy of this Postgres's files runs beside it", "another Redis"},
			{sql(`INSERT INTO callq.call_meta (name, at, position) VALUES ('verified', '2026-11-28 05:00Z', 2)`), "verify", doctor.Problem, "the scheduled verify of 2026-11-28 05:00:00Z found 2 problems", "callq verify"},
			{sql(`INSERT INTO callq.call_usage VALUES ('api', '', now() + interval '30 h', 1, 7)`), "clock steps", doctor.Problem, "ahead of it, and count until", "slew"},
		}},
		{"a label", exitFindings, []harmed{
			{sql(`INSERT INTO call_queue (status) VALUES ('dispatched'); ` + open + `now() - interval '2 minutes', now() + interval '20 s' FROM call_queue; UPDATE callq.call_open SET task = 'mine'`), "overdue attempts", doctor.Problem, "handlers that run for longer than their queue's timeout", "--status dispatched"},
			{sql(`UPDATE callq.call_queues SET label = 'ip-a'; INSERT INTO call_queue DEFAULT VALUES`), "tasks", doctor.Problem, "carries the label ip-a", "worker.labels: [ip-a]"},
		}},
		{"calls astray", exitFindings, []harmed{
			{sql(`SELECT` + dispatched), "dispatched calls", doctor.Problem, "so that nothing will end them: 1 (1)", "UPDATE public.call_queue SET status = 'new' WHERE id IN (1)"},
			{sql(`SET session_replication_role = replica; INSERT INTO call_queue (status, unique_key) VALUES ('done', 'order-1'); RESET session_replication_role`), "keys of ended calls", doctor.Problem, "no other call can have it: 1 (", "SET unique_key = NULL WHERE id IN ("},
			{sql(`INSERT INTO call_queue DEFAULT VALUES; DELETE FROM callq.call_inbox`), "calls in no flow", doctor.Problem, "1 call waiting in no flow", "callq maintain sweep"},
			{sql(`INSERT INTO callq.call_flows (queue, key, priority, task, calls, tail) VALUES ('default', '', 5, 'http', 3, 1)`), "calls in no flow", doctor.Problem, "1 flow that does not add up:", "callq maintain sweep"},
			{sql(`UPDATE callq.call_limits SET count_cost = true, config = '{"units": 100, "window": 60000000000}', rate = 2; INSERT INTO call_queue (cost) VALUES (9)`), "costs above what was set", doctor.Problem, "since an operator set it: 1, under limit api (", "callq limits reset api, or callq calls cancel"},
			{sql(late), "late requests", doctor.Problem, "of the last 60 attempts of queue default, 12 were not sent", "send_within of limit api, which is 00:00:05"},
			{sql(`ALTER TABLE callq.call_audit SET (autovacuum_enabled = off); INSERT INTO callq.call_audit (by, what, name, change) SELECT '', '', '', '' FROM generate_series(1, 60000); DELETE FROM callq.call_audit`), "bloat", doctor.Problem, "dead rows beside 0, it was never vacuumed", "callq maintain vacuum"},
		}},
		{"a limit is short for long", exitFindings, []harmed{
			{sql(`UPDATE callq.call_limits SET known_at = now(), missing_until = now() + interval '1 day'`), "limits", doctor.Problem, "what was left of limit api", "limits open"},
			{func(w *world) {
				sql(`ALTER DATABASE own SET synchronous_commit = 'local'`)(w)
				w.config += "postgres: {failover: lossless}\n"
			}, "failover", doctor.Problem, "lossless, but a failover may lose commits: synchronous_commit is local", "postgres.failover: witnessed"},
		}},
		{"overdue", exitFindings, []harmed{
			{sql(`INSERT INTO call_queue (status) VALUES ('dispatched'); ` + open + `now(), now() - interval '1 minute' FROM call_queue`), "overdue attempts", doctor.Problem, "their workers were lost: 1", "callq maintain sweep"},
			{
				sql(`INSERT INTO call_attempts (call_id, attempt, requests, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, host, sent_by, charged)
				VALUES (-1, 1, 1, 1, now(), now(), '2200-01-01Z', now(), 'error', 'default', 'http', '', 'example.com:443', now() - interval '1 hour', '[{"limit": "api", "key": "", "cost": 1, "until": "2200-01-01T00:00:00Z"}]')`),
				"requests in doubt", doctor.Problem, "example.com:443 has answered nothing since", "limits open",
			},
			{
				sql(`INSERT INTO call_attempts (call_id, attempt, requests, code, took_ms, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, proof, charged)
				VALUES (-2, 1, 1, 200, 9000, 1, now(), now(), now() + interval '1 s', now() + interval '9 s', 'done', 'default', 'http', '', 'slack', '[{"limit": "api", "key": "", "cost": 1, "until": "2026-01-01T00:00:00Z"}]')`),
				"requests without proof", doctor.Note, "long after slack has them read: 1, under limit api, by up to 8.0 s", "leave slack out",
			},
			{
				sql(`INSERT INTO call_attempts (call_id, attempt, requests, code, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
				SELECT -10 - n, 1, 1, 429, 1, now(), now(), now(), now(), 'refused', 'default', 'http', '', '[{"limit": "api", "key": "", "cost": 1, "until": "2026-01-01T00:00:00Z"}]' FROM generate_series(1, 12) n`),
				"refusals", doctor.Problem, "the API refused 12 of the last 14 requests under limit api, which callq kept. It counts otherwise: docs/apis.md", "the algorithm that fits the API",
			},
		}},
		{"a clock ahead", exitFindings, []harmed{
			{later("7 seconds"), "clocks", doctor.Problem, "ahead of this machine's", "NTP"},
		}},
		{"a login without INFO", exitDone, []harmed{
			{func(w *world) {
				must(w.t, w.redisClient().Do(w.t.Context(), "ACL", "SETUSER", "noinfo", "on", ">pw", "~asynq:*", "~callq:budget:*", "&*", "+@all", "-info").Err())
				w.redis = strings.Replace(w.redis, "://", "://noinfo:pw@", 1)
			}, "redis version", doctor.Note, "does not tell its version", "refused INFO"},
		}},
		{"a full Redis", exitFindings, []harmed{
			{func(w *world) {
				w.configureRedis("maxmemory", "1")
				w.t.Cleanup(func() { w.configureRedis("maxmemory", "0") })
				w.exec(`INSERT INTO call_queue DEFAULT VALUES`)
				w.answers(exitDone, "calls why 1", "unknown: Redis takes no hand-over, without which no call is made: OOM")
			}, "redis hand-over", doctor.Problem, "Redis takes no hand-over: OOM", "give it memory"},
		}},
		{"Redis", exitFindings, []harmed{
			{func(w *world) { w.configureRedis("maxmemory-policy", "allkeys-lru") }, "redis eviction", doctor.Problem, "allkeys-lru", "CONFIG SET maxmemory-policy noeviction"},
		}},
	} {
		t.Run(group.name, func(t *testing.T) {
			server := server
			server.t = t
			database := "of_" + strings.ReplaceAll(strings.ToLower(group.name), " ", "_") // all go with the server
			server.exec("CREATE DATABASE " + database + " TEMPLATE sound OWNER callq_owner")
			w := server.on(database)
			t.Cleanup(func() { w.configureRedis("maxmemory-policy", "noeviction") })
			for _, c := range group.cases {
				c.harm(&w)
			}
			findings, a := w.doctor()
			for _, c := range group.cases {
				c.fix = strings.ReplaceAll(c.fix, "DATABASE own", "DATABASE "+database)
				said := func(f doctor.Finding) bool {
					return f.Check == c.check && f.Level == c.level && strings.Contains(f.What, c.what) && strings.Contains(f.Fix, c.fix)
				}
				if c.check != "" && !slices.ContainsFunc(findings, said) {
					t.Errorf("not found: %s: %s, with the fix %q", c.check, c.what, c.fix)
				}
			}
			for _, f := range findings {
				if f.Level != doctor.OK && (f.Fix == "" || group.name == "well") || f.Level == doctor.Problem && group.exit == exitDone {
					t.Errorf("doctor finds %+v", f)
				}
			}
			if a.code != group.exit || t.Failed() {
				t.Errorf("exit code %d, want %d:\n%s%s", a.code, group.exit, a.stdout, a.stderr)
			}
		})
	}
}

func (w world) redisClient() *redis.Client {
	w.t.Helper()
	options, err := redis.ParseURL(w.redis)
	must(w.t, err)
	client := redis.NewClient(options)
	w.t.Cleanup(func() { _ = client.Close() })
	return client
}

func (w world) configureRedis(name, value string) {
	w.t.Helper()
	if err := w.redisClient().ConfigSet(context.WithoutCancel(w.t.Context()), name, value).Err(); err != nil {
		w.t.Error(err)
	}
}

// Where all is well and there is nothing to add, a line ends with the name of its check.
func TestPrintFindings(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	printFindings(&out, []doctor.Finding{
		{Check: "schema", Level: doctor.OK}, {Check: "tasks", Level: doctor.Problem, What: "calls wait", Fix: "callq work"},
	})
	if want := "ok       schema\nproblem  tasks: calls wait\n         fix: callq work\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
