package ledger_test

import (
	"testing"

	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/migrations"
)

// What a former release wrote is sound after its database was migrated, and so is what it left open.
func TestVerifyOfAFormerRelease(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for last := ""; last != "00007_definer.sql"; { // the first of this release
		step, err := migrations.Down(t.Context(), pool.Config().ConnConfig)
		if err != nil || step == nil {
			t.Fatalf("take back the step before %s: %v", last, err)
		}
		last = step.File
	}
	exec(t, pool, formerRows)
	if _, err := migrations.Up(t.Context(), pool.Config().ConnConfig); err != nil {
		t.Fatal(err)
	}
	if report := verify(t, pool); len(report.Findings) > 0 || report.Calls != 6 || report.Attempts != 8 || report.Limits[1].Starts != 4 {
		t.Errorf("%d calls, %d attempts, limits %+v: %+v", report.Calls, report.Attempts, report.Limits, report.Findings)
	}
	exec(t, pool, `UPDATE call_attempts SET charged = '[]' WHERE call_id = 1 AND attempt = 2`)
	if report := verify(t, pool); len(report.Findings) == 0 {
		t.Error("a charge that was taken away is not found")
	}
}

// Calls: tried again and done; settled; lost; cancelled and retried; running; handed over. Versions as a file, and an operator, published them.
const formerRows = `
CREATE TEMPORARY TABLE at ON COMMIT DROP AS SELECT date_trunc('second', now() - interval '1 minute') AS t;
INSERT INTO call_limits (name, version, rate, window_size, slack, send_within, count_cost, queues, published_at, published_by, complete_since, epoch)
SELECT name, version, 15, '1 h', '1 m', '5 s', name = 'cost', queues, t - interval '1 day', 'vm/1', t - interval '1 day', callq_epoch()
FROM at, (VALUES ('api', 2, '{http}'::text[]), ('cost', 1, '{http,own}')) l (name, version, queues);
INSERT INTO call_limit_changes (limit_name, version, in_force_from, rate, window_size, slack, send_within, count_cost, queues, published_by)
SELECT name, v, t - interval '2 days' + v * interval '1 h', 10 + 5 * (name = 'cost' OR v = 2)::int, window_size, slack, send_within, count_cost, queues, 'vm/1'
FROM at, call_limits, generate_series(1, version) v;
INSERT INTO call_audit (at, by, what, name, change)
SELECT in_force_from, 'vm/1', 'limit', limit_name, rate || ' per 1h, sliding window' || CASE WHEN count_cost THEN ', by cost' ELSE '' END || ', slack 1m0s, send_within 5s'
    || CASE WHEN version = 2 THEN ' (set; config: 10 per 1h, sliding window)' ELSE '' END FROM call_limit_changes ORDER BY 1;
INSERT INTO call_attempts (call_id, attempt, requests, cost, settled, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
SELECT call, n, requests, cost, settled, t, CASE WHEN took > 0 THEN t END, until, CASE WHEN took > 0 THEN t + took * interval '1 s' ELSE t END, outcome, queue, task, '',
    coalesce((SELECT jsonb_agg(jsonb_build_object('limit', l.name, 'key', '', 'cost', CASE WHEN l.count_cost THEN coalesce(settled, cost) ELSE 1 END, 'until', until))
        FROM call_limits l WHERE l.queues @> ARRAY[queue] AND until IS NOT NULL), '[]')
FROM (VALUES (1, 1, 1, 2, NULL, 1, 1, 'error', 'http', 'http'), (1, 2, 1, 2, NULL, 1, 1, 'done', 'http', 'http'), (2, 1, NULL, 5, 3, 2, 2, 'done', 'own', 'bill'),
        (3, 1, NULL, 1, NULL, 40, 65, 'lost', 'http', 'http'), (4, 1, NULL, 1, NULL, 0, NULL, 'cancelled', 'http', 'http'), (4, 2, 0, 1, NULL, 1, NULL, 'permanent', 'http', 'http')
    ) a (call, n, requests, cost, settled, took, ended, outcome, queue, task), at, LATERAL (SELECT t + ended * interval '1 s') u (until);
INSERT INTO call_usage SELECT c->>'limit', '', date_bin('18 s', (c->>'until')::timestamptz, 'epoch') + interval '18 s', 1, sum((c->>'cost')::bigint)
FROM call_attempts, jsonb_array_elements(charged) c GROUP BY 1, 3;
INSERT INTO call_queue (status, attempts, failed_count, retried_after, cost, dispatched_at, finished_at, failed_at, queue, task)
SELECT status, n, failed, retried, cost, t, f, CASE WHEN status = 'failed' THEN f END, queue, task
FROM (VALUES ('done', 2, 1, NULL, 2, 1, 'http', 'http'), ('done', 1, 0, NULL, 5, 2, 'own', 'bill'), ('failed', 1, 1, NULL, 1, 40, 'http', 'http'), ('failed', 2, 1, 1, 1, 1, 'http', 'http'),
        ('dispatched', 1, 0, NULL, 1, NULL, 'http', 'http'), ('dispatched', 1, 0, NULL, 1, NULL, 'http', 'http')) q (status, n, failed, retried, cost, took, queue, task),
    at, LATERAL (SELECT t + took * interval '1 s') x (f);
INSERT INTO call_open (call_id, attempt, parcel_no, batch, cost, claimed_at, handed_at, start_by, send_within, epoch, pool, queue, task, key, limits, keys, costs, token, started_at, deadline, worker)
SELECT id, 1, 0, 1, 1, t, t, t + interval '30 s', '5 s', callq_epoch(), 'http', queue, task, '', '{api,cost}', '{"",""}', '{1,1}', s.*
FROM at, call_queue LEFT JOIN LATERAL (SELECT 7, dispatched_at, dispatched_at + interval '5 m', 'w') s ON id = 5 WHERE status = 'dispatched'`
