package ledger

import (
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// The start and the close find every row by its id, and so lock rows in the order of the ids they were asked for.
//
//callq:guarantee 9
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, Settings(), fillSQL, nil, map[string]pgtest.Planned{
		"start": {SQL: startSQL, Uses: []string{"call_open_pkey call_id", "call_queue_pkey id", "call_queues_pkey name", "call_limits_pkey name"}},
		"close": {SQL: closeSQL, Uses: []string{"call_open_pkey call_id", "call_queue_pkey id", "call_limits_pkey name"}},
	})
}

const fillSQL = `
INSERT INTO call_limits (name, version, rate, window_size, slack, send_within, queues, applied_at, applied_by, epoch)
SELECT 'l' || i, 1, 100, '1 min', '1 s', '1 s', '{}', now(), 'test', callq_epoch() FROM generate_series(1, 20) i;
INSERT INTO call_queues SELECT 'q' || i, '{l1}', '', 3, '1 s', '1 min', '30 s', 'retry' FROM generate_series(1, 5) i;
INSERT INTO call_queue (status) SELECT CASE i % 10 WHEN 0 THEN 'done' WHEN 1 THEN 'dispatched' ELSE 'new' END FROM generate_series(1, 20000) i;
INSERT INTO call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, 1, 0, 1, 1, now(), now(), now(), callq_epoch(), 'http', queue, 'http', '', '{l1}', '{""}', '{1}' FROM call_queue WHERE status = 'dispatched';
INSERT INTO call_usage SELECT 'l' || i % 20, '', now() + i * interval '1 ms', i % 4, 1 FROM generate_series(1, 20000) i`
