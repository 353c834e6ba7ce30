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
