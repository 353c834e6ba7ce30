package tasks

import (
	"testing"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
)

// The statements that a worker runs for each message, and each heartbeat, find every row by its id.
//
//callq:guarantee 9
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, ledger.Settings(), fillSQL, []string{"call_queues", "call_limits"}, map[string]pgtest.Planned{
		"load":      {SQL: loadSQL},
		"again":     {SQL: loadWritableSQL},
		"cancelled": {SQL: cancelledSQL},
		"snoozed":   {SQL: snoozedSQL},
	})
}

const fillSQL = `
INSERT INTO call_queue (status) SELECT CASE i % 10 WHEN 0 THEN 'done' WHEN 1 THEN 'dispatched' ELSE 'new' END FROM generate_series(1, 20000) i;
INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, 1, 0, 1, 1, now(), now(), now(), callq.epoch(), 'http', queue, 'http', '', '{l1}', '{""}', '{1}' FROM call_queue WHERE status = 'dispatched';
INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, arrived_by, outcome, queue, task, key, charged)
SELECT i, 1, 1, now(), now(), now(), 'done', 'q1', 'http', '', '[]' FROM generate_series(1, 20000) i`
