package report

import (
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// Of a limit that very many keys use, the fullest key is found among those that wait, that run, or that use it very
// often, without reading all usage. Where they are fewer, it is found whatever it does.
func TestFullestKey(t *testing.T) {
	t.Parallel()
	const limitsSQL = `INSERT INTO call_limits (name, version, rate, window_size, shape, per_key, slack, send_within, queues, published_at, published_by, epoch, complete_since)
		SELECT name, 1, 1000, span, shape, per_key, '1 s', '1 s', '{q}', now(), '', callq_epoch(), now()
		FROM (VALUES ('all', false, '1 h'::interval, '{}'::jsonb), ('each', true, '1 h', '{}'),
			('bucket', true, '20 h', '{"algorithm": "token_bucket", "period": "1h", "burst": 1000}')) AS l (name, per_key, span, shape)`
	use := func(keys string) string {
		return `INSERT INTO call_usage SELECT name, key, now() - n * interval '10 ms', 0, used
			FROM (VALUES ('each'), ('bucket')) AS l (name) CROSS JOIN (` + keys + `) k`
	}
	const full = `SELECT 'full' AS key, 700 AS used, 1 AS n`
	for name, then := range map[string]string{
		"waits":      `INSERT INTO call_lines (queue, key, priority, task, calls, tail) VALUES ('q', 'full', 5, 'http', 1, 1)`,
		"is blocked": `INSERT INTO call_lines (queue, key, priority, task, calls, tail, wake_at) VALUES ('q', 'full', 5, 'http', 1, 1, now() + interval '1 h')`,
		"waits, of many": `INSERT INTO call_lines (queue, key, priority, task, calls, tail, wake_at)
			SELECT 'q', CASE i WHEN 5000 THEN 'full' ELSE 'k' || i END, 5, 'http', 1, 1, now() + i * interval '1 s' FROM generate_series(1, 5000) i`,
		"has one open": `INSERT INTO call_open (call_id, attempt, parcel_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
			SELECT 1, 1, 1, 1, 1, now(), now(), now(), '', '', 'q', 'http', 'full', '{all,each,bucket}', '{"",full,full}', '{1,1,1}'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			exec(t, pool, limitsSQL)
			exec(t, pool, use(full))
			exec(t, pool, then)
			check := func(units int64) {
				t.Helper()
				limits, err := ReadLimits(t.Context(), pool)
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range limits {
					if l.PerKey && (l.Occupied < units-4 || l.Occupied > units+1) {
						t.Errorf("of %s %d are occupied, want %d", l.Name, l.Occupied, units)
					}
				}
			}
			check(700)
			exec(t, pool, use(`SELECT 'u' || i AS key, 1 AS used, i AS n FROM generate_series(1, 60000) i`))
			exec(t, pool, `VACUUM ANALYZE`)
			check(700)
			if n := pgtest.Work(t, pool, map[string]string{"jit": "off"}, likelySQL, "NULL", "1"); n > 30_000 {
				t.Errorf("to find keys among 120,000 rows of usage, plans handled %d", n)
			}
			exec(t, pool, `DELETE FROM call_usage WHERE key = 'full'`)
			exec(t, pool, use(`SELECT 'often' AS key, 1 AS used, i AS n FROM generate_series(1, 900) i`))
			exec(t, pool, `ANALYZE call_usage`)
			check(900)
			var likely bool // though nothing is drawn
			if err := pool.QueryRow(t.Context(), `SELECT 'often' IN (SELECT k.key FROM (`+likelySQL+`) AS k (name, key))`, nil, 0).Scan(&likely); err != nil || !likely {
				t.Errorf("a key that is used very often is passed over, %v", err)
			}
		})
	}
}
