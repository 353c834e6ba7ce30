package admin

import (
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// Among however many calls that have ended, status finds those that wait, and those that failed, by an index.
func TestStatusReadsNoEndedCalls(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, sql := range []string{
		`INSERT INTO call_queue (status, finished_at) SELECT 'done', now() FROM generate_series(1, 50000)`,
		`INSERT INTO call_queue (status, finished_at, failed_at) SELECT 'failed', now(), now() FROM generate_series(1, 1000)`,
		`INSERT INTO call_queue (key) SELECT 'k' || i FROM generate_series(1, 5000) i`,
		`VACUUM ANALYZE`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for name, sql := range map[string]string{"queues": queuesSQL, "waiting": waitingSQL, "forecast": demandSQL, "oldest": oldestSQL} {
		for _, scan := range pgtest.Plan(t, pool, map[string]string{"timezone": "UTC", "jit": "off"}, sql) {
			if scan.Table == "call_queue" && scan.Index == "" {
				t.Errorf("%s reads all calls: %+v", name, scan)
			}
			if name == "queues" && scan.Table == "call_queue" && (scan.Node != "Index Only Scan" || scan.Index != "call_queue_failed_idx") {
				t.Errorf("the failed are not counted by their index alone: %+v", scan)
			}
		}
	}
}
