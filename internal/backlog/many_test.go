package backlog_test

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// inLineRight fails the test unless the inbox and flows say of each call that waits where and since when it does.
func (q *queue) inLineRight() {
	q.t.Helper()
	q.sound()
	if n := q.value(`SELECT count(*) FROM call_queue q LEFT JOIN callq.call_backlog i ON i.id = q.id
			WHERE q.status IN ('new', 'error') AND (i.queue, i.key, i.priority, i.task) IS DISTINCT FROM (coalesce(q.queue, 'default'),
				coalesce(q.key, ''), least(greatest(coalesce(q.priority, 5), 0), 9), coalesce(q.task, 'http'))`); n > 0 {
		q.t.Errorf("%d calls are not in their flow", n)
	}
	if n := q.value(`SELECT count(*) FROM callq.call_inbox n CROSS JOIN LATERAL unnest(n.ids) AS i (id) JOIN call_queue q USING (id)
			WHERE n.at <> coalesce(q.run_at, q.created_at)`); n > 0 {
		q.t.Errorf("of %d calls the inbox say another time", n)
	}
}

// Calls that wait each for a time of their own, however they came, fall due in their time, and come out in the order in
// which they did.
func TestManyTimes(t *testing.T) {
	t.Parallel()
	const calls = 3000
	alone := func(columns, values string) string {
		return fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP INSERT INTO call_queue (queue, %s) VALUES ('q', %s); END LOOP; END $$`, calls, columns, values)
	}
	const soon = `now() + interval '1 minute' + i * 7919 % 3000 * interval '1 second'`
	for name, insert := range map[string]string{
		"in one statement": `INSERT INTO call_queue (queue, run_at) SELECT 'q', ` + soon + ` FROM generate_series(1, 3000) i`,
		"with keys, priorities and tasks": `INSERT INTO call_queue (queue, key, priority, task, run_at)
			SELECT 'q', 'k' || i % 100, nullif(i % 3, 0), CASE WHEN i % 5 = 0 THEN 'mail' END, ` + soon + ` FROM generate_series(1, 3000) i`,
		"some queues":                     `INSERT INTO call_queue (queue, run_at) SELECT CASE i % 2 WHEN 0 THEN 'q' END, ` + soon + ` FROM generate_series(1, 6000) i`,
		"alone":                           alone("run_at", soon),
		"alone, with keys and priorities": alone("key, priority, run_at", "'k' || i % 100, i % 3, "+soon),
		"to be tried again":               alone("status, run_at", "'dispatched', "+soon) + `; UPDATE call_queue SET status = 'error'`,
		"some never":                      alone("run_at", "CASE i % 100 WHEN 0 THEN 'infinity' ELSE "+soon+" END"),
		"few at a time":                   alone("run_at", soon) + `; INSERT INTO call_queue (queue, run_at) SELECT 'q', run_at FROM call_queue`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			q.exec(`INSERT INTO callq.call_queues SELECT n, '{}', '', 3, '1 s', '1 min', '30 s', 'retry' FROM unnest(ARRAY['q', 'r']) n`)
			q.exec(insert)
			q.inLineRight()
			var began time.Time
			if err := q.pool.QueryRow(t.Context(), `SELECT min(created_at) FROM call_queue`).Scan(&began); err != nil {
				t.Fatal(err)
			}
			for _, after := range []time.Duration{59 * time.Second, time.Minute, 61 * time.Second, 100 * time.Second, 30 * time.Minute, 2 * time.Hour} {
				now := began.Add(after)
				q.drainAt(now)
				q.inLineRight()
				for what, count := range map[string]string{
					"in flows":        `SELECT coalesce(sum(calls), 0) FROM callq.call_flows WHERE queue = 'q'`,
					"no longer inbox": `SELECT (SELECT count(*) FROM call_queue WHERE queue = 'q') - sum(calls) FROM (SELECT calls FROM callq.call_inbox WHERE queue = 'q' UNION ALL SELECT 0) n`,
				} {
					want := q.value(`SELECT count(*) FROM call_queue WHERE queue = 'q' AND run_at <= '` + now.Format(time.RFC3339Nano) + `'`)
					if got := q.value(count); got != want {
						t.Errorf("after %s %d calls are %s, of %d", after, got, what, want)
					}
				}
			}
			q.exec(`UPDATE call_queue SET task = 'http' WHERE task = 'mail'`)
			q.drainAt(began.Add(2 * time.Hour))
			claimed := q.claimAll()
			if q.value(`SELECT count(*) FROM callq.call_flows WHERE queue = 'q'`) == 1 {
				var back int64
				if err := q.pool.QueryRow(t.Context(), backSQL, claimed).Scan(&back); err != nil || back > 0 {
					t.Errorf("%d calls came out after such as fell due later: %v", back, err)
				}
			}
			slices.Sort(claimed)
			if n := q.value(`SELECT count(*) FROM call_queue WHERE queue = 'q' AND run_at < 'infinity'`); int64(len(slices.Compact(claimed))) != n {
				t.Errorf("%d calls came out, of %d", len(claimed), n)
			}
		})
	}
}

const backSQL = `
SELECT count(*)
FROM (SELECT run_at < lag(run_at) OVER (ORDER BY place) AS back FROM unnest($1::bigint[]) WITH ORDINALITY AS c (id, place) JOIN call_queue USING (id)) o
WHERE back`

// Where most calls of a statement have a key of their own, they are few rows of inbox: each comes into its own flow,
// some two thousand with each drain, and out once.
func TestManyKeysAtOnce(t *testing.T) {
	t.Parallel()
	for name, insert := range map[string]string{
		"a key each":              `INSERT INTO call_queue (queue, key) SELECT 'q', 'k' || i FROM generate_series(1, 5500) i`,
		"some share one":          `INSERT INTO call_queue (queue, key) SELECT 'q', CASE WHEN i % 3 > 0 THEN 'k' || i END FROM generate_series(1, 5500) i`,
		"half of another queue":   `INSERT INTO call_queue (queue, key) SELECT CASE i % 2 WHEN 0 THEN 'q' ELSE 'r' END, 'k' || i FROM generate_series(1, 5500) i`,
		"priorities and times":    `INSERT INTO call_queue (queue, key, priority, run_at) SELECT 'q', 'k' || i, i % 12 - 1, now() + i % 3 * interval '1 s' FROM generate_series(1, 5500) i`,
		"some are done":           `INSERT INTO call_queue (queue, key, status) SELECT 'q', 'k' || i, CASE i % 2 WHEN 0 THEN 'new' ELSE 'done' END FROM generate_series(1, 5500) i`,
		"ids of their own":        `INSERT INTO call_queue (id, queue, key) OVERRIDING SYSTEM VALUE SELECT 1000000 - i * 7, 'q', 'k' || i FROM generate_series(1, 5500) i`,
		"after many with one key": `INSERT INTO call_queue (queue, key) SELECT 'q', CASE WHEN i > 500 THEN 'k' || i ELSE 'same' END FROM generate_series(1, 5500) i`,
		"two":                     `INSERT INTO call_queue (queue, key) VALUES ('q', 'a'), ('q', 'b')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			q.exec(insert)
			q.inLineRight()
			if rows := q.value(`SELECT count(*) FROM callq.call_inbox WHERE keys IS NOT NULL`); rows > 200 || rows == 0 && name != "after many with one key" {
				t.Errorf("%d rows of inbox have many keys", rows)
			}
			q.exec(`INSERT INTO call_queue (queue, key) VALUES ('q', 'k2')`)
			for all, before := false, int64(0); !all; {
				all = q.drainOnce(time.Now().Add(time.Hour))
				now := q.value(`SELECT count(*) FROM callq.call_flows`)
				if now-before > 2000+2048 {
					t.Errorf("a drain made %d flows", now-before)
				}
				before = now
			}
			q.inLineRight()
			if left := q.value(`SELECT count(*) FROM callq.call_inbox WHERE queue = 'q'`); left > 0 {
				t.Errorf("all is consumed in, but for %d rows of inbox", left)
			}
			claimed := q.claimAll()
			slices.Sort(claimed)
			if n := len(slices.Compact(slices.Clone(claimed))); n < len(claimed) {
				t.Errorf("%d calls came out %d times", n, len(claimed))
			}
			if n := q.value(`SELECT count(*) FROM call_queue WHERE queue = 'q' AND status = 'new'`); n > 0 {
				t.Errorf("%d calls never came out", n)
			}
		})
	}
}
