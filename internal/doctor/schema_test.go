package doctor

import (
	"os"
	"strings"
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// The listing that doctor compares with is what the migrations make. UPDATE=1 writes it anew.
func TestSchemaListing(t *testing.T) {
	t.Parallel()
	objects, err := collect[object](t.Context(), pgtest.New(t), catalogSQL)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, o := range objects {
		text.WriteString(strings.ReplaceAll(o.line(), "\n", " ") + "\n")
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("schema.txt", []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text.String() != expected {
		t.Error("schema.txt is not what the migrations make: run `make docs`")
	}
	if len(expectedObjects()) != len(objects) || len(ownTables()) < 10 {
		t.Errorf("%d objects are read of %d, %d tables", len(expectedObjects()), len(objects), len(ownTables()))
	}
}

// Whatever was done to columns, the statements that doctor gives make the schema what it was.
func TestColumnsAreRestored(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, harm := range []string{
		`ALTER TABLE call_queue ALTER priority SET DEFAULT 3`,
		`ALTER TABLE call_queue ALTER run_at DROP DEFAULT`,
		`ALTER TABLE call_queue ALTER error_message SET DEFAULT 'none', ALTER error_message SET NOT NULL`,
		`ALTER TABLE call_queue ALTER cost TYPE integer`,
		`ALTER TABLE call_attempts ALTER outcome DROP NOT NULL`,
		`ALTER TABLE call_attempts DROP worker`,
		`ALTER TABLE call_audit DROP at`,
		`ALTER TABLE call_audit DROP id CASCADE`,
		`GRANT EXECUTE ON FUNCTION enqueue_call TO PUBLIC`,
		`GRANT EXECUTE ON FUNCTION callq_calls_inserted TO PUBLIC`,
	} {
		if _, err := pool.Exec(t.Context(), harm); err != nil {
			t.Fatalf("%s: %v", harm, err)
		}
		found, err := drift(t.Context(), pool)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: found %+v, %v", harm, found, err)
		}
		for _, f := range found {
			if _, err := pool.Exec(t.Context(), f.Fix); err != nil {
				t.Errorf("%s: the fix of %q: %v", harm, f.What, err)
			}
		}
		if found, err = drift(t.Context(), pool); err != nil || len(found) > 0 {
			t.Errorf("%s: mended, and found %+v, %v", harm, found, err)
		}
	}
	if _, err := pool.Exec(t.Context(), `DROP VIEW call_in_line`); err != nil {
		t.Fatal(err)
	}
	if found, err := drift(t.Context(), pool); err != nil || len(found) != 1 || found[0].What != "view call_in_line is missing" {
		t.Errorf("without a view: found %+v, %v", found, err)
	}
}
