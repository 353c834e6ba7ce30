package ledger_test

import (
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
)

// Acknowledge stores the time for the attempt that has the token, and for no other, and it does not wait for locked rows. It
// holds when the attempt closes, whoever closes it.
//
//callq:guarantee 1 12
func TestAcknowledge(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ids := []int64{ledgertest.Open(t, pool), ledgertest.Open(t, pool), ledgertest.Open(t, pool), ledgertest.Open(t, pool)}
	ledgertest.Exec(t, pool, `UPDATE callq.call_limits SET anchor = 'start'`)
	startedAt := ledgertest.Start(t, pool, ledgertest.Request(ids[0], 7), ledgertest.Request(ids[1], 8), ledgertest.Request(ids[2], 9))[7].StartedAt
	ledgertest.Trial(t, pool, "beside a lock", func(t *testing.T, holder pgx.Tx) {
		ledgertest.Exec(t, holder, `SELECT FROM callq.call_open WHERE call_id = $1 FOR UPDATE`, ids[2])
		var acks []ledger.Running
		for i, id := range ids {
			acks = append(acks, ledger.Running{CallID: id, Attempt: 1, Token: []int64{7, 70, 9, 0}[i], Acked: new(30 * time.Millisecond)})
		}
		if err := ledger.Acknowledge(t.Context(), pool, acks); err != nil {
			t.Fatal(err)
		}
	})
	ledgertest.Want(t, pool, `SELECT array_agg(acked_at - started_at ORDER BY call_id) = ARRAY['30 ms', NULL, NULL, NULL]::interval[] FROM callq.call_open`)
	ledgertest.Want(t, pool, `SELECT callq.occupied_until(task, epoch, started_at, send_within, acked_at, overtaken_at, 'start', epoch, '500 ms', 'slack') = $1::timestamptz + send_within + interval '500 ms'
		FROM callq.call_open WHERE token = 7`, startedAt)
	ledgertest.Close(t, pool, ledger.Closing{
		CallID: ids[0], Attempt: 1, Token: 7, Outcome: callqueue.OutcomeLost, Status: callqueue.StatusFailed, Failed: true,
		Arrival: &limit.Arrival{Written: 5 * time.Millisecond, Closed: 9 * time.Second},
	})
	ledgertest.Want(t, pool, `SELECT arrived_by = $1::timestamptz + interval '505 ms' FROM call_attempts`, startedAt)
}
