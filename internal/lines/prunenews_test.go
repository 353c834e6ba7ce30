package lines_test

import (
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/lines"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// throughNews is a pass, in steps of so many calls.
func (q *queue) throughNews(most int) (removed int64) {
	q.t.Helper()
	for next, steps := (*lines.NewsPlace)(nil), 0; steps == 0 || next != nil; steps++ {
		var n int64
		var err error
		if next, n, err = lines.PruneNews(q.t.Context(), q.pool, q.name, next, most); err != nil {
			q.t.Fatal(err)
		}
		if removed += n; steps > 10_000 {
			q.t.Fatal("the pass comes to no end")
		}
	}
	return removed
}

// However scheduled calls came, those that end before they are due leave the news, and no other does.
func TestPruneNews(t *testing.T) {
	t.Parallel()
	const of, hour = `INSERT INTO call_queue (queue, key, priority, task, run_at) SELECT 'q', `, `now() + interval '1 hour'`
	const calls = ` FROM generate_series(1, 900) i`
	for name, insert := range map[string]string{
		"of one time":                  of + `'k', 5, 'http', ` + hour + calls,
		"of one time, a key each":      of + `'k' || i, 5, 'http', ` + hour + calls,
		"each of a time":               of + `'k' || i % 9, i % 2, 'http', ` + hour + ` + i * 77 % 900 * interval '1 s'` + calls,
		"of some tasks and queues":     of + `'k' || i, 5, 't' || i % 30, ` + hour + calls + `; ` + `INSERT INTO call_queue (run_at) SELECT ` + hour + calls,
		"some due":                     of + `'k' || i, 5, 'http', now() + i % 3 * interval '1 hour'` + calls,
		"some never":                   of + `'k', 5, 'http', CASE i % 3 WHEN 0 THEN 'infinity' ELSE ` + hour + ` + i * interval '1 s' END` + calls,
		"one by one":                   `DO $$ BEGIN FOR i IN 1..300 LOOP INSERT INTO call_queue (queue, run_at) VALUES ('q', ` + hour + `); END LOOP; END $$`,
		"one by one, each of a time":   `DO $$ BEGIN FOR i IN 1..300 LOOP INSERT INTO call_queue (queue, run_at) VALUES ('q', ` + hour + ` + i * interval '1 s'); END LOOP; END $$`,
		"with word of keys and limits": of + `'k', 5, 'http', ` + hour + calls + `; INSERT INTO call_news (queue, at, key) VALUES ('q', ` + hour + `, 'k')`,
	} {
		for then, sql := range map[string]string{
			"some end":       `UPDATE call_queue SET status = 'cancelled' WHERE id % 7 > 2`,
			"all end":        `DELETE FROM call_queue`,
			"none ends":      `SELECT`,
			"some come back": `UPDATE call_queue SET status = 'cancelled' WHERE id % 7 > 2; UPDATE call_queue SET status = 'new' WHERE id % 14 = 3`,
			"some are moved": `UPDATE call_queue SET priority = 7 WHERE id % 5 = 0; UPDATE call_queue SET run_at = run_at + interval '1 min' WHERE id % 5 = 1`,
		} {
			t.Run(name+", "+then, func(t *testing.T) {
				t.Parallel()
				q := newQueue(t)
				q.exec(insert)
				q.exec(sql)
				const others = `SELECT count(*) FROM call_news WHERE calls = 0 OR queue <> 'q' OR at <= now()`
				before, rows := q.value(others), q.value(`SELECT count(*) FROM call_news`)
				const ended = `SELECT count(*) FROM call_news n CROSS JOIN LATERAL unnest(n.ids, n.keys) AS i (id, key)
						WHERE n.queue = 'q' AND n.at > now() AND NOT EXISTS (SELECT FROM call_queue c WHERE c.id = i.id AND c.status = 'new' AND c.queue = 'q'
							AND (c.key, c.priority, c.task) = (coalesce(i.key, n.key), n.priority, n.task))`
				gone := q.value(ended)
				if removed := q.throughNews(100); removed != gone {
					t.Errorf("%d calls were taken out, of %d", removed, gone)
				}
				q.sound()
				if left := q.value(ended); left > 0 {
					t.Errorf("%d ended calls are left", left)
				}
				if after := q.value(others); after != before {
					t.Errorf("%d other news, not %d", after, before)
				}
				if n := q.value(`SELECT count(*) FROM call_news WHERE calls > 0 AND (calls <> cardinality(ids) OR keys IS NOT NULL AND calls <> cardinality(keys)
						OR ats IS NOT NULL AND (calls <> cardinality(ats) OR at <> ats[1]))`); n > 0 {
					t.Errorf("%d rows of news do not add up", n)
				}
				if then == "none ends" && q.value(`SELECT count(*) FROM call_news`) != rows {
					t.Error("rows are gone of which none ended")
				}
				if again := q.throughNews(1); again > 0 {
					t.Errorf("%d more were taken out by another pass", again)
				}
			})
		}
	}
}

// Only where many are scheduled, and most of them have ended, is it worth a pass.
func TestCrowdedNews(t *testing.T) {
	t.Parallel()
	const one, each = `INSERT INTO call_queue (queue, run_at) SELECT 'q', now() + interval '1 h' FROM generate_series(1, 12000) i`,
		`INSERT INTO call_queue (queue, key, run_at) SELECT 'q', 'k' || i, now() + interval '1 h' + i * interval '1 s' FROM generate_series(1, 12000) i`
	for name, c := range map[string]struct {
		insert, then string
		want         []string
	}{
		"all wait":                     {each, `SELECT`, nil},
		"a tenth ended":                {each, `UPDATE call_queue SET status = 'cancelled' WHERE hashint8(id) % 10 = 0`, nil},
		"nine tenths ended":            {each, `UPDATE call_queue SET status = 'cancelled' WHERE hashint8(id) % 10 <> 0`, []string{"q"}},
		"all deleted":                  {each, `DELETE FROM call_queue`, []string{"q"}},
		"of one time, and wait":        {one + `; ` + one, `SELECT`, nil},
		"of one time, and all deleted": {`DO $$ BEGIN FOR i IN 1..10 LOOP ` + one + `; END LOOP; END $$`, `DELETE FROM call_queue`, []string{"q"}},
		"few calls":                    {`INSERT INTO call_queue (queue, run_at) SELECT 'q', now() + i * interval '1 h' FROM generate_series(1, 9999) i`, `DELETE FROM call_queue`, nil},
		"due":                          {`INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 12000)`, `DELETE FROM call_queue`, nil},
		"not in force":                 {`INSERT INTO call_queue (queue, run_at) SELECT 'other', now() + i * interval '1 h' FROM generate_series(1, 12000) i`, `DELETE FROM call_queue`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			q.exec(`INSERT INTO call_queues VALUES ('q', '{}', '', 3, '1 s', '1 min', '30 s', 'retry')`)
			q.exec(c.insert)
			q.exec(c.then)
			for range 5 {
				if got, err := lines.CrowdedNews(t.Context(), q.pool); err != nil || !slices.Equal(got, c.want) {
					t.Fatalf("%v, %v, want %v", got, err, c.want)
				}
			}
		})
	}
}

