package doctor

import (
	"os"
	"strings"
	"testing"

	"github.com/callq/callq/internal/pgtest"
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
		{`DROP INDEX call_inbox_due_idx`, "call_inbox: not what"},
		{`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'call_inbox_due_idx'::regclass`, "call_inbox: not what"},
		{`DROP TRIGGER call_queue_waits_again ON call_queue`, "call_queue: not what"},
		{`ALTER TABLE call_queue DISABLE TRIGGER call_queue_inserted`, "call_queue: not what"},
		{`ALTER TABLE call_queue ALTER priority SET DEFAULT 3`, "call_queue: not what"},
		{`ALTER TABLE call_queue ALTER cost TYPE integer`, "call_queue: not what"},
		{`ALTER TABLE call_attempts ALTER outcome DROP NOT NULL`, "call_attempts: not what"},
		{`ALTER TABLE call_audit DROP change`, "call_audit: not what"},
		{`ALTER TABLE call_pauses DROP CONSTRAINT call_pauses_pkey`, "call_pauses: not what"},
		{`GRANT EXECUTE ON FUNCTION callq_calls_inserted TO PUBLIC`, "functions: not what"},
		{`DROP VIEW call_backlog`, "call_backlog: not what"},
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
