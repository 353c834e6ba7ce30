package policy

import (
	"testing"
	"time"

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

// A claim that finds a lock held draws no number: by the numbers, others see that a dispatcher claims.
func TestNoLockNoNumber(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, held := range []string{"call_queues", "call_limits", "call_locks"} {
		if _, err := pool.Exec(t.Context(), lockedSQL); err != nil {
			t.Fatal(err)
		}
		holder, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := holder.Exec(t.Context(), `SELECT FROM `+held+` FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var drawn bool
		if q, err := LockQueue(t.Context(), tx, "default", false, time.Second); q != nil || err != nil {
			t.Errorf("%s held: locked %+v (%v)", held, q, err)
		}
		if err := tx.QueryRow(t.Context(), `SELECT is_called FROM call_batch_seq`).Scan(&drawn); err != nil || drawn {
			t.Errorf("%s held: a number was drawn (%v)", held, err)
		}
		tx.Rollback(t.Context())
		holder.Rollback(t.Context())
	}
}

const lockedSQL = `
WITH l AS (
    INSERT INTO call_limits (name, version, rate, window_size, slack, send_within, queues, applied_at, applied_by, epoch)
    VALUES ('api', 1, 10, '10 s', '500 ms', '300 ms', '{default}', now(), 'test', callq_epoch())
    ON CONFLICT DO NOTHING
)
INSERT INTO call_queues VALUES ('default', '{api}', '', 4, '2 s', '3 min', '7 s', 'retry') ON CONFLICT DO NOTHING`
