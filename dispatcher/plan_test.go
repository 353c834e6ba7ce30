package dispatcher

import (
	"slices"
	"strings"
	"testing"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
)

// The plans of the statements that run all the time, made while the tables are empty and when they
// are full: each reads the tables that grow through an index and by a condition, and the queue in
// its order. call_open, call_workers and the rules are small, and may be read as a whole.
func TestPlans(t *testing.T) {
	t.Parallel()
	statements := map[string]struct {
		sql  string
		uses []string // scans of tables that grow: index, and a column of its condition
	}{
		"due":             {dueSQL, []string{"call_news_at_idx at", "call_lines_wake_idx wake_at", "call_lines_active_idx queue"}},
		"paused":          {pausedSQL, nil},
		"paused keys":     {pausedKeysSQL, nil},
		"occupied":        {occupiedSQL, []string{"call_usage_pkey limit_name"}},
		"open":            {openSQL, []string{"call_queue_pkey id"}},
		"refuse":          {refuseSQL, []string{"call_queue_pkey id"}},
		"roster":          {rosterSQL, nil},
		"handed":          {handedSQL, nil},
		"readdress":       {readdressSQL, nil},
		"expire":          {expireSQL, []string{"call_queue_expires_idx expires_at", "call_queue_pkey id"}},
		"lost":            {overdueSQL + lostWhere, []string{"call_queue_pkey id"}},
		"unstarted":       {overdueSQL + unstartedWhere, []string{"call_queue_pkey id"}},
		"older epoch":     {overdueSQL + epochWhere, []string{"call_queue_pkey id"}},
		"lock the queue":  {lockQueueSQL, nil},
		"lock the limits": {lockLimitsSQL, nil},
		"tidy usage":      {tidyUsageSQL, []string{"call_usage_pkey limit_name"}},
		"retire calls":    {retireCallsSQL, []string{"call_queue_pkey id"}},
		"retire attempts": {retireAttemptsSQL, []string{"call_attempts_pkey call_id", "call_queue_pkey id"}},
	}
	pool := pgtest.New(t)
	for _, state := range []string{"empty", "full"} {
		if state == "full" {
			if _, err := pool.Exec(t.Context(), fillSQL); err != nil {
				t.Fatal(err)
			}
		}
		for name, s := range statements {
			var used []string
			for _, scan := range pgtest.Plan(t, pool, ledger.Settings(), s.sql) {
				grows := strings.HasPrefix(scan.Index, "call_queue_") || strings.HasPrefix(scan.Index, "call_usage_") ||
					slices.Contains([]string{"call_queue", "call_usage", "call_attempts", "call_news", "call_lines", "call_waiting"}, scan.Table)
				if !grows || scan.Node == "Bitmap Heap Scan" { // its index is a scan below it
					continue
				}
				i := slices.IndexFunc(s.uses, func(use string) bool {
					index, column, _ := strings.Cut(use, " ")
					return scan.Index == index && strings.Contains(scan.Cond, column)
				})
				if i < 0 {
					t.Errorf("%s, on %s tables: %+v, want one of %q", name, state, scan, s.uses)
					continue
				}
				used = append(used, s.uses[i])
			}
			for _, use := range s.uses {
				if !slices.Contains(used, use) {
					t.Errorf("%s, on %s tables, does not use %s", name, state, use)
				}
			}
		}
	}
}

// Calls in all states, most of them waiting; the ledger and usage of many more.
const fillSQL = `
INSERT INTO call_queues SELECT 'q' || i, 1, '{api}', '', 3, '1 s', '1 min', '30 s', 'retry', now(), 'test' FROM generate_series(1, 5) i;
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
INSERT INTO call_workers SELECT 'w' || i, 'http', '{http}', '{}', 100, now(), now() FROM generate_series(1, 10) i;
ANALYZE`
