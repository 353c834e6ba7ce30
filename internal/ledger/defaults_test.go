package ledger_test

import (
	"testing"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/pgtest"
)

// A queue that nobody configured has the defaults that docs/configuration.md promises, and priorities have the bounds of Go's.
func TestDefaults(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ledgertest.Want(t, pool, `SELECT (max_attempts, backoff_min, backoff_max, timeout, on_lost)
			= (3, interval '10 s', interval '15 min', interval '30 s', 'retry')
		FROM (SELECT `+ledger.PolicySQL+`, `+ledger.TimeoutSQL+` AS timeout, `+ledger.OnLostSQL+` AS on_lost
			FROM (SELECT) AS one LEFT JOIN call_queue q ON true LEFT JOIN callq.call_queues r ON true) AS defaults`)
	ledgertest.Want(t, pool, `SELECT array_agg(callq.priority(p)) = ARRAY[$1, $2, $3]::smallint[]
		FROM unnest(ARRAY[-32768, NULL, 32767]::smallint[]) AS p`,
		callqueue.MinPriority, callqueue.DefaultPriority, callqueue.MaxPriority)
}
