package doctor

import (
	"strings"
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// Since when a session of another role holds rows, callq's roles may not see; that it does they say all the same.
func TestHeldByAnotherRole(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
		VALUES (7, 1, 0, 1, 1, now(), now(), now(), '', 'http', 'q', 'http', '', '{}', '{}', '{}')`); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"psql": true, "callq": false} { // callq's own hold rows all the time
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `SET LOCAL application_name = `+name+`; SELECT FROM call_open FOR UPDATE`); err != nil {
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
