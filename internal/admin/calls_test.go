package admin

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/pgtest"
)

// fillSQL makes $1 calls: nearly all done, some of every other status, most of those old; a queue and a key
// that few have.
const fillSQL = `
INSERT INTO call_queue (queue, task, key, status, failed_at, finished_at)
SELECT CASE i % 20000 WHEN 7 THEN 'rare' WHEN 8 THEN NULL ELSE 'q' || i % 10 END, CASE i % 4 WHEN 1 THEN NULL WHEN 2 THEN 'mail' ELSE 'http' END,
    CASE WHEN i % 30000 = 5 THEN 'solo' WHEN i % 1000 = 598 THEN repeat('long', 75) WHEN i BETWEEN 1000 AND 3000 THEN 'old' WHEN i % 4 = 0 THEN '' WHEN i % 4 = 1 THEN NULL ELSE 'k' || i % 50 END,
    s.status, CASE s.status WHEN 'failed' THEN now() END,
    CASE WHEN s.status IN ('done', 'failed', 'cancelled') THEN now() END
FROM generate_series(1, $1::integer) AS i
CROSS JOIN LATERAL (SELECT CASE
    WHEN i > $1 - 60 THEN 'new' WHEN i % 500 = 2 THEN 'failed' WHEN i < 100 THEN 'cancelled' WHEN i < 130 THEN 'error'
    WHEN i < 160 THEN 'dispatched' ELSE 'done' END AS status) s`

const openAllSQL = `
INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, started_at, epoch, pool, queue, task, key, limits, keys, costs)
SELECT id, 1, 0, 1, 1, now(), now(), now(), CASE id % 2 WHEN 0 THEN now() END, callq.epoch(), 'http', 'q', 'http', '', '{}', '{}', '{}'
FROM call_queue WHERE status = 'dispatched' OR id = 10` // cancelled while it ran

// waitsSQL has calls wait again, of which some are cancelled and some are moved.
var waitsSQL = []string{
	`UPDATE call_queue SET status = 'new', finished_at = NULL, run_at = now() - id % 7 * interval '1 s' WHERE status = 'done' AND id % 3 = 0 AND id BETWEEN 170 AND 500`,
	`UPDATE call_queue SET status = 'cancelled', finished_at = now() WHERE status = 'new' AND id % 4 = 0 AND id BETWEEN 300 AND 400`,
	`UPDATE call_queue SET run_at = run_at - interval '1 h' WHERE status = 'new' AND id % 5 = 0 AND id BETWEEN 200 AND 450`,
}

// Whatever the filter, the list is what comparing each call with it gives, page by page, and so is the
// count.
func TestList(t *testing.T) {
	t.Parallel()
	pool := filled(t, 600)
	for _, sql := range waitsSQL {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, pool, `INSERT INTO call_attempts (call_id, attempt, code, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
		SELECT id, 1, (ARRAY[200, 402, 503, NULL])[id % 4 + 1], 1, now(), now(), 'done', 'q', 'http', '', '[]' FROM call_queue WHERE id % 3 = 0`)
	all, err := ListCalls(t.Context(), pool, Filter{}, 10_000)
	if err != nil || len(all) != 600 || all[0].ID != 600 {
		t.Fatalf("%d calls, %v", len(all), err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	some := func() bool { return random.IntN(3) == 0 }
	statuses := []callqueue.Status{
		callqueue.StatusNew, callqueue.StatusDispatched, callqueue.StatusDone, callqueue.StatusError,
		callqueue.StatusFailed, callqueue.StatusCancelled,
	}
	found := 0
	for range 300 {
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
			f.Codes = [][]int16{{402}, {402, 503}, {200, 402}, {418}}[random.IntN(4)]
		}
		if some() {
			f.Before = random.Int64N(700)
		}
		limit := 5 + random.IntN(60)
		var want, got []int64
		for _, c := range all {
			if fits(f, c) {
				want = append(want, c.ID)
			}
		}
		found += len(want)
		if n, err := CountCalls(t.Context(), pool, f); err != nil || n != int64(len(want)) {
			t.Errorf("%+v: counted %d, %v; want %d", f, n, err, len(want))
		}
		for page, last := f, false; !last; {
			list, err := ListCalls(t.Context(), pool, page, limit)
			if err != nil || len(list) > limit {
				t.Fatalf("%+v: %d calls, %v", f, len(list), err)
			}
			for _, c := range list {
				page.Before, got = c.ID, append(got, c.ID)
			}
			last = len(list) < limit
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %v, want %v", f, got, want)
		}
	}
	if found < 1000 {
		t.Errorf("all filters let %d calls through: they show little", found)
	}
	for _, f := range []Filter{{}, {Queue: "none"}, {Statuses: []callqueue.Status{callqueue.StatusNew}}, {Key: new("none"), Statuses: []callqueue.Status{callqueue.StatusDone}}} {
		n, err := CountCalls(t.Context(), pool, f)
		if err != nil {
			t.Fatal(err)
		}
		if list, err := ListCalls(t.Context(), pool, f, math.MaxInt); err != nil || int64(len(list)) != n {
			t.Errorf("%+v, all: %d of %d, %v", f, len(list), n, err)
		}
	}
	running, err := ListCalls(t.Context(), pool, Filter{Before: 141}, 1)
	if err != nil || len(running) != 1 || !running[0].Running || running[0].Status != callqueue.StatusDispatched {
		t.Errorf("one that runs: %+v, %v", running, err)
	}
}

func fits(f Filter, c Call) bool {
	return (len(f.Statuses) == 0 || slices.Contains(f.Statuses, c.Status)) &&
		(f.Queue == "" || f.Queue == c.Queue) && (f.Task == "" || f.Task == c.Task) && (f.Key == nil || *f.Key == c.Key) &&
		(len(f.Codes) == 0 || c.Code != nil && slices.Contains(f.Codes, int16(*c.Code))) && (f.Before == 0 || c.ID < f.Before)
}

// filled is a database with n calls.
func filled(t *testing.T, n int) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `CREATE OR REPLACE FUNCTION callq.refuse_call(queue text, task text, key text, max_attempts integer)
		RETURNS boolean LANGUAGE sql AS 'SELECT true'`); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), fillSQL, n); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{openAllSQL, `VACUUM ANALYZE call_queue`} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return pool
}
