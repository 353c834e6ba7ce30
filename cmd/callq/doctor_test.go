package main

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/local"
)

// sound is a world with servers as doctor wants them, and a dispatcher and a worker that live: so that a test
// sees what it did itself.
func soundWorld(t *testing.T) world {
	t.Helper()
	server, err := local.StartPostgres(t.Context(), local.Postgres{Settings: map[string]string{"max_prepared_transactions": "5"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	w := world{t: t, postgres: server.URL("postgres"), config: atAnyPort + "limits: {api: {rate: 100/1h}}\nqueues: {default: {limits: [api]}}\n"}
	w, _ = w.withRedis()
	w.exec("CREATE ROLE callq_owner; CREATE ROLE former SUPERUSER")
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

// fresh gives w another database of its server, in which a dispatcher and a worker said that they live for
// the next hour.
func (w world) fresh(t *testing.T, name string) world {
	t.Helper()
	w.exec("CREATE DATABASE " + name + " OWNER callq_owner")
	w.t = t
	w.postgres = strings.Replace(w.postgres, "/postgres?", "/"+name+"?", 1)
	owner := w
	owner.postgres += "&role=callq_owner"
	owner.do("migrate", "up")
	w.do("dispatch", "--once")
	w.exec(`INSERT INTO call_dispatchers SELECT 'd', 'host/1', hash, now() + interval '1 hour' FROM call_policies`)
	w.exec(`INSERT INTO call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
		VALUES ('w', 'http', '{http}', '{}', 10, now(), now() + interval '1 hour')`)
	return w
}

// hold has a transaction of its own run statements, and leaves it open until the test ends.
func (w world) hold(sql ...string) {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.postgres)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(w.t.Context())) })
	for _, s := range sql {
		if _, err := conn.Exec(w.t.Context(), s); err != nil {
			w.t.Fatal(err)
		}
	}
}

// afterwards runs SQL when the test ends.
func (w world) afterwards(sql string) { w.t.Helper(); w.t.Cleanup(func() { w.exec(sql) }) }

