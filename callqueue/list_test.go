package callqueue

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/lines"
	"github.com/callq/callq/internal/pgtest"
)

// fillSQL makes $1 calls: nearly all done, some of every other status, most of those old; a queue and a key
// that few have.
const fillSQL = `
INSERT INTO call_queue (queue, task, key, status, failed_at, cancelled_at, finished_at)
SELECT CASE i % 20000 WHEN 7 THEN 'rare' WHEN 8 THEN NULL ELSE 'q' || i % 10 END, CASE i % 4 WHEN 1 THEN NULL WHEN 2 THEN 'mail' ELSE 'http' END,
    CASE WHEN i % 30000 = 5 THEN 'solo' WHEN i % 1000 = 598 THEN repeat('long', 75) WHEN i BETWEEN 1000 AND 3000 THEN 'old' WHEN i % 4 = 0 THEN '' WHEN i % 4 = 1 THEN NULL ELSE 'k' || i % 50 END,
    s.status, CASE s.status WHEN 'failed' THEN now() END, CASE s.status WHEN 'cancelled' THEN now() END,
    CASE WHEN s.status IN ('done', 'failed', 'cancelled') THEN now() END
FROM generate_series(1, $1::integer) AS i
CROSS JOIN LATERAL (SELECT CASE
    WHEN i > $1 - 60 THEN 'new' WHEN i % 500 = 2 THEN 'failed' WHEN i < 100 THEN 'cancelled' WHEN i < 130 THEN 'error'
    WHEN i < 160 THEN 'dispatched' ELSE 'done' END AS status) s`

// ledgerSQL gives the calls that were made a ledger: each its last attempt, and some one before it.
const ledgerSQL = `
INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
SELECT c.id, a.attempt, 1, now(), now(), a.outcome, 'q', 'http', '', '[]'
FROM call_queue c
CROSS JOIN LATERAL (
    SELECT 2 AS attempt, CASE c.status WHEN 'done' THEN 'done' WHEN 'failed' THEN 'permanent' ELSE 'lost' END AS outcome
    UNION ALL
    SELECT 1, CASE WHEN c.id % 2 = 0 THEN 'done' ELSE 'error' END WHERE c.id % 3 = 0
) a
WHERE c.status IN ('done', 'failed', 'error')`

const openAllSQL = `
INSERT INTO call_open (call_id, attempt, parcel_no, batch, cost, claimed_at, handed_at, start_by, started_at, epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, 1, 0, 1, 1, now(), now(), now(), CASE id % 2 WHEN 0 THEN now() END, callq_epoch(), 'http', 'q', 'http', '', '{}', '{}', '{}'
FROM call_queue WHERE status = 'dispatched' OR id = 10` // cancelled while it ran

// twiceSQL has lines and news speak of calls more than once, as of one that was cancelled and retried.
const twiceSQL = `INSERT INTO call_news SELECT * FROM call_news`

// waitsSQL has calls wait again, of which some are cancelled where they are in line, and some are put before others.
var waitsSQL = []string{
	`UPDATE call_queue SET status = 'new', finished_at = NULL, run_at = now() - id % 7 * interval '1 s' WHERE status = 'done' AND id % 3 = 0 AND id BETWEEN 170 AND 500`,
	`UPDATE call_queue SET status = 'cancelled', cancelled_at = now(), finished_at = now() WHERE status = 'new' AND id % 4 = 0 AND id BETWEEN 300 AND 400`,
	`UPDATE call_queue SET run_at = run_at - interval '1 h' WHERE status = 'new' AND id % 5 = 0 AND id BETWEEN 200 AND 450`,
}

