package lines_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/lines"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// intakeAt takes in what is due then.
func (q *queue) intakeAt(now time.Time) {
	q.t.Helper()
	q.tx(func(ctx context.Context, tx pgx.Tx) error {
		for {
			taken, err := lines.Intake(ctx, tx, q.name, time.Time{}, now)
			if err != nil || taken.All {
				return err
			}
		}
	})
}

// inLineRight fails the test unless the news and lines say of each call that waits where and since when it does.
func (q *queue) inLineRight() {
	q.t.Helper()
	q.sound()
	if n := q.value(`SELECT count(*) FROM call_queue q LEFT JOIN call_in_line i ON i.id = q.id
			WHERE q.status IN ('new', 'error') AND (i.queue, i.key, i.priority, i.task) IS DISTINCT FROM (coalesce(q.queue, 'default'),
				coalesce(q.key, ''), least(greatest(coalesce(q.priority, 5), 0), 9), coalesce(q.task, 'http'))`); n > 0 {
		q.t.Errorf("%d calls are not in their line", n)
	}
	if n := q.value(`SELECT count(*) FROM call_news n CROSS JOIN LATERAL unnest(n.ids, n.ats) AS i (id, at) JOIN call_queue q USING (id)
			WHERE coalesce(i.at, n.at) <> coalesce(q.run_at, q.created_at)`); n > 0 {
		q.t.Errorf("of %d calls the news say another time", n)
	}
	if n := q.value(`SELECT count(*) FROM call_news n
			WHERE ats IS NOT NULL AND (at <> ats[1] OR calls <> cardinality(ids) OR calls <> cardinality(keys) OR calls <> cardinality(ats)
				OR ats <> ARRAY(SELECT a FROM unnest(ats) AS a ORDER BY a))`); n > 0 {
		q.t.Errorf("%d rows of news are not in order", n)
	}
}

// fold folds the news to the end.
func fold(ctx context.Context, q *queue, crowd int) error {
	_, err := lines.Fold(ctx, q.pool, crowd, func() bool { return true })
	return err
}

// A million take many statements: between two of them it may stop, and go on later.
func TestFoldStops(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.exec(`INSERT INTO call_queues VALUES ('q', '{}', '', 3, '1 s', '1 min', '30 s', 'retry')`)
	q.exec(`DO $$ BEGIN FOR i IN 1..5300 LOOP INSERT INTO call_queue (queue, run_at) VALUES ('q', now() + interval '1 hour' + i * interval '1 s'); END LOOP; END $$`)
	for _, want := range []struct {
		all    bool
		single int64
	}{{false, 300}, {true, 0}} {
		all, err := lines.Fold(t.Context(), q.pool, 100, func() bool { return false })
		if err != nil || all != want.all {
			t.Errorf("to the end: %v, %v, want %v", all, err, want.all)
		}
		if n := q.value(`SELECT count(*) FROM call_news WHERE ats IS NULL`); n != want.single {
			t.Errorf("%d calls have a row each, want %d", n, want.single)
		}
	}
	q.inLineRight()
}

// Calls that wait each for a time of their own are few rows of news, however they came; each falls due in its time,
// and they come out in the order in which they did.
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
			q.exec(`INSERT INTO call_queues SELECT n, '{}', '', 3, '1 s', '1 min', '30 s', 'retry' FROM unnest(ARRAY['q', 'r']) n`)
			q.exec(insert)
			if err := fold(t.Context(), q, 256); err != nil {
				t.Fatal(err)
			}
			q.inLineRight()
			if rows := q.value(`SELECT count(*) FROM call_news WHERE queue = 'q'`); rows > 300 {
				t.Errorf("%d rows of news", rows)
			}
			if err := fold(t.Context(), q, 256); err != nil {
				t.Fatal(err)
			}
			var began time.Time
			if err := q.pool.QueryRow(t.Context(), `SELECT min(created_at) FROM call_queue`).Scan(&began); err != nil {
				t.Fatal(err)
			}
			for _, after := range []time.Duration{59 * time.Second, time.Minute, 61 * time.Second, 100 * time.Second, 30 * time.Minute, 2 * time.Hour} {
				now := began.Add(after)
				q.intakeAt(now)
				q.inLineRight()
				for what, count := range map[string]string{
					"in lines":                       `SELECT coalesce(sum(calls), 0) FROM call_lines WHERE queue = 'q'`,
					"in lines, as totals count them": `SELECT coalesce(sum(calls), 0) FROM call_line_totals WHERE queue = 'q'`,
					"no longer news":                 `SELECT (SELECT count(*) FROM call_queue WHERE queue = 'q') - sum(calls) FROM (SELECT calls FROM call_news WHERE queue = 'q' UNION ALL SELECT 0) n`,
				} {
					want := q.value(`SELECT count(*) FROM call_queue WHERE queue = 'q' AND run_at <= '` + now.Format(time.RFC3339Nano) + `'`)
					if got := q.value(count); got != want {
						t.Errorf("after %s %d calls are %s, of %d", after, got, what, want)
					}
				}
			}
			q.exec(`UPDATE call_queue SET task = 'http' WHERE task = 'mail'`)
			q.intakeAt(began.Add(2 * time.Hour))
			claimed := q.claimAll()
			if q.value(`SELECT count(*) FROM call_lines WHERE queue = 'q'`) == 1 {
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

// Claims, producers and folds go on side by side, and no call is lost, nor in the news or in line twice.
func TestFoldBesideClaims(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.exec(`INSERT INTO call_queues VALUES ('q', '{}', '', 3, '1 s', '1 min', '30 s', 'retry')`)
	began := time.Now()
	group, ctx := errgroup.WithContext(t.Context())
	for producer := range 2 {
		group.Go(func() error {
			for i := range 300 {
				if _, err := q.pool.Exec(ctx, `INSERT INTO call_queue (queue, key, run_at) VALUES ('q', $1, now() + $2 * interval '100 ms')`,
					fmt.Sprint(i%3), 110+(i*7+producer)%300); err != nil {
					return err
				}
			}
			return nil
		})
		group.Go(func() error {
			for range 60 {
				if err := fold(ctx, q, 20); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		for i := range 60 {
			err := pgx.BeginFunc(ctx, q.pool, func(tx pgx.Tx) error {
				_, err := lines.Intake(ctx, tx, "q", time.Time{}, began.Add(time.Duration(11000+i*500)*time.Millisecond))
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	q.inLineRight()
	if n := q.value(`SELECT count(*) - count(DISTINCT id) FROM call_in_line`); n > 0 {
		t.Errorf("%d calls are there twice", n)
	}
	q.intake()
	if n := q.value(`SELECT count(*) FROM call_news`); n > 0 {
		t.Errorf("%d rows of news are left", n)
	}
}
