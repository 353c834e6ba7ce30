package lines_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/callq/callq/internal/lines"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// prune goes through the queue's lines once, and counts what it took out. check hears of each step.
func (q *queue) prune(most int, check func()) (removed int64) {
	q.t.Helper()
	var from *lines.Place
	for on := true; on; on = from != nil {
		q.tx(func(ctx context.Context, tx pgx.Tx) error {
			step, err := lines.Prune(ctx, tx, q.name, from, most)
			from, removed = step.UpTo, removed+step.Removed
			return err
		})
		check()
	}
	return removed
}

func (q *queue) noneAstray() {
	q.t.Helper()
	if found, err := lines.FindAstray(q.t.Context(), q.pool, 0); err != nil || found != (lines.Astray{}) {
		q.t.Errorf("found %+v, %v", found, err)
	}
}

// inLine lists the calls of the queue's lines, in their order; with waiting only those that wait there.
func (q *queue) inLine(waiting bool) (list []string) {
	q.t.Helper()
	rows, err := q.pool.Query(q.t.Context(), `
		SELECT concat_ws(' ', l.key, l.priority, l.task, l.wake_at, i.id)
		FROM call_lines l
		JOIN call_waiting w USING (queue, key, priority, task)
		CROSS JOIN LATERAL unnest(w.ids) WITH ORDINALITY AS i (id, place)
		WHERE l.queue = $1 AND (w.seq > l.head OR w.seq = l.head AND i.place > l.taken)
		  AND (NOT $2 OR i.id IN (SELECT id FROM call_queue c
			WHERE c.status IN ('new', 'error') AND c.queue = l.queue AND coalesce(c.key, '') = l.key AND c.priority = l.priority AND c.task = l.task))
		ORDER BY l.key, l.priority, l.task, w.seq, i.place`, q.name, waiting)
	if err != nil {
		q.t.Fatal(err)
	}
	if list, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		q.t.Fatal(err)
	}
	return list
}

