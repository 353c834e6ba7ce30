package admin

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/pgtest"
)

// takeIn takes a queue's due news into its lines.
func takeIn(t *testing.T, pool *pgxpool.Pool, queue string) {
	t.Helper()
	for all := false; !all; {
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			taken, err := backlog.Drain(t.Context(), tx, &pgx.Batch{}, backlog.Due{Queue: queue, Now: time.Now()})
			all = taken.All
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}

// The counts are of all calls that no claim has passed, whether they are in the inbox, in flows, or partly each, and
// whatever became of them; by key too. A queue that is not in force counts as long as some of its calls wait.
func TestReadWaiting(t *testing.T) {
	t.Parallel()
	type counts struct{ Waiting, Due int64 }
	for _, taken := range []string{"nothing is", "some are", "all are"} {
		t.Run(taken+" taken in", func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			insert := func(queue, task string, n int, at string) {
				keys := 30
				if n%1000 == 500 { // then each has one of its own
					keys = n
				}
				exec(t, pool, fmt.Sprintf(`INSERT INTO call_queue (queue, task, key, run_at)
					SELECT '%s', '%s', 'k' || i %% %d, now() + interval '%s' FROM generate_series(1, %d) i`, queue, task, keys, at, n))
			}
			insert("a", "many", 6000, "-1 h")
			insert("a", "many", 2500, "1 h")
			insert("b", "less", 1500, "-1 h")
			if taken == "some are" {
				takeIn(t, pool, "a")
				takeIn(t, pool, "b")
			}
			insert("a", "few", 5, "1 h")
			insert("a", "few", 30, "-1 m")
			insert("b", "less", 300, "-1 m")
			insert("b", "gone", 9, "-1 h")
			if taken == "all are" {
				takeIn(t, pool, "a")
				takeIn(t, pool, "b")
			}
			exec(t, pool, `UPDATE call_queue SET status = 'cancelled' WHERE id % 10 = 0 OR task = 'gone'`)

			want, got := map[string]counts{}, map[string]counts{}
			rows, err := pool.Query(t.Context(), `SELECT queue || ' ' || task, count(*), count(*) FILTER (WHERE run_at <= now())
				FROM call_queue WHERE task <> 'gone' GROUP BY 1`)
			if err != nil {
				t.Fatal(err)
			}
			var name string
			var c counts
			if _, err := pgx.ForEachRow(rows, []any{&name, &c.Waiting, &c.Due}, func() error {
				want[name] = c
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			waiting, err := Collect[Waiting](t.Context(), pool, "count what waits", waitingSQL)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range waiting {
				got[w.Queue+" "+w.Task] = counts{w.Waiting, w.Due}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}

			exec(t, pool, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, per_key, slack, send_within, queues, applied_at, applied_by, epoch)
				VALUES ('l', 1, 1, '1 h', '3.6 s', true, '1 s', '1 s', '{a,b}', now(), '', '')`)
			exec(t, pool, `INSERT INTO callq.call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost)
				SELECT name, '{l}', '', 3, '1 s', '1 m', '1 m', 'retry' FROM unnest('{a,b}'::text[]) q (name)`)
			var most Forecast
			if err := pool.QueryRow(t.Context(), `SELECT key, count(*), (SELECT count(*) FROM call_queue)
				FROM call_queue GROUP BY key ORDER BY 2 DESC, 1 LIMIT 1`).Scan(&most.Key, &most.OfKey, &most.Waiting); err != nil {
				t.Fatal(err)
			}
			forecasts, err := ReadForecasts(t.Context(), pool, []string{"l"})
			if err != nil || len(forecasts) != 1 {
				t.Fatalf("%+v, %v", forecasts, err)
			}
			if f := forecasts[0]; *f.Key != *most.Key || f.OfKey != most.OfKey || f.Waiting != most.Waiting {
				t.Errorf("forecast of %+v, want of %+v", f, most)
			}
		})
	}
}

// Of queues that are in no configuration, and tasks that no worker takes, a producer may write any number: those with most
// calls are named. What is configured and handled always is.
//
//callq:guarantee 12
func TestManyUnknownQueues(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO callq.call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost)
		VALUES ('known', '{}', '', 3, '1 s', '1 m', '1 m', 'retry')`)
	exec(t, pool, `INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at) VALUES ('w', 'http', '{http}', '{}', 1, now(), now() + interval '1 h')`)
	exec(t, pool, `INSERT INTO call_queue (queue) SELECT 'unknown-' || i FROM generate_series(1, 5000) i`)
	exec(t, pool, `INSERT INTO call_queue (queue, task) SELECT 'known', 'task-' || i FROM generate_series(1, 500) i`)
	exec(t, pool, `INSERT INTO call_queue (queue) SELECT 'known' FROM generate_series(1, 3)`)
	exec(t, pool, `INSERT INTO call_queue (queue) SELECT 'most' FROM generate_series(1, 9)`)
	exec(t, pool, `INSERT INTO call_queue (queue, status, failed_at) SELECT 'failed-' || i, 'failed', now() FROM generate_series(1, 2000) i`)
	takeIn(t, pool, "known")
	s, err := ReadStatus(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	waiting := map[string]int64{}
	for _, q := range s.Queues {
		waiting[q.Name] = q.Waiting
	}
	if n := len(waiting); n < 500 || n > 1101 || waiting["known"] != 503 || waiting["most"] != 9 {
		t.Errorf("%d queues: %v", n, waiting)
	}
	if len(s.Unhandled) != 500 {
		t.Errorf("no worker is there for %d tasks, want 500", len(s.Unhandled))
	}
	settings := map[string]string{"jit": "off", "max_parallel_workers_per_gather": "0"}
	if n := pgtest.Work(t, pool, settings, waitingSQL); n > 16*5500 { // read, and grouped; each may be handled a few times
		t.Errorf("to count 5,500 pairs, plans handled %d rows", n)
	}
}
