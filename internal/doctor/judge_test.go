package doctor

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/schema"
)

// What no test can stage on servers that it shares: judged from what they would say.
func TestJudgements(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		found     []Finding
		level     admin.Level // of the first
		what, fix string
	}{
		"clocks that agree":         {compareClocks(-2*time.Millisecond, time.Millisecond), OK, "2ms behind", ""},
		"clocks that do not":        {compareClocks(2*time.Second, time.Millisecond), Problem, "2s ahead", "NTP"},
		"a slow answer":             {compareClocks(2*time.Second, 3*time.Second), OK, "give or take 3s", ""},
		"an old Redis":              {readRedis("redis_version:6.0.16\r\n"), Problem, "6.0.16", "6.2"},
		"a new Redis":               {readRedis("# Server\r\nredis_version:10.0.1\r\n"), OK, "10.0.1", ""},
		"a Redis that says nothing": {readRedis(""), Note, "version", "6.2"},
		"its policy":                {readRedis("")[1:], Note, "maxmemory-policy", "noeviction"},
	} {
		if f := c.found[0]; f.Level != c.level || !strings.Contains(f.What, c.what) || !strings.Contains(f.Fix, c.fix) {
			t.Errorf("%s: found %+v, want %s, %q, %q", name, f, c.level, c.what, c.fix)
		}
	}
}

// What no test can stage on a server that it shares: the test's own schema stands before Postgres's catalog.
func TestStaged(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, map[string]string{"search_path": "public, pg_catalog"})
	setting := func(name, value, source string) string {
		return `CREATE TABLE pg_settings AS SELECT '` + name + `' AS name, '` + value + `' AS setting, '` + source + `' AS source;`
	}
	slot := func(xmin string) string {
		return `CREATE VIEW pg_replication_slots AS SELECT 's1'::name AS slot_name, NULL::name AS plugin, false AS active, ` + xmin + `::xid AS xmin;`
	}
	session := func(age string) string {
		return `CREATE TABLE pg_stat_activity AS SELECT current_database() AS datname, 7 AS pid, 'ann'::name AS usename, 'report' AS application_name,
			'client backend' AS backend_type, 'active' AS state, 'SELECT 1' AS query, '1'::xid AS backend_xmin, NULL::xid AS backend_xid,
			now() - interval '` + age + `' AS xact_start, now() AS backend_start;`
	}
	const standby = `CREATE FUNCTION public.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;`
	for name, c := range map[string]struct {
		ask       string
		stage     string
		level     admin.Level // "": there is nothing to find
		what, fix string
	}{
		"fsync":               {settingsSQL, setting("fsync", "off", "configuration file"), Problem, "fsync is off", "ALTER SYSTEM SET fsync = on"},
		"fsync on":            {settingsSQL, setting("fsync", "on", "default"), "", "", ""},
		"autovacuum":          {settingsSQL, setting("autovacuum", "off", "default"), Problem, "grow without end", "ALTER SYSTEM"},
		"a role's setting":    {settingsSQL, setting("synchronous_commit", "off", "user"), Problem, "lost in a crash", "ALTER ROLE "},
		"isolation":           {settingsSQL, setting("default_transaction_isolation", "repeatable read", "database"), Problem, "repeatable read", "ALTER DATABASE "},
		"as it should be":     {settingsSQL, setting("default_transaction_isolation", "read committed", "default"), "", "", ""},
		"read only":           {settingsSQL, setting("default_transaction_read_only", "on", "client"), Problem, "nothing can be inserted", "connection's options"},
		"no timeout":          {settingsSQL, setting("statement_timeout", "0", "user"), "", "", ""},
		"a short timeout":     {settingsSQL, setting("statement_timeout", "29999", "user"), Note, "cut short", "statement_timeout = 0"},
		"a long timeout":      {settingsSQL, setting("statement_timeout", "30000", "user"), "", "", ""},
		"a standby":           {settingsSQL, setting("fsync", "on", "default") + standby, Problem, "standby", "primary"},
		"an old slot":         {snapshotsSQL, slot("'1'"), Problem, "replication slot s1 (physical) holds a snapshot, and 2147483647 transactions began", "pg_drop_replication_slot('s1')"},
		"a young slot":        {snapshotsSQL, slot("pg_current_xact_id()"), "", "", ""},
		"an old transaction":  {snapshotsSQL, session("1 hour"), Problem, "session 7 (ann, report) holds a snapshot that is 01:00:0", "pg_terminate_backend(7)"},
		"a young transaction": {snapshotsSQL, session("59 seconds"), "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(t.Context())
			if _, err := tx.Exec(t.Context(), c.stage); err != nil {
				t.Fatal(err)
			}
			found, err := admin.Collect[Finding](t.Context(), tx, "ask", c.ask)
			switch {
			case err != nil:
				t.Fatal(err)
			case c.level == "" && len(found) == 0:
			case len(found) != 1 || found[0].Level != c.level || !strings.Contains(found[0].What, c.what) || !strings.Contains(found[0].Fix, c.fix):
				t.Errorf("found %+v, want %s, %q, %q", found, c.level, c.what, c.fix)
			}
		})
	}
}