// Exactly what waits stays in line, in its order, parked or not, however long the steps are; lines add up after
// each; and claims bring out every call that waits, once.
func TestPrune(t *testing.T) {
	t.Parallel()
	const many, long = `INSERT INTO call_queue (queue, key, task) SELECT 'q', 'k' || i, CASE i % 3 WHEN 0 THEN 'mail' ELSE 'http' END FROM generate_series(1, 900) i`,
		`INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 1000)`
	const emptySQL = `SELECT (SELECT count(*) FROM call_lines WHERE calls = 0) + (SELECT count(*) FROM call_line_totals WHERE calls = 0)`
	for name, run := range map[string]func(q *queue){
		"a line each": func(q *queue) {
			q.exec(many)
			q.intake()
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id % 7 > 0`)
		},
		"a line each, all ended": func(q *queue) {
			q.exec(many)
			q.intake()
			q.exec(`DELETE FROM call_queue`)
		},
		"none ended": func(q *queue) {
			q.exec(many)
			q.exec(long)
			q.intake()
			q.claim(300)
		},
		"a long line": func(q *queue) {
			q.exec(long)
			q.intake()
			q.exec(`UPDATE call_queue SET status = CASE id % 2 WHEN 0 THEN 'cancelled' ELSE 'failed' END WHERE id % 9 > 0`)
		},
		"whole chunks of a long line": func(q *queue) {
			q.exec(long)
			q.intake()
			q.exec(`DELETE FROM call_queue WHERE id <= 256 OR id BETWEEN 513 AND 768`)
		},
		"a long line, all ended": func(q *queue) {
			q.exec(long)
			q.intake()
			q.exec(`UPDATE call_queue SET status = 'cancelled'`)
		},
		"the first chunk was begun": func(q *queue) {
			q.exec(long)
			q.intake()
			q.claim(300)
			q.exec(`UPDATE call_queue SET status = 'done' WHERE status = 'dispatched'`)
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id BETWEEN 305 AND 900`)
		},
		"the first chunk was begun, and its rest waits": func(q *queue) {
			q.exec(long)
			q.intake()
			q.claim(300)
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id > 512`)
		},
		"the first chunk was taken whole": func(q *queue) {
			q.exec(long)
			q.intake()
			q.claim(256)
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id > 600`)
		},
		"the first chunk was taken whole, and the others ended": func(q *queue) {
			q.exec(long)
			q.intake()
			q.claim(256)
			q.exec(`DELETE FROM call_queue WHERE id > 256`)
		},
		"some came back in front": func(q *queue) {
			q.exec(long)
			q.intake()
			q.claim(256)
			q.exec(`UPDATE call_queue SET status = 'new' WHERE id IN (7, 9, 30)`)
			q.intake()
			q.claim(2)
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id = 30 OR id > 400`)
		},
		"came back in front, were taken, and all else ended": func(q *queue) {
			q.exec(long)
			q.intake()
			q.claim(256)
			q.exec(`UPDATE call_queue SET status = 'new' WHERE id = 7`)
			q.intake()
			q.claim(1)
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id > 256`)
		},
		"parked": func(q *queue) {
			q.exec(many)
			q.intake()
			q.exec(`UPDATE call_lines SET wake_at = '2020-01-01' WHERE key LIKE 'k1%'`)
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id % 5 > 0`)
		},
		"many priorities of few keys": func(q *queue) {
			q.exec(`INSERT INTO call_queue (queue, key, priority) SELECT 'q', 'k' || i % 3, i % 10 FROM generate_series(1, 2000) i`)
			q.intake()
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE priority IN (2, 3) OR id > 1000`)
		},
		"moved": func(q *queue) {
			q.exec(long)
			q.intake()
			q.exec(`UPDATE call_queue SET key = 'other' WHERE id <= 100`)
			q.exec(`UPDATE call_queue SET priority = 1 WHERE id BETWEEN 101 AND 200`)
			q.exec(`UPDATE call_queue SET task = 'mail' WHERE id BETWEEN 201 AND 300`)
			q.exec(`UPDATE call_queue SET queue = 'other' WHERE id BETWEEN 301 AND 400`)
			q.exec(`UPDATE call_queue SET key = NULL WHERE id <= 10`)
			q.intake()
		},
		"retried": func(q *queue) {
			q.exec(long)
			q.intake()
			q.claim(100)
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id > 50`)
			q.exec(`UPDATE call_queue SET status = 'error', run_at = now() - interval '1 s' WHERE id <= 10`)
			q.exec(`UPDATE call_queue SET status = 'new' WHERE id > 900`)
			q.exec(`UPDATE call_queue SET run_at = now() + interval '1 h' WHERE id > 950`)
			q.intake()
		},
		"a chunk without calls behind what a step reads": func(q *queue) {
			q.exec(`INSERT INTO call_queue (queue, key) SELECT 'q', CASE i WHEN 1 THEN 'a' ELSE 'b' END FROM generate_series(1, 257) i`)
			q.intake()
			q.exec(`INSERT INTO call_waiting SELECT queue, key, priority, task, seq + 1, at, '{}', 0 FROM call_waiting WHERE key = 'b'`)
			q.exec(`UPDATE call_lines SET tail = tail + 1 WHERE key = 'b'`)
			q.exec(`DELETE FROM call_queue`)
		},
		"another queue beside it": func(q *queue) {
			q.exec(long)
			q.exec(`INSERT INTO call_queue (queue) SELECT 'r' FROM generate_series(1, 1000)`)
			q.intake()
			(&queue{q.t, q.pool, "r"}).intake()
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id % 3 = 0`)
		},
	} {
		for _, most := range []int{257, 5000} {
			t.Run(fmt.Sprintf("%s, %d at once", name, most), func(t *testing.T) {
				t.Parallel()
				q := newQueue(t)
				run(q)
				before, want := len(q.inLine(false)), q.inLine(true)
				empty := q.value(emptySQL)
				removed := q.prune(most, func() { q.sound(); q.noneAstray() })
				if diff := cmp.Diff(want, q.inLine(false)); diff != "" {
					t.Errorf("in line (-want +got):\n%s", diff)
				}
				if removed != int64(before-len(want)) {
					t.Errorf("said that %d were taken out of %d, of which %d wait", removed, before, len(want))
				}
				if n := q.value(emptySQL) - empty; n > 0 {
					t.Errorf("%d lines and totals were left empty", n)
				}
				if again := q.prune(most, func() {}); again > 0 {
					t.Errorf("then took out %d", again)
				}
				q.exec(`UPDATE call_queue SET task = 'http' WHERE task <> 'http'`) // as claim claims
				var claimed []int64
				for some := true; some; {
					q.intake()
					now := q.claim(200)
					claimed, some = append(claimed, now...), len(now) > 0
				}
				slices.Sort(claimed)
				if n := len(slices.Compact(slices.Clone(claimed))); n < len(claimed) {
					t.Errorf("%d calls came out %d times", n, len(claimed))
				}
				if n := q.value(`SELECT count(*) FROM call_queue WHERE queue = 'q' AND status IN ('new', 'error')`); n > 0 {
					t.Errorf("%d calls never came out", n)
				}
				q.noneAstray()
			})
		}
	}
}

