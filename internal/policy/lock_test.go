package policy

import (
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// On any pool, also one without callq's settings, a claim is durable and ends when it is frozen.
func TestClaimSettings(t *testing.T) {
	t.Parallel()
	tx, err := pgtest.New(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), `SET LOCAL synchronous_commit = off`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), LockQueueSQL, "default", "5000"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"synchronous_commit": "on", "statement_timeout": "5s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "5s",
	} {
		var got string
		if err := tx.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %s (%v), want %s", name, got, err, want)
		}
	}
}