// Whatever goes on side by side, a call that waits is in line or in the news, and comes out once.
func TestPruneNewsRaces(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.exec(`INSERT INTO call_queues VALUES ('q', '{}', '', 3, '1 s', '1 min', '30 s', 'retry')`)
	began := time.Now()
	group, ctx := errgroup.WithContext(t.Context())
	for _, do := range []func(i int) error{
		func(i int) error {
			_, err := q.pool.Exec(ctx, `INSERT INTO call_queue (queue, key, run_at)
				SELECT 'q', i % 3, now() + (11 + i % 40) * interval '1 s' + i * interval '1 ms' FROM generate_series(1, 1 + $1::int % 3 * 40) i`, i)
			return err
		},
		func(i int) error {
			for _, sql := range []string{
				`INSERT INTO call_queue (queue, run_at) VALUES ('q', now() + interval '30 min'), ('q', now() + interval '30 min' + $1 * interval '1 s')`,
				`UPDATE call_queue SET status = 'cancelled' WHERE status = 'new' AND id % 7 <> $1 % 3`,
				`UPDATE call_queue SET status = 'error' WHERE status = 'cancelled' AND id % 5 = $1 % 5`,
			} {
				if _, err := q.pool.Exec(ctx, sql, i); err != nil {
					return err
				}
			}
			return nil
		},
		func(int) error { return fold(ctx, q, 20) },
		func(int) error {
			for next, steps := (*lines.NewsPlace)(nil), 0; steps == 0 || next != nil; steps++ {
				var err error
				if next, _, err = lines.PruneNews(ctx, q.pool, "q", next, 200); err != nil {
					return err
				}
			}
			return nil
		},
		func(i int) error {
			return pgx.BeginFunc(ctx, q.pool, func(tx pgx.Tx) error {
				_, err := lines.Intake(ctx, tx, "q", time.Time{}, began.Add(time.Duration(11000+i*300)*time.Millisecond))
				return err
			})
		},
	} {
		group.Go(func() error {
			for i := range 60 {
				if err := do(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	q.sound()
	waiting := q.value(`SELECT count(*) FROM call_queue WHERE status IN ('new', 'error')`)
	q.intake()
	claimed := q.claimAll()
	slices.Sort(claimed)
	if n := int64(len(slices.Compact(slices.Clone(claimed)))); n != waiting || n != int64(len(claimed)) {
		t.Errorf("%d calls came out, %d of them once, of %d", len(claimed), n, waiting)
	}
}