// A call that another transaction has cancelled or retried counts as it was until that commits; what is then
// to be in line is news.
func TestPruneBesideOpenTransactions(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.exec(`INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 6)`)
	q.intake()
	q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id IN (1, 2)`)
	q.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE call_queue SET status = CASE id WHEN 2 THEN 'new' ELSE 'cancelled' END WHERE id IN (2, 3)`); err != nil {
			return err
		}
		if n := q.prune(5000, q.sound); n != 2 {
			t.Errorf("took out %d", n)
		}
		return nil
	})
	q.noneAstray()
	q.intake()
	if got := q.claim(9); !slices.Equal(got, []int64{2, 4, 5, 6}) && !slices.Equal(got, []int64{4, 5, 6, 2}) {
		t.Errorf("claimed %v", got)
	}
}

// Claims come between the steps of a pass: of a line that ends there nothing is left, nor of what they took.
func TestPruneBetweenClaims(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.exec(`INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 1000)`)
	q.exec(`INSERT INTO call_queue (queue, key, task) VALUES ('q', 'z', 'mail')`) // which nothing claims here
	q.intake()
	steps := 0
	q.prune(257, func() {
		if steps++; steps == 1 {
			q.claim(256)
			q.exec(`UPDATE call_queue SET status = 'cancelled' WHERE id > 256 AND task = 'http'`)
		}
		q.sound()
		q.noneAstray()
	})
	if n := q.value(`SELECT (SELECT count(*) FROM call_lines) + (SELECT count(*) FROM call_waiting)`); n != 2 || steps < 2 {
		t.Errorf("%d lines and chunks are left after %d steps, want those of z", n, steps)
	}
}

// Whatever happens while lines are pruned, each call that waits is in line or in the news.
func TestPruneRaces(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.exec(`INSERT INTO call_queues (name, limits, max_attempts, backoff_min, backoff_max, timeout, on_lost)
		VALUES ('q', '{}', 3, '1 s', '1 s', '1 s', 'retry')`)
	q.exec(`INSERT INTO call_queue (queue, key) SELECT 'q', 'k' || i % 20 FROM generate_series(1, 3000) i`)
	q.intake()
	const rounds = 30
	var all sync.WaitGroup
	gate := make(chan struct{})
	each := func(run func(i int)) {
		all.Go(func() {
			<-gate
			for i := range rounds {
				run(i)
			}
		})
	}
	change := func(set, where string) {
		each(func(i int) {
			if _, err := q.pool.Exec(t.Context(), `
				WITH picked AS MATERIALIZED (SELECT id FROM call_queue WHERE hashint8(id + $1) % 5 = 0 AND `+where+` ORDER BY id FOR UPDATE)
				UPDATE call_queue q SET `+set+` FROM picked p WHERE q.id = p.id`, i); err != nil {
				t.Error(err)
			}
		})
	}
	change(`status = 'cancelled'`, `status IN ('new', 'error')`)
	change(`status = 'new', run_at = now() - interval '1 min'`, `status IN ('cancelled', 'dispatched')`)
	change(`key = 'k' || (q.id + 1) % 20`, `status = 'new'`)
	each(func(i int) {
		if _, err := q.pool.Exec(t.Context(), `INSERT INTO call_queue (queue, key) SELECT 'q', 'k' || i FROM generate_series(1, $1) i`, 5+i); err != nil {
			t.Error(err)
		}
	})
	each(func(int) { q.intake() })
	each(func(int) { q.claim(3) })
	for range 2 {
		each(func(i int) { q.prune(257+i*50, func() {}) })
	}
	close(gate)
	all.Wait()
	q.sound()
	q.noneAstray()
	q.prune(5000, func() { q.sound(); q.noneAstray() })
	for some := true; some; {
		q.intake()
		some = len(q.claim(1000)) > 0
	}
	if n := q.value(`SELECT count(*) FROM call_queue WHERE status IN ('new', 'error')`); n > 0 {
		t.Errorf("%d calls never came out", n)
	}
}

