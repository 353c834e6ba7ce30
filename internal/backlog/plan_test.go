package backlog

import (
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
)

// Each statement reads no more of the tables than it needs: in order and to a limit where it is only to read the first.
//
//callq:guarantee 9
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.CheckPlans(t, ledger.Settings(), fillSQL, []string{"call_queues"}, map[string]pgtest.Planned{
		"drain":   {SQL: drainSQL, Ordered: "call_inbox_due_idx"},
		"wake":    {SQL: wakeSQL, Ordered: "call_flows_wake_idx"},
		"onward":  {SQL: wakeOnwardSQL},
		"walk":    {SQL: walkSQL, Ordered: "call_flows_active_idx"},
		"skip":    {SQL: skipSQL, Ordered: "call_segments_pkey"},
		"first":   {SQL: firstSQL, Ordered: "call_segments_pkey"},
		"requeue": {SQL: requeueSQL},
		"park":    {SQL: parkSQL},
		"consume": {SQL: consumeSQL},
	})
}

// What is new costs no look at the first call of its flow: only what is there again may go before that.
func TestNewCallsAreNotCompared(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewWith(t, ledger.Settings())
	args := pgx.StrictNamedArgs{"queue": "q", "since": (*time.Time)(nil), "now": time.Now(), "rows": maxFlows, "calls": maxCalls, "places": []string{}, "told": maxTold}
	rows, _ := pool.Query(t.Context(), "EXPLAIN "+drainSQL, pgx.QueryExecModeExec, args)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(plan, "\n"); !strings.Contains(text, "One-Time Filter: (r.again AND (k.place IS NULL))") {
		t.Errorf("the first call is looked up for each row of inbox:\n%s", text)
	}
}

const fillSQL = `
INSERT INTO call_queue (queue, key, priority) SELECT 'q' || i % 5, 'k' || i % 1000, i % 3 FROM generate_series(1, 20000) i;
INSERT INTO callq.call_flows (queue, key, priority, task, calls, tail, wake_at)
SELECT 'q' || i % 5, 'k' || i, 5, 'http', 2000, 20, CASE i % 3 WHEN 0 THEN now() + i * interval '1 s' END FROM generate_series(1, 20000) i;
INSERT INTO callq.call_segments (queue, key, priority, task, seq, at, ids)
SELECT 'q1', 'k' || i % 100, 5, 'http', i, now(), ARRAY[i] FROM generate_series(1, 20000) i`
