package admin

import (
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// Failed calls are in groups by queue, task, code and what their errors have in common, the largest first; others are in none.
func TestErrorGroups(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `SET callq.repair = 'on'; INSERT INTO call_queue (queue, task, status, failed_at, finished_at, attempts, error_message)
		SELECT q, 'http', s, now() - i * interval '1 s', now(), 1, e || CASE WHEN i % 2 = 0 THEN ' 17' ELSE ' 3fa85f64-5717-4562-b3fc-2c963f66afa6' END
		FROM generate_series(1, 10) i, (VALUES ('pay', 'failed', 'no account "acct_' || 1 || '" in region'), ('pay', 'failed', 'timeout after'), ('mail', 'failed', 'timeout after'),
			('pay', 'cancelled', 'timeout after')) AS c (q, s, e)
		WHERE i <= CASE q WHEN 'mail' THEN 4 ELSE 10 END`)
	exec(t, pool, `INSERT INTO call_attempts (call_id, attempt, code, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
		SELECT id, 1, CASE WHEN error_message LIKE 'no%' THEN 402 END, 1, now(), now(), 'permanent', queue, 'http', '', '[]' FROM call_queue`)
	groups, err := ReadErrors(t.Context(), pool, Filter{}, 100)
	if err != nil || len(groups) != 3 {
		t.Fatalf("%+v, %v", groups, err)
	}
	for i, want := range []ErrorGroup{
		{Queue: "pay", Shape: `no account "…" in region #`, Calls: 10}, {Queue: "pay", Shape: "timeout after #", Calls: 10}, {Queue: "mail", Shape: "timeout after #", Calls: 4},
	} {
		found := false
		for _, g := range groups {
			if g.Queue == want.Queue && g.Shape == want.Shape && g.Calls == want.Calls && g.Last.After(g.First) && g.Example > 0 {
				found = (g.Code != nil && *g.Code == 402) == (i == 0)
			}
		}
		if !found {
			t.Errorf("%+v is not among %+v", want, groups)
		}
	}
	if groups, err := ReadErrors(t.Context(), pool, Filter{Queue: "mail"}, 100); err != nil || len(groups) != 1 {
		t.Errorf("%+v, %v", groups, err)
	}
}