// Only where many stand in line, and most of them have ended, is a queue crowded: each queue for itself.
func TestCrowded(t *testing.T) {
	t.Parallel()
	const each, few = `INSERT INTO call_queue (queue, key) SELECT 'q', 'k' || i FROM generate_series(1, 12000) i`,
		`INSERT INTO call_queue (queue, key) SELECT 'q', 'k' || i % 20 FROM generate_series(1, 12000) i`
	for name, c := range map[string]struct {
		insert, then string
		want         []string
	}{
		"all wait":                   {each, `SELECT`, nil},
		"a tenth ended":              {each, `UPDATE call_queue SET status = 'cancelled' WHERE hashint8(id) % 10 = 0`, nil},
		"nine tenths ended":          {each, `UPDATE call_queue SET status = 'cancelled' WHERE hashint8(id) % 10 <> 0`, []string{"q"}},
		"all deleted":                {each, `DELETE FROM call_queue`, []string{"q"}},
		"all moved":                  {each, `UPDATE call_queue SET priority = 2`, []string{"q"}},
		"of few lines a tenth ended": {few, `UPDATE call_queue SET status = 'cancelled' WHERE hashint8(id) % 10 = 0`, nil},
		"of few lines nine tenths":   {few, `UPDATE call_queue SET status = 'cancelled' WHERE hashint8(id) % 10 <> 0`, []string{"q"}},
		"few calls":                  {`INSERT INTO call_queue (queue) SELECT 'q' FROM generate_series(1, 9999)`, `UPDATE call_queue SET status = 'cancelled'`, nil},
		"what had left is no evidence": {
			few, `UPDATE call_waiting SET ids = array_fill(-1::bigint, ARRAY[3000]) || ids;
				UPDATE call_lines SET taken = 3000, tail = head; DELETE FROM call_waiting w USING call_lines l WHERE w.key = l.key AND w.seq > l.head`, nil,
		},
		"a queue that waits beside it": {
			each + `; INSERT INTO call_queue (queue, key) SELECT 'r', 'k' || i FROM generate_series(1, 12000) i`,
			`UPDATE call_queue SET status = 'cancelled' WHERE queue = 'q'`,
			[]string{"q"},
		},
		"not in force": {`INSERT INTO call_queue (queue) SELECT 'other' FROM generate_series(1, 12000) i`, `UPDATE call_queue SET status = 'cancelled'`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			q.exec(`INSERT INTO call_queues (name, limits, max_attempts, backoff_min, backoff_max, timeout, on_lost)
				SELECT name, '{}', 3, '1 s', '1 s', '1 s', 'retry' FROM unnest('{q,r}'::text[]) AS n (name)`)
			q.exec(c.insert)
			for _, name := range []string{"q", "r", "other"} {
				(&queue{t, q.pool, name}).intake()
			}
			q.exec(c.then)
			for range 5 {
				if got, err := lines.Crowded(t.Context(), q.pool); err != nil || !slices.Equal(got, c.want) {
					t.Fatalf("%v, %v, want %v", got, err, c.want)
				}
			}
		})
	}
}