// Whatever the filter, the list is what comparing each call with it gives, page by page, and so is the
// count.
func TestList(t *testing.T) {
	t.Parallel()
	client, pool := filled(t, 600)
	for _, sql := range waitsSQL {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		for i := range 10 { // q3 stays news
			if i != 3 {
				takeIn(t, pool, fmt.Sprintf("q%d", i))
			}
		}
	}
	all, err := client.List(t.Context(), Filter{}, 10_000)
	if err != nil || len(all) != 600 || all[0].ID != 600 {
		t.Fatalf("%d calls, %v", len(all), err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	some := func() bool { return random.IntN(3) == 0 }
	statuses := []Status{
		StatusNew, StatusDispatched, StatusDone, StatusError,
		StatusFailed, StatusCancelled,
	}
	found := 0
	for range 600 {
		var f Filter
		for _, s := range statuses {
			if some() {
				f.Statuses = append(f.Statuses, s)
			}
		}
		if some() {
			f.Queue = []string{"q1", "q2", "rare", "default", "none"}[random.IntN(5)]
		}
		if some() {
			f.Key = &[]string{"", "k2", "k3", "solo", strings.Repeat("long", 75), "none"}[random.IntN(6)]
		}
		if some() {
			f.Task = []string{"http", "mail", "none"}[random.IntN(3)]
		}
		if some() {
			f.Before = random.Int64N(700)
		}
		if random.IntN(6) == 0 {
			f.After = 1 + random.Int64N(700)
		}
		if random.IntN(10) == 0 {
			f.IDs = []int64{0, 5, 9, 9, 102, 140, 590, 9999}
		}
		limit := 1 + random.IntN(30)
		size := usualSizes()
		if random.IntN(4) > 0 { // as among many
			size = sizes{recent: 1 + random.Int64N(40), lately: 1 + random.IntN(40), crowd: 1 + random.IntN(40), most: 1 + random.IntN(300), chunks: 1 + random.IntN(8)}
		}
		var want, got []int64
		for _, c := range all {
			if fits(f, c) {
				want = append(want, c.ID)
			}
		}
		found += len(want)
		if n, err := client.Count(t.Context(), f); err != nil || n != int64(len(want)) {
			t.Errorf("%+v: counted %d, %v; want %d", f, n, err, len(want))
		}
		if f.After > 0 { // upwards, page by page
			for page := f; ; {
				list, err := client.list(t.Context(), page, limit, size)
				if err != nil || len(list) > limit {
					t.Fatalf("%+v: %d calls, %v", f, len(list), err)
				}
				var ids []int64
				for _, c := range list {
					ids = append(ids, c.ID)
				}
				got = append(ids, got...)
				if len(list) < limit {
					break
				}
				page.After = got[0]
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v: %v, want %v", f, got, want)
			}
			continue
		}
		for page := f; ; {
			list, err := client.list(t.Context(), page, limit, size)
			if err != nil || len(list) > limit {
				t.Fatalf("%+v: %d calls, %v", f, len(list), err)
			}
			for _, c := range list {
				got = append(got, c.ID)
			}
			if len(list) < limit {
				break
			}
			page.Before = got[len(got)-1]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %v, want %v", f, got, want)
		}
	}
	if found < 1000 {
		t.Errorf("all filters let %d calls through: they show little", found)
	}
	if one, err := client.List(t.Context(), Filter{IDs: []int64{}}, 5); err != nil || len(one) != 0 {
		t.Errorf("of no ids: %v, %v", one, err)
	}
	if none, err := client.List(t.Context(), Filter{Queue: "q1", After: math.MaxInt64}, 5); err != nil || len(none) != 0 {
		t.Errorf("above all ids: %v, %v", none, err)
	}
	every := sizes{recent: 1, lately: 1, crowd: 1, most: 100, chunks: 1}
	for _, f := range []Filter{{}, {Queue: "none"}, {Statuses: []Status{StatusNew}}, {Key: new("none"), Statuses: []Status{StatusDone}}} {
		n, err := client.Count(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if list, err := client.list(t.Context(), f, math.MaxInt, every); err != nil || int64(len(list)) != n {
			t.Errorf("%+v, all: %d of %d, %v", f, len(list), n, err)
		}
	}
	running, err := client.List(t.Context(), Filter{IDs: []int64{140}}, 5)
	if err != nil || len(running) != 1 || !running[0].Running || running[0].Status != StatusDispatched {
		t.Errorf("one that runs: %+v, %v", running, err)
	}
}

func fits(f Filter, c Summary) bool {
	return (len(f.Statuses) == 0 || slices.Contains(f.Statuses, c.Status)) &&
		(f.Queue == "" || f.Queue == c.Queue) && (f.Task == "" || f.Task == c.Task) && (f.Key == nil || *f.Key == c.Key) &&
		(f.IDs == nil || slices.Contains(f.IDs, c.ID)) && (f.Before == 0 || c.ID < f.Before) && c.ID > f.After
}

// takeIn takes a queue's news into its lines.
func takeIn(t *testing.T, pool *pgxpool.Pool, queue string) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		for {
			taken, err := lines.Intake(t.Context(), tx, queue, time.Time{}, time.Now())
			if err != nil || taken.All {
				return err
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// filled has n calls, and a Client.
func filled(t *testing.T, n int) (*Client, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `ALTER TABLE call_queue DISABLE TRIGGER call_queue_bounded`); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), fillSQL, n); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{openAllSQL, twiceSQL, ledgerSQL, `VACUUM ANALYZE call_queue`, `VACUUM ANALYZE call_attempts`} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	client, err := New(pool)
	if err != nil {
		t.Fatal(err)
	}
	return client, pool
}
