package dispatcher

import (
	"testing"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
)

// The plans of the statements that run all the time. call_workers, the rules and the pauses are small, and may
// be read as a whole.
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, ledger.Settings(), fillSQL, []string{"call_workers", "call_queues", "call_limits", "call_pauses"}, map[string]pgtest.Planned{
		"due":             {SQL: dueSQL, Uses: []string{"call_news_at_idx at", "call_lines_wake_idx wake_at", "call_lines_active_idx queue"}},
		"paused":          {SQL: pausedSQL},
		"paused keys":     {SQL: pausedKeysSQL},
		"occupied":        {SQL: occupiedSQL, Uses: []string{"call_open_batch_idx batch", "call_usage_pkey limit_name"}},
		"charges":         {SQL: chargesSQL, Uses: []string{"call_open_batch_idx batch", "call_usage_pkey limit_name"}},
		"overrides":       {SQL: overridesSQL},
		"open":            {SQL: openSQL, Uses: []string{"call_queue_pkey id"}},
		"refuse":          {SQL: refuseSQL, Uses: []string{"call_queue_pkey id"}},
		"roster":          {SQL: rosterSQL, Uses: []string{"call_open_batch_idx batch"}},
		"handed":          {SQL: handedSQL, Uses: []string{"call_open_batch_idx batch"}},
		"readdress":       {SQL: readdressSQL, Uses: []string{"call_open_pkey call_id"}},
		"expire":          {SQL: expireSQL, Uses: []string{"call_queue_expires_idx expires_at", "call_queue_pkey id"}},
		"lost":            {SQL: overdueSQL + lostWhere, Uses: []string{"call_open_batch_idx batch", "call_queue_pkey id"}},
		"unstarted":       {SQL: overdueSQL + unstartedWhere, Uses: []string{"call_open_batch_idx batch", "call_queue_pkey id"}},
		"older epoch":     {SQL: overdueSQL + epochWhere, Uses: []string{"call_open_batch_idx batch", "call_queue_pkey id"}},
		"lock the queue":  {SQL: lockQueueSQL},
		"lock the limits": {SQL: lockLimitsSQL},
		"tidy usage":      {SQL: tidyUsageSQL, Uses: []string{"call_usage_pkey limit_name"}},
		"retire calls":    {SQL: retireCallsSQL, Uses: []string{"call_open_pkey call_id", "call_queue_pkey id"}},
		"retire attempts": {SQL: retireAttemptsSQL, Uses: []string{"call_open_pkey call_id", "call_attempts_pkey call_id", "call_queue_pkey id"}},
	})
}

// Calls in all states, most of them waiting; the ledger and usage of many more.
const fillSQL = `
INSERT INTO call_queues SELECT 'q' || i, '{api}', '', 3, '1 s', '1 min', '30 s', 'retry' FROM generate_series(1, 5) i;
INSERT INTO call_limits (name, version, rate, window_size, per_key, count_cost, slack, send_within, queues, published_at, published_by, epoch)
SELECT 'l' || i, 1, 100, '1 min', false, false, '1 s', '1 s', '{}', now(), 'test', callq_epoch() FROM generate_series(1, 20) i;
INSERT INTO call_queue (queue, key, status, expires_at)
SELECT 'q' || i % 5, CASE i % 3 WHEN 0 THEN '' ELSE 'k' || i % 1000 END, CASE i % 10 WHEN 0 THEN 'done' WHEN 1 THEN 'dispatched' ELSE 'new' END, CASE i % 100 WHEN 0 THEN now() + interval '1 h' END
FROM generate_series(1, 20000) i;
INSERT INTO call_open (call_id, attempt, parcel_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, 1, 0, 1, 1, now(), now(), now(), callq_epoch(), 'http', queue, 'http', '', '{l1}', '{""}', '{1}' FROM call_queue WHERE status = 'dispatched';
INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, arrived_by, outcome, queue, task, key, charged)
SELECT i, 1, 1, now(), now(), now(), 'done', 'q1', 'http', '', '[]' FROM generate_series(1, 20000) i;
INSERT INTO call_usage SELECT 'l' || i % 20, '', now() + i * interval '1 ms', i % 4, 1 FROM generate_series(1, 20000) i;
INSERT INTO call_workers SELECT 'w' || i, 'http', '{http}', '{}', 100, now(), now() FROM generate_series(1, 10) i`
