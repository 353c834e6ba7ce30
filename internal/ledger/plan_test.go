package ledger

import (
	"slices"
	"strings"
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// The plans of the start and the close, made while the tables are empty and when they are full:
// they find every row by its id, and so lock rows in the order of the ids they were asked for.
func TestPlans(t *testing.T) {
	t.Parallel()
	statements := map[string]struct {
		sql  string
		uses []string
	}{
		"start": {startSQL, []string{"call_open_pkey", "call_queue_pkey", "call_queues_pkey", "call_limits_pkey"}},
		"close": {closeSQL, []string{"call_open_pkey", "call_queue_pkey", "call_limits_pkey"}},
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
			for _, scan := range pgtest.Plan(t, pool, Settings(), s.sql) {
				if scan.Index == "" && !strings.HasPrefix(scan.Table, "call_") || scan.Node == "Bitmap Heap Scan" {
					continue
				}
				if !slices.Contains(s.uses, scan.Index) || scan.Cond == "" {
					t.Errorf("%s, on %s tables: %+v, want %q by a condition", name, state, scan, s.uses)
				}
				used = append(used, scan.Index)
			}
			for _, index := range s.uses {
				if !slices.Contains(used, index) {
					t.Errorf("%s, on %s tables, does not use %s", name, state, index)
				}
			}
		}
	}
}

const fillSQL = `
INSERT INTO call_limits (name, version, rate, window_size, slack, send_within, queues, published_at, published_by, epoch)
SELECT 'l' || i, 1, 100, '1 min', '1 s', '1 s', '{}', now(), 'test', callq_epoch() FROM generate_series(1, 20) i;
INSERT INTO call_queues SELECT 'q' || i, 1, '{l1}', '', 3, '1 s', '1 min', '30 s', 'retry', now(), 'test' FROM generate_series(1, 5) i;
INSERT INTO call_queue (status) SELECT CASE i % 10 WHEN 0 THEN 'done' WHEN 1 THEN 'dispatched' ELSE 'new' END FROM generate_series(1, 20000) i;
INSERT INTO call_open (call_id, attempt, parcel_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, 1, 0, 1, 1, now(), now(), now(), callq_epoch(), 'http', queue, 'http', '', '{l1}', '{""}', '{1}' FROM call_queue WHERE status = 'dispatched';
INSERT INTO call_usage SELECT 'l' || i % 20, '', now() + i * interval '1 ms', i % 4, 1 FROM generate_series(1, 20000) i;
ANALYZE`
