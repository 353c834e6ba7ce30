package admin

import (
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// Of a limit that very many keys use, the one that uses most is shown.
func TestFullestKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO call_limits (name, version, rate, window_size, shape, per_key, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
		SELECT name, 1, 1000, span, shape, true, '1 s', '1 s', '{q}', now(), '', callq_epoch(), now()
		FROM (VALUES ('each', '1 h'::interval, '{}'::jsonb), ('bucket', '20 h', '{"algorithm": "token_bucket", "period": "1h", "burst": 1000}')) AS l (name, span, shape)`)
	exec(t, pool, `INSERT INTO call_usage SELECT name, key, now() - n * interval '10 ms', 0, used
		FROM (VALUES ('each'), ('bucket')) AS l (name)
		CROSS JOIN (SELECT 'full' AS key, 700 AS used, 1 AS n UNION ALL SELECT 'u' || i, 1, i FROM generate_series(1, 2000) i) k`)
	limits, err := ReadLimits(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range limits {
		if l.Occupied < 696 || l.Occupied > 701 {
			t.Errorf("of %s %d are occupied, want 700", l.Name, l.Occupied)
		}
	}
	r := &reader{ctx: t.Context(), db: pool}
	if limits = r.limits(nil, new("u7")); r.err != nil || len(limits) != 2 || limits[0].Occupied > 1 || limits[1].Occupied != 1 {
		t.Errorf("of one key: %+v, %v", limits, r.err)
	}
}

// What one key uses is read without all usage.
func TestUsageOfOneKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO call_limits (name, version, rate, window_size, per_key, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
		SELECT name, 1, 1000, '1 h', true, '1 s', '1 s', '{q}', now(), '', callq_epoch(), now() FROM unnest('{each,other}'::text[]) AS l (name)`)
	exec(t, pool, `INSERT INTO call_usage SELECT 'each', 'u' || i, now(), 0, 1 FROM generate_series(1, 30000) i`)
	exec(t, pool, `VACUUM ANALYZE`)
	settings := map[string]string{"jit": "off", "plan_cache_mode": "force_custom_plan"}
	if n := pgtest.Work(t, pool, settings, usageSQL, "'{each,other}'", "ARRAY[now() - interval '1 h', now() - interval '1 h']", "'u7'"); n > 2000 {
		t.Errorf("to read what one of 30,000 keys uses, plans handled %d", n)
	}
}
