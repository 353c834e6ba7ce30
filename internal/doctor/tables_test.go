package doctor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
)

// The fingerprints that doctor compares with are what the migrations make. UPDATE=1 writes them anew.
func TestSchemaFingerprints(t *testing.T) {
	t.Parallel()
	lines, err := fingerprint(t.Context(), pgtest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(lines, "\n") + "\n"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("schema.txt", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text != expected {
		t.Error("schema.txt is not what the migrations make: run `make docs`")
	}
}

// Whatever is done to a part of the schema, doctor names the part.
func TestSchemaDrift(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, c := range []struct{ harm, want string }{
		{`CREATE INDEX mine ON call_queue (status)`, ""},
		{`DROP INDEX callq.call_inbox_due_idx`, "call_inbox: index call_inbox_due_idx is gone, and the migrations made it CREATE INDEX call_inbox_due_idx ON call_inbox"},
		{`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'callq.call_inbox_due_idx'::regclass`, "call_inbox: index call_inbox_due_idx is CREATE INDEX call_inbox_due_idx ON call_inbox USING btree (queue, at) INVALID"},
		{`DROP TRIGGER call_queue_changed ON call_queue`, "call_queue: trigger call_queue_changed is gone"},
		{`ALTER TABLE call_queue DISABLE TRIGGER call_queue_inserted`, "call_queue: trigger call_queue_inserted is CREATE TRIGGER"},
		{`ALTER TABLE call_queue ALTER priority SET DEFAULT 3`, "call_queue: column priority is smallint DEFAULT 3, and the migrations made it smallint DEFAULT 5"},
		{`ALTER TABLE call_attempts ALTER cost TYPE integer`, "call_attempts: column cost is integer NOT NULL, and"},
		{`ALTER TABLE call_attempts ALTER outcome DROP NOT NULL`, "call_attempts: column outcome is text, and the migrations made it text NOT NULL"},
		{`ALTER TABLE callq.call_audit DROP change`, "call_audit: column change is gone"},
		{`ALTER TABLE callq.call_pauses DROP CONSTRAINT call_pauses_pkey`, "call_pauses: constraint call_pauses_pkey is gone"},
		{`GRANT EXECUTE ON FUNCTION callq.calls_inserted TO PUBLIC`, "functions: calls_inserted() is "},
		{`DROP VIEW callq.call_backlog`, "call_backlog: column at is gone"},
	} {
		t.Run(c.harm, func(t *testing.T) {
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(t.Context())
			if _, err := tx.Exec(t.Context(), c.harm); err != nil {
				t.Fatal(err)
			}
			actual, err := fingerprint(t.Context(), tx)
			found := judgeSchema(actual)
			if c.want == "" && len(found) == 0 && err == nil {
				return
			}
			if err != nil || len(found) != 1 || !strings.HasPrefix(found[0].What, c.want) {
				t.Errorf("found %+v, %v", found, err)
			}
		})
	}
}

// A schema that was dumped and restored, or that has another name, is what the migrations made.
func TestSchemaIsKnownElsewhere(t *testing.T) {
	t.Parallel()
	program, err := local.Find("postgres", []string{"postgres", "initdb", "pg_dump"})
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.New(t)
	dump := program.Command(t.Context(), "pg_dump", "--no-owner", pool.Config().ConnString())
	sql, err := dump.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && strings.Contains(string(exit.Stderr), "server version mismatch") {
		t.Skipf("it needs a pg_dump as new as the server: `make test` has one, `make test PG=…` has not: %s", exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	// psql's own commands stand in a dump of the newest minors.
	text := regexp.MustCompile(`(?m)^\\(un)?restrict .*$`).ReplaceAllString(string(sql), "")
	if _, err := pool.Exec(t.Context(), `DROP SCHEMA public CASCADE; DROP SCHEMA callq CASCADE; CREATE SCHEMA public; SET search_path = public`); err != nil {
		t.Fatal(err)
	}
	restored := strings.ReplaceAll(text, "CREATE SCHEMA public;", "")
	restored = regexp.MustCompile(`(?ms)^COPY .*?^\\\.$`).ReplaceAllString(restored, "") // its rows
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), restored); err != nil {
		t.Fatal(err)
	}
	if found, err := drift(t.Context(), pool); len(found) > 0 || err != nil {
		t.Errorf("after a restore: %+v, %v", found, err)
	}

	names := schema.Names{Own: "callq_too", Tables: "Of its own"}
	if _, err := migrations.Up(t.Context(), pool.Config().ConnConfig, names); err != nil {
		t.Fatal(err)
	}
	if found, err := drift(t.Context(), names.In(pool)); len(found) > 0 || err != nil {
		t.Errorf("in another schema: %+v, %v", found, err)
	}
}