// Where reads say that they are a standby's, and writes are taken all the same, a load balancer stands between.
func TestReadsAtAStandby(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, map[string]string{"search_path": "public, pg_catalog"})
	if found, err := reads(t.Context(), pool); err != nil || len(found) > 0 {
		t.Errorf("at a primary: %+v, %v", found, err)
	}
	if _, err := pool.Exec(t.Context(), `CREATE FUNCTION public.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT 'on' $$`); err != nil {
		t.Fatal(err)
	}
	pool.Reset() // what is prepared knows the other function
	found, err := reads(t.Context(), pool)
	if err != nil || len(found) != 1 || found[0].Level != Problem || !strings.Contains(found[0].Fix, "load_balance_mode = off") {
		t.Errorf("behind a load balancer: %+v, %v", found, err)
	}
}

// A server that is too old is said before any of callq's tables is looked at.
func TestOldServer(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, map[string]string{"search_path": "public, pg_catalog"})
	const old = `CREATE FUNCTION public.current_setting(name text) RETURNS text LANGUAGE sql AS $$ SELECT '130010' $$`
	if _, err := pool.Exec(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	found, err := version(t.Context(), pool)
	if err != nil || found[0].Level != Problem || !strings.Contains(found[0].What, "version 13") || !strings.Contains(found[0].Fix, "14 or newer") {
		t.Errorf("%+v, %v", found, err)
	}
}

// Since when a session of another role holds rows, callq's roles may not see; that it does they say all the same.
func TestHeldByAnotherRole(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
		VALUES (7, 1, 0, 1, 1, now(), now(), now(), '', 'http', 'q', 'http', '', '{}', '{}', '{}')`); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"psql": true, "callq": false} { // callq's own hold rows all the time
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `SET LOCAL application_name = `+name+`; SELECT FROM callq.call_open FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		found, err := asks(heldSQL)(t.Context(), pgtest.AsDaemon(t, pool))
		if err != nil || len(found) == 1 != want {
			t.Errorf("of %s: %+v, %v", name, found, err)
		}
		for _, f := range found {
			if !strings.Contains(f.What, name) || !strings.Contains(f.What, "(7)") || !strings.Contains(f.Fix, "pg_monitor") || f.Level != Note {
				t.Errorf("of %s: %+v", name, f)
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// An error that only a pooler causes is said with what to change there.
func TestCheckThroughAPooler(t *testing.T) {
	t.Parallel()
	for fix, refused := range map[string]pgconn.PgError{
		"set pool_mode = transaction":                {Code: "08P01", Message: "transaction blocks not allowed in statement pooling mode"},
		"set postgres.query_mode: cache_describe":    {Code: "26000", Message: `prepared statement "stmtcache_1" does not exist`},
		"and postgres.direct_url to the way past it": {Code: "42P05", Message: `prepared statement "stmtcache_1" already exists`},
	} {
		found, err := check{"bloat", func(context.Context, schema.DB) ([]Finding, error) { return nil, &refused }}.run(t.Context(), nil)
		if err != nil || len(found) != 1 || found[0].Level != Problem || !strings.Contains(found[0].Fix, fix) {
			t.Errorf("%s: %+v, %v, want %q", refused.Message, found, err, fix)
		}
	}
}

// What a check has found before an error is not said: it would be taken for all that there is.
func TestCheckThatFails(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]admin.Level{"42501": Problem, "57014": Note, "22012": Problem} {
		found, err := check{"schema version", func(context.Context, schema.DB) ([]Finding, error) {
			return []Finding{{Level: OK, What: "4"}}, &pgconn.PgError{Code: code, Message: "refused"}
		}}.run(t.Context(), nil)
		if err != nil || len(found) != 1 || found[0].Level != want {
			t.Errorf("%s: %+v, %v, want one %s", code, found, err, want)
		}
	}
}