// Each problem, as it comes about on real servers: doctor names it, says what mends it, and ends with 3;
// what is only a note leaves 0. A system that is well has neither.
func TestDoctor(t *testing.T) {
	t.Parallel()
	server := soundWorld(t)
	sql := func(sql string) func(*world) { return func(w *world) { w.exec(sql) } }
	options := func(o string) func(*world) { return func(w *world) { w.postgres += "&options=" + o } }
	// Statements of w then see another clock: one in its schema is found before Postgres's own.
	later := func(by string) func(*world) {
		return func(w *world) {
			w.exec(`CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT pg_catalog.clock_timestamp() + interval '` + by + `' $$`)
			w.postgres += "&options=-c%20search_path%3Dpublic,pg_catalog"
		}
	}
	const dispatched = `; INSERT INTO call_queue (status, attempts) VALUES ('dispatched', 1)`
	const open = `INSERT INTO call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs, started_at, deadline)
		SELECT id, 1, 0, 1, 1, now(), now(), now() - interval '1 minute', callq_epoch(), 'http', 'default', 'http', '', '{}', '{}', '{}', `
	const late = `INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, finished_at, outcome, queue, task, key, charged)
		SELECT n, 1, 1, now(), now(), now(), CASE WHEN n % 5 = 0 THEN 'not_sent' ELSE 'done' END, 'default', 'http', '', '[]' FROM generate_series(1, 60) AS n`

	for name, c := range map[string]struct {
		harm  func(*world)
		check string // "": there is nothing to find
		level doctor.Level
		what  string
		fix   string
	}{
		"well":                        {harm: sql(`SELECT`)},
		"calls that were cancelled":   {harm: sql(`INSERT INTO call_queue (queue, task) VALUES ('nope', 'http'), ('default', 'echo'); UPDATE call_queue SET status = 'cancelled', finished_at = now()`)},
		"the schema is not there":     {sql(`DROP SCHEMA public CASCADE; CREATE SCHEMA public`), "schema version", doctor.Problem, "not in this database", "callq migrate up"},
		"the schema is older":         {func(w *world) { w.do("migrate", "down", "--yes") }, "schema version", doctor.Problem, "this callq needs", "callq migrate up"},
		"the schema is newer":         {sql(`INSERT INTO callq_migrations (version_id, is_applied) VALUES (99, true)`), "schema version", doctor.Problem, "version 99", "newer callq"},
		"a superuser owns a function": {sql(`ALTER FUNCTION enqueue_call OWNER TO postgres`), "owner", doctor.Note, "belong to a superuser, postgres", "docs/operating.md"},
		"a superuser no longer does":  {harm: func(w *world) { w.exec(`REASSIGN OWNED BY callq_owner TO former`); w.exec(moveOwner(w.t)) }},
		"a trigger is disabled":       {sql(`ALTER TABLE call_queue DISABLE TRIGGER call_queue_inserted`), "schema", doctor.Problem, "call_queue: not what the migrations made", "callq migrate sql"},
		"a function is another":       {sql(`CREATE OR REPLACE FUNCTION callq_calls_inserted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`), "schema", doctor.Problem, "functions are not what the migrations made", "callq migrate sql"},
		"a table is missing":          {sql(`DROP TABLE call_audit`), "schema", doctor.Problem, "call_audit is missing", "callq migrate sql"},
		"the clock is ahead":          {later("7 seconds"), "clocks", doctor.Problem, "ahead of this machine's", "NTP"},
		"the clock is behind":         {later("-3 hours"), "clocks", doctor.Problem, "behind this machine's", "NTP"},
		"commits are not durable":     {sql(`ALTER DATABASE own SET synchronous_commit = off`), "settings", doctor.Problem, "synchronous_commit is off", "ALTER DATABASE own SET synchronous_commit = on;"},
		"transactions are repeatable": {options("-c%20default_transaction_isolation%3Dserializable"), "settings", doctor.Problem, "serializable", "connection's options"},
		"triggers do not fire":        {sql(`ALTER ROLE postgres IN DATABASE own SET session_replication_role = replica`), "settings", doctor.Problem, "triggers do not fire", "ALTER ROLE postgres IN DATABASE own"},
		"statements are cut short":    {sql(`ALTER DATABASE own SET statement_timeout = '2s'`), "settings", doctor.Note, "cut short", "SET statement_timeout = 0"},
		"a transaction stays open":    {func(w *world) { w.hold("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"); later("1 hour")(w) }, "old snapshots", doctor.Problem, "idle in transaction: SELECT 1", "SELECT pg_terminate_backend("},
		"a transaction stays prepared": {func(w *world) {
			w.exec(`BEGIN; INSERT INTO call_audit (by, what, name, change) VALUES ('', '', '', ''); PREPARE TRANSACTION 'it''s'`)
			w.afterwards(`ROLLBACK PREPARED 'it''s'`)
			later("1 hour")(w)
		}, "old snapshots", doctor.Problem, "prepared transaction it's", "ROLLBACK PREPARED 'it''s';"},
		"dead rows":                    {sql(`ALTER TABLE call_audit SET (autovacuum_enabled = off); INSERT INTO call_audit (by, what, name, change) SELECT '', '', '', '' FROM generate_series(1, 60000); DELETE FROM call_audit`), "bloat", doctor.Problem, "dead rows beside 0, it was never vacuumed", "callq maintain vacuum"},
		"no worker":                    {sql(`DELETE FROM call_workers`), "workers", doctor.Problem, "no worker lives", "callq work"},
		"no dispatcher":                {sql(`UPDATE call_dispatchers SET heartbeat_at = now() - interval '7 s'`), "dispatchers", doctor.Problem, "no dispatcher lives", "callq dispatch"},
		"dispatchers differ":           {sql(`INSERT INTO call_dispatchers VALUES ('b', 'host/2', 'other', now() + interval '1 hour')`), "rules", doctor.Problem, "another configuration than the one in force", "callq config apply"},
		"workers differ":               {sql(`UPDATE call_workers SET http = '{"hosts": []}'; INSERT INTO call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at, http) SELECT 'b', pool, tasks, labels, slots, now(), heartbeat_at, '{"hosts": ["x"]}' FROM call_workers`), "http settings", doctor.Problem, `on http_task.hosts (a call goes where any of them may send it, and back unsent from one that may not): `, "SIGHUP"},
		"a task nobody handles":        {sql(`INSERT INTO call_queue (task) VALUES ('echo')`), "tasks", doctor.Problem, "no live worker handles task echo: 1 calls", `w.Handle("echo", …)`},
		"a label nobody carries":       {sql(`UPDATE call_queues SET label = 'ip-a'; INSERT INTO call_queue DEFAULT VALUES`), "tasks", doctor.Problem, "carries the label ip-a", "worker.labels: [ip-a]"},
		"a queue that is not in force": {sql(`INSERT INTO call_queue (queue) VALUES ('nope')`), "queues", doctor.Problem, "1 calls wait in queue nope", "under queues"},
		"a running call's row is held": {func(w *world) {
			w.exec(`INSERT INTO call_queue (status, attempts) VALUES ('dispatched', 1);` + open + `now(), now() + interval '1 day' FROM call_queue`)
			w.hold("BEGIN", "SAVEPOINT s", "UPDATE call_queue SET error_message = 'mine'")
			later("3 seconds")(w)
		}, "held rows", doctor.Problem, "it is idle in transaction: UPDATE call_queue", "SELECT pg_terminate_backend("},
		"a running call's row is shared": {func(w *world) {
			w.exec(`INSERT INTO call_queue (status, attempts) VALUES ('dispatched', 1);` + open + `now(), now() + interval '1 day' FROM call_queue`)
			w.hold("BEGIN", "SELECT FROM call_open FOR SHARE")
			w.hold("BEGIN", "SELECT FROM call_open FOR SHARE")
			later("3 seconds")(w)
		}, "held rows", doctor.Problem, "it is idle in transaction: SELECT FROM call_open FOR SHARE", "SELECT pg_terminate_backend("},
		"a call that cannot be swept":          {sql(`INSERT INTO call_queue (expires_at, error_message) VALUES (now(), 'callq cannot end it: not this one')`), "calls set aside", doctor.Problem, "call 1: callq cannot end it: not this one", "triggers"},
		"a limit of an older epoch":            {sql(`UPDATE call_limits SET epoch = 'older'`), "limits", doctor.Problem, "limit api is shut: Postgres failed over", "dispatcher"},
		"a limit that is shut":                 {sql(`UPDATE call_limits SET missing_until = now() + interval '1 hour'`), "limits", doctor.Problem, "limit api is shut until", "limits open"},
		"a limit that failed over":             {sql(`UPDATE call_limits SET known_at = now(), missing_until = now() + interval '1 hour'`), "limits", doctor.Note, "what was left of limit api", "limits open"},
		"a limit that is not counted":          {sql(`UPDATE call_limits SET complete_since = NULL`), "limits", doctor.Problem, "not yet counted", "dispatcher"},
		"the clock was set back":               {sql(`INSERT INTO call_usage VALUES ('api', '', now() + interval '3 h', 1, 7)`), "clock steps", doctor.Problem, "ahead of it, and count until", "slew"},
		"the clock was set forward":            {sql(`INSERT INTO call_clock_gains (at, by) VALUES (now() - interval '1 min', '20 s'), (now() - interval '2 h', '20 s')`), "clock steps", doctor.Note, "set forward by 20s at", "nothing: what was used"},
		"a limit that was set":                 {func(w *world) { w.do("limits", "set", "api", "5/1h") }, "limits", doctor.Note, "limit api has a rate that an operator set", "callq limits reset api"},
		"a queue that is paused":               {func(w *world) { w.do("queues", "pause", "default") }, "pauses", doctor.Note, "queue default is paused", "callq queues resume default"},
		"a customer that is paused":            {func(w *world) { w.do("limits", "pause", "api", "--key", "acct_42") }, "pauses", doctor.Note, "1 keys of limit api are paused", "callq limits resume api --key"},
		"attempts past their deadline":         {sql(`INSERT INTO call_queue (status) VALUES ('dispatched'); ` + open + `now(), now() - interval '1 minute' FROM call_queue`), "overdue attempts", doctor.Problem, "1 attempts are past their deadline", "callq maintain sweep"},
		"a handler that does not return":       {sql(`INSERT INTO call_queue (status) VALUES ('dispatched'); ` + open + `now() - interval '2 minutes', now() + interval '20 s' FROM call_queue; UPDATE call_open SET task = 'mine'`), "overdue attempts", doctor.Problem, "1 handlers run for longer than their queue's timeout", "--status dispatched"},
		"attempts that nobody started":         {sql(`INSERT INTO call_queue (status) VALUES ('dispatched'); ` + open + `NULL, NULL FROM call_queue`), "overdue attempts", doctor.Problem, "1 attempts were handed over", "callq maintain sweep"},
		"calls in no line":                     {sql(`INSERT INTO call_queue DEFAULT VALUES; DELETE FROM call_inbox`), "calls in no line", doctor.Problem, "1 calls wait and are in no line", "callq maintain sweep"},
		"broken_flows":                         {sql(`INSERT INTO call_flows (queue, key, priority, task, calls, tail) VALUES ('default', '', 5, 'http', 3, 1)`), "calls in no line", doctor.Problem, "1 lines do not add up", "callq maintain sweep"},
		"dispatched calls without an attempt":  {sql(`SELECT` + dispatched), "dispatched calls", doctor.Problem, "1 calls are dispatched without an open attempt", "UPDATE call_queue SET status = 'new' WHERE id IN (1)"},
		"more dead letters":                    {sql(`INSERT INTO call_queue (status, failed_at) SELECT 'failed', now() - n * interval '25 minutes' FROM generate_series(1, 3) AS n`), "dead letters", doctor.Note, "2 calls failed for good within the last hour, 1 in", "--status failed"},
		"requests that are often not in time":  {sql(late), "late requests", doctor.Problem, "of the last 60 attempts of queue default, 12 were not sent", "send_within of limit api, which is 00:00:05"},
		"Redis evicts":                         {func(w *world) { w.configureRedis("maxmemory-policy", "allkeys-lru") }, "redis eviction", doctor.Problem, "allkeys-lru", "CONFIG SET maxmemory-policy noeviction"},
		"Redis is full":                        {func(w *world) { w.configureRedis("maxmemory", "1") }, "redis memory", doctor.Problem, "of 1 B", "raise maxmemory"},
		"nothing: what has ended is not stuck": {harm: sql(`INSERT INTO call_queue (status, finished_at) VALUES ('done', now()), ('cancelled', now())`)},
	} {
		t.Run(name, func(t *testing.T) {
			server := server
			server.t = t
			w := server.fresh(t, "own")
			t.Cleanup(func() { server.exec("DROP DATABASE own WITH (FORCE)") })
			t.Cleanup(func() { w.configureRedis("maxmemory-policy", "noeviction"); w.configureRedis("maxmemory", "0") })
			if strings.Contains(w.redisState(), "maxmemory_policy:allkeys") {
				t.Fatal("the test before left its Redis as it was")
			}
			c.harm(&w)
			findings, a := w.doctor()
			said := false
			for _, f := range findings {
				switch {
				case f.Check == c.check && f.Level == c.level && strings.Contains(f.What, c.what):
					said = true
					if !strings.Contains(f.Fix, c.fix) {
						t.Errorf("the fix is %q, want %q in it", f.Fix, c.fix)
					}
				case c.check == "" && f.Level != doctor.OK:
					t.Errorf("all is well, and doctor finds %+v", f)
				case f.Level != doctor.OK && f.Fix == "":
					t.Errorf("no fix: %+v", f)
				}
			}
			want := exitFindings
			if c.level != doctor.Problem {
				want = exitDone
			}
			if said != (c.check != "") || a.code != want {
				t.Errorf("found: %t, exit code %d, want %d:\n%s%s", said, a.code, want, a.stdout, a.stderr)
			}
		})
	}
}

func (w world) redisClient() *redis.Client {
	w.t.Helper()
	options, err := redis.ParseURL(w.redis)
	if err != nil {
		w.t.Fatal(err)
	}
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

func (w world) redisState() string {
	w.t.Helper()
	return w.redisClient().Info(w.t.Context(), "memory").Val()
}
