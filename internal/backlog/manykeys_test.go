package backlog_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/jackc/pgx/v5"
)

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
		"names too long":          `INSERT INTO call_queue (queue, key) SELECT 'q', repeat('k', 300) || i FROM generate_series(1, 3000) i`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			q.exec(`ALTER TABLE call_queue DISABLE TRIGGER call_queue_bounded`)
			q.exec(insert)
			inLine := func() {
				t.Helper()
				q.sound()
				if n := q.value(`SELECT count(*) FROM call_queue q LEFT JOIN call_backlog i ON i.id = q.id
						WHERE q.status = 'new' AND (i.queue, i.key, i.priority, i.task) IS DISTINCT FROM (q.queue,
							callq_flow_name(q.key, ''), least(greatest(q.priority, 0), 9), q.task)`); n > 0 {
					t.Errorf("%d calls are not in their flow", n)
				}
			}
			inLine()
			if rows := q.value(`SELECT count(*) FROM call_inbox WHERE keys IS NOT NULL`); rows > 200 || rows == 0 && name != "after many with one key" {
				t.Errorf("%d rows of inbox have many keys", rows)
			}
			q.exec(`INSERT INTO call_queue (queue, key) VALUES ('q', 'k2')`)
			for all, before := false, int64(0); !all; {
				q.tx(func(ctx context.Context, tx pgx.Tx) error {
					consumed, err := backlog.Drain(ctx, tx, "q", time.Time{}, time.Now().Add(time.Hour))
					all = consumed.All
					return err
				})
				now := q.value(`SELECT count(*) FROM call_flows`)
				if now-before > 2000+2048 {
					t.Errorf("a drain made %d flows", now-before)
				}
				before = now
			}
			inLine()
			if left := q.value(`SELECT count(*) FROM call_inbox WHERE queue = 'q'`); left > 0 {
				t.Errorf("all is consumed in, but for %d rows of inbox", left)
			}
			q.exec(`UPDATE call_queue SET key = left(key, 255) WHERE octet_length(key) > 255`) // so that they come out
			q.drain()
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
