package admin

import (
	"fmt"
	"slices"
	"strings"
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
			taken, err := backlog.Drain(t.Context(), tx, queue, time.Time{}, time.Now())
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

// Where a queue has few calls of a task, those are counted that still wait; else what lines and news say, which is
// here of all. Both are the same whether the calls are news, in lines, or partly each; by key too.
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
			insert("a", "few", 40, "-1 h")
			insert("b", "less", 1500, "-1 h")
			if taken == "some are" {
				takeIn(t, pool, "a")
				takeIn(t, pool, "b")
			}
			insert("a", "few", 5, "1 h")
			insert("a", "few", 30, "-1 m")
			insert("b", "less", 300, "-1 m")
			insert("b", "gone", 9, "-1 h")
			insert("c", "some", 900, "-1 s")
			insert("c", "moved", 20, "-1 s")
			if taken == "all are" {
				for _, queue := range []string{"a", "b", "c"} {
					takeIn(t, pool, queue)
				}
			}
			exec(t, pool, `UPDATE call_queue SET status = 'cancelled' WHERE id % 10 = 0`)
			exec(t, pool, `DELETE FROM call_queue WHERE task = 'gone'`)
			exec(t, pool, `UPDATE call_queue SET task = 'to' WHERE task = 'moved'`)
			exec(t, pool, `INSERT INTO call_inbox SELECT * FROM call_inbox WHERE task = 'few'`) // they are in line twice

			want, got := map[string]counts{}, map[string]counts{}
			const counted = ` FROM call_queue WHERE (status IN ('new', 'error') OR task = 'many') `
			rows, err := pool.Query(t.Context(), `SELECT queue || ' ' || task, count(*), count(*) FILTER (WHERE run_at <= now())`+counted+`GROUP BY 1`)
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
			waiting, err := ReadWaiting(t.Context(), pool)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range waiting {
				got[w.Queue+" "+w.Task] = counts{w.Waiting, w.Due}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}

			exec(t, pool, `INSERT INTO call_limits (name, version, rate, window_size, per_key, slack, send_within, queues, applied_at, applied_by, epoch)
				VALUES ('l', 1, 1, '1 h', true, '1 s', '1 s', '{a,b}', now(), '', '')`)
			var most demand
			if err := pool.QueryRow(t.Context(), `SELECT key, count(*), (SELECT count(*)`+counted+`AND queue IN ('a', 'b'))`+counted+`AND queue IN ('a', 'b')
				GROUP BY key ORDER BY 2 DESC, 1 LIMIT 1`).Scan(&most.Key, &most.OfKey, &most.Waiting); err != nil {
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

// However many calls wait, lines and news are read once for their sums, by several processes where Postgres has them.
func TestWaitingIsReadOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO call_queue (queue, key) SELECT 'keys', 'k' || i FROM generate_series(1, 8000) i`)
	takeIn(t, pool, "keys")
	exec(t, pool, `INSERT INTO call_queue (queue, key) SELECT 'keys', 'k' || i FROM generate_series(1, 8000) i`)
	exec(t, pool, `VACUUM ANALYZE`)
	settings := map[string]string{"jit": "off", "min_parallel_table_scan_size": "0", "parallel_setup_cost": "0", "parallel_tuple_cost": "0"}
	shared := map[string]int{}
	for _, scan := range pgtest.Plan(t, pool, settings, waitingSQL) {
		if slices.ContainsFunc(scan.Above, func(node string) bool { return strings.HasPrefix(node, "Gather") }) {
			shared[scan.Table]++
		}
	}
	if shared["call_inbox"] != 1 {
		t.Errorf("several processes read %v, want the news once", shared)
	}
	settings = map[string]string{"jit": "off", "max_parallel_workers_per_gather": "0"}
	if n := pgtest.Work(t, pool, settings, waitingSQL); n > 3*8000 { // read, and grouped
		t.Errorf("to count 8,000 lines and as many rows of news, plans handled %d", n)
	}
}

// Queues that are in no configuration, and tasks that no worker takes, of which a producer may write any number, are
// named for the 100 pairs of which most wait; what is left is counted. What is configured is always there.
//
//callq:guarantee 12
func TestManyUnknownQueues(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO call_queues (name, limits, label, max_attempts, backoff_min, backoff_max, timeout, on_lost)
		VALUES ('known', '{}', '', 3, '1 s', '1 m', '1 m', 'retry')`)
	exec(t, pool, `INSERT INTO call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at) VALUES ('w', 'http', '{http}', '{}', 1, now(), now() + interval '1 h')`)
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
	if n := len(waiting); n < 3 || n > 201 || waiting["known"] != 503 || waiting["most"] != 9 {
		t.Errorf("%d queues: %v", n, waiting)
	}
	var unhandled Unnamed
	for _, u := range s.Unhandled {
		if u.Unnamed > 0 {
			unhandled = Unnamed{u.Unnamed, u.Waiting}
		}
	}
	named := int64(len(s.Unhandled) - 1)
	if s.Unnamed == nil || s.Unnamed.Pairs != 5001+500-100-unhandled.Pairs || s.Unnamed.Waiting != s.Unnamed.Pairs {
		t.Errorf("unnamed are %+v, and %+v", s.Unnamed, unhandled)
	}
	if unhandled.Pairs+named != 500 || unhandled.Waiting != unhandled.Pairs || named > 100 {
		t.Errorf("no worker is there for %d tasks and %+v more, want 500 together", named, unhandled)
	}
	of, err := collect[Waiting](t.Context(), pool, "count what waits", waitingOfSQL, "unknown-777")
	if err != nil || len(of) != 1 || of[0].Waiting != 1 || of[0].Task != "http" {
		t.Errorf("of one of them: %+v, %v", of, err)
	}
	settings := map[string]string{"jit": "off", "max_parallel_workers_per_gather": "0"}
	if n := pgtest.Work(t, pool, settings, waitingSQL); n > 12*5500 { // read, and grouped; each may be handled a few times
		t.Errorf("to count 5,500 pairs, plans handled %d rows", n)
	}
}
